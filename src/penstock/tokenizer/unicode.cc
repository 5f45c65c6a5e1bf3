#include "penstock/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <vector>

#include <utf8proc.h>

#include "penstock/base/check.h"

namespace penstock::unicode {
namespace {

constexpr uint16_t CategoryClasses(int category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return kLetter | kUpperWord | kWord;
    case UTF8PROC_CATEGORY_LL: return kLetter | kLowerWord | kWord;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return kLetter | kUpperWord | kLowerWord | kWord;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return kMark | kUpperWord | kLowerWord | kWord;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL: return kNumber | kWord;
    case UTF8PROC_CATEGORY_NO: return kNumber;
    case UTF8PROC_CATEGORY_PC: return kPunctuation | kWord;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: return kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO: return kSymbol;
    default: return 0;
  }
}

constexpr std::array<uint16_t, 32> kClassesOfCategory = [] {
  std::array<uint16_t, 32> table{};
  for (int category = 0; category < 32; ++category) table[category] = CategoryClasses(category);
  return table;
}();

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// \w beyond the categories: the joiners, and the circled and squared letters that have the property Alphabetic.
bool IsExtraWord(char32_t c) {
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

uint16_t ComputeClasses(char32_t c) {
  uint16_t classes = kClassesOfCategory[utf8proc_category(static_cast<utf8proc_int32_t>(c)) & 31];
  if (IsWhiteSpace(c)) classes |= kSpace;
  if (c == '\r' || c == '\n') classes |= kNewline;
  if (IsExtraWord(c)) classes |= kWord;
  return classes;
}

// May `c` combine with, or be reordered before, what stands in front of it? Starters that do are marks, the vowels and
// finals of Hangul, and the compatibility forms of both.
bool JoinsPrevious(char32_t c) {
  if (c < 0x300) return false;
  if (c >= 0x1160 && c <= 0x11FF) return true;
  if (c >= 0x3131 && c <= 0x318E) return true;
  if (c >= 0xFF9E && c <= 0xFFDC) return true;
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  return property->combining_class != 0 || (ClassesOf(c) & kMark) != 0;
}

// Canonical ordering. utf8proc's own is an exchange sort, quadratic on long runs of marks.
void OrderMarks(std::vector<utf8proc_int32_t>& runes) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  size_t begin = 0;
  while (begin < runes.size()) {
    if (combining_class(runes[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < runes.size() && combining_class(runes[end]) != 0) ++end;
    std::stable_sort(runes.begin() + static_cast<ptrdiff_t>(begin), runes.begin() + static_cast<ptrdiff_t>(end),
                     [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

uint16_t ClassesOf(char32_t c) {
  static const std::array<uint16_t, 0x800> kSmall = [] {
    std::array<uint16_t, 0x800> table{};
    for (char32_t i = 0; i < table.size(); ++i) table[i] = ComputeClasses(i);
    return table;
  }();
  return c < kSmall.size() ? kSmall[c] : ComputeClasses(c);
}

Rune RuneAt(std::string_view text, size_t pos) {
  if (pos >= text.size()) return {};
  const auto byte = static_cast<uint8_t>(text[pos]);
  if (byte < 0x80) return {byte, ClassesOf(byte), 1};
  const DecodedRune rune = DecodeUtf8(text, pos);
  return {rune.code_point, ClassesOf(rune.code_point), static_cast<uint16_t>(rune.num_bytes)};
}

size_t SkipClass(std::string_view text, size_t pos, uint16_t any_of) {
  for (Rune rune = RuneAt(text, pos); rune.Is(any_of); rune = RuneAt(text, pos)) pos += rune.num_bytes;
  return pos;
}

size_t PreviousRune(std::string_view text, size_t end) {
  size_t pos = end - 1;
  while (pos > 0 && end - pos < 4 && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) --pos;
  return pos;
}

size_t NormalizationPieceEnd(std::string_view text, size_t pos) {
  pos += static_cast<size_t>(RuneAt(text, pos).num_bytes);
  while (pos < text.size()) {
    if (static_cast<uint8_t>(text[pos]) < 0x80) break;
    const DecodedRune rune = DecodeUtf8(text, pos);
    if (!JoinsPrevious(rune.code_point)) break;
    pos += static_cast<size_t>(rune.num_bytes);
  }
  return pos;
}

void AppendNormalized(std::string_view text, NormalForm form, std::string& out) {
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const auto decompose_options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> runes;
  runes.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const DecodedRune rune = DecodeUtf8(text, pos);
    pos += static_cast<size_t>(rune.num_bytes);
    utf8proc_int32_t parts[32];  // the longest decomposition has 18 (U+FDFA)
    const auto num_parts =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(rune.code_point), parts, 32, decompose_options, nullptr);
    PENSTOCK_CHECK(num_parts >= 0 && num_parts <= 32);
    runes.insert(runes.end(), parts, parts + num_parts);
  }
  OrderMarks(runes);
  auto num_runes = static_cast<utf8proc_ssize_t>(runes.size());
  if (compose && num_runes > 0) {
    num_runes = utf8proc_normalize_utf32(runes.data(), num_runes,
                                         static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    PENSTOCK_CHECK(num_runes >= 0);
  }
  for (utf8proc_ssize_t i = 0; i < num_runes; ++i)
    AppendUtf8(static_cast<char32_t>(runes[static_cast<size_t>(i)]), out);
}

}  // namespace penstock::unicode
