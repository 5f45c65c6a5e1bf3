#include "penstock/tokenizer/split/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>
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

// Returns whether \w matches `c` although its category does not say so: joiners, and the circled and squared letters
// that have the property Alphabetic.
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

// Returns whether `c` may combine with, or be reordered before, what stands in front of it. Among starters, these are
// marks, the vowels and finals of Hangul, and the compatibility forms of both.
bool JoinsPrevious(char32_t c) {
  if (c < 0x300) return false;
  if (c >= 0x1160 && c <= 0x11FF) return true;
  if (c >= 0x3131 && c <= 0x318E) return true;
  if (c >= 0xFF9E && c <= 0xFFDC) return true;
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  return property->combining_class != 0 || (ClassesOf(c) & kMark) != 0;
}

// Returns whether `c` is a mark newer than Unicode 9, the version of the tables in Hugging Face's normalizers. They
// reorder nothing around such a mark, and ids have to agree with those of a model's training.
bool IsNewerMark(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
      {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
      {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
      {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
      {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
      {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
      {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
      {0x1E4EC, 0x1E4EF}};
  const auto range = std::upper_bound(std::begin(kRanges), std::end(kRanges), c,
                                      [](char32_t value, const auto& r) { return value < r.first; });
  return range != std::begin(kRanges) && c <= std::prev(range)->second;
}

int CombiningClass(utf8proc_int32_t c) {
  const int combining_class = utf8proc_get_property(c)->combining_class;
  return combining_class != 0 && IsNewerMark(static_cast<char32_t>(c)) ? 0 : combining_class;
}

constexpr utf8proc_int32_t kNewerComposition = 0x11938;  // added in Unicode 13; the older tables do not compose it

// Returns the character to which `starter` and `next` compose, or 0.
utf8proc_int32_t Composed(utf8proc_int32_t starter, utf8proc_int32_t next) {
  utf8proc_int32_t pair[2] = {starter, next};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  return utf8proc_normalize_utf32(pair, 2, options) == 1 && pair[0] != kNewerComposition ? pair[0] : 0;
}

// Canonical composition (Unicode Standard Annex 15), in place.
void Compose(std::vector<utf8proc_int32_t>& runes) {
  size_t num_kept = 0, starter = 0;
  int blocking_class = 256;  // highest class kept since the starter; -1: none; 256: there is no starter
  for (const utf8proc_int32_t c : runes) {
    const int combining_class = CombiningClass(c);
    if (blocking_class < combining_class && JoinsPrevious(static_cast<char32_t>(c))) {
      if (const utf8proc_int32_t composed = Composed(runes[starter], c); composed != 0) {
        runes[starter] = composed;
        continue;
      }
    }
    if (combining_class == 0) {
      starter = num_kept;
      blocking_class = -1;
    } else {
      blocking_class = std::max(blocking_class, combining_class);
    }
    runes[num_kept++] = c;
  }
  runes.resize(num_kept);
}

// Puts marks into canonical order. utf8proc's own exchange sort is quadratic on long runs of marks.
void OrderMarks(std::vector<utf8proc_int32_t>& runes) {
  size_t begin = 0;
  while (begin < runes.size()) {
    if (CombiningClass(runes[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < runes.size() && CombiningClass(runes[end]) != 0) ++end;
    std::stable_sort(runes.begin() + static_cast<ptrdiff_t>(begin), runes.begin() + static_cast<ptrdiff_t>(end),
                     [&](auto a, auto b) { return CombiningClass(a) < CombiningClass(b); });
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

uint32_t CategoryBit(char32_t c) { return 1u << (utf8proc_category(static_cast<utf8proc_int32_t>(c)) & 31); }

uint32_t CategoryMask(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
      {"Letter", "L"}, {"Mark", "M"},  {"Number", "N"},    {"Punctuation", "P"}, {"Symbol", "S"},
      {"Other", "C"},  {"Alpha", "L"}, {"Separator", "Z"}, {"Punct", "P"},
  };
  constexpr std::string_view kNames[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                         "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                         "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
  for (const auto& [long_name, short_name] : kLongNames) {
    if (name == long_name) name = short_name;
  }
  uint32_t mask = 0;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name || (name.size() == 1 && kNames[i][0] == name[0])) mask |= 1u << i;
  }
  return mask;
}

char32_t ToLower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))); }

char32_t ToUpper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))); }

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
  pos += RuneAt(text, pos).num_bytes;
  while (pos < text.size()) {
    if (static_cast<uint8_t>(text[pos]) < 0x80) break;
    const DecodedRune rune = DecodeUtf8(text, pos);
    if (!JoinsPrevious(rune.code_point)) break;
    pos += rune.num_bytes;
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
    pos += rune.num_bytes;
    if (rune.code_point == kNewerComposition) {
      runes.push_back(kNewerComposition);
      continue;
    }
    utf8proc_int32_t parts[32];  // the longest decomposition has 18 (U+FDFA)
    const auto num_parts =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(rune.code_point), parts, 32, decompose_options, nullptr);
    PENSTOCK_CHECK(num_parts >= 0 && num_parts <= 32);
    runes.insert(runes.end(), parts, parts + num_parts);
  }
  OrderMarks(runes);
  if (compose) Compose(runes);
  for (const utf8proc_int32_t c : runes) AppendUtf8(static_cast<char32_t>(c), out);
}

}  // namespace penstock::unicode
