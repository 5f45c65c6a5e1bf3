// Methods of strings, as in Python's str. Slot 0 is self.
#include <utf8proc.h>
#include <algorithm>

#include "penstock/base/text.h"
#include "penstock/chat/jinja/builtins.h"
#include "penstock/chat/jinja/print.h"

namespace penstock::jinja {
namespace {

const Text& Self(const Bound& args) { return args[0].text(); }

Result StripAs(Interp& interp, Bound& args, bool left, bool right) {
  const Text* characters = nullptr;
  if (args.Has(1) && !args[1].Is(Kind::kNone)) {
    PENSTOCK_ASSIGN_OR_RETURN(characters, TextArg(interp, args, 1));
  }
  return interp.MakeString(Trimmed(Self(args), characters, left, right));
}

Result Strip(Interp& interp, Bound& args) { return StripAs(interp, args, true, true); }
Result LStrip(Interp& interp, Bound& args) { return StripAs(interp, args, true, false); }
Result RStrip(Interp& interp, Bound& args) { return StripAs(interp, args, false, true); }

// Returns byte ranges of the words between white space, after at most `max_split` splits from the left (negative: no
// limit).
std::vector<std::pair<size_t, size_t>> SplitAtSpace(std::string_view text, int64_t max_split) {
  std::vector<std::pair<size_t, size_t>> parts;
  size_t pos = SkipSpaceLeft(text);
  while (pos < text.size()) {
    if (max_split >= 0 && static_cast<int64_t>(parts.size()) >= max_split) {
      parts.emplace_back(pos, text.size());
      break;
    }
    size_t end = pos;
    while (end < text.size()) {
      const DecodedRune rune = DecodeUtf8(text, end);
      if (IsSpace(rune.code_point)) break;
      end += rune.num_bytes;
    }
    parts.emplace_back(pos, end);
    pos = end + SkipSpaceLeft(text.substr(end));
  }
  return parts;
}

std::vector<std::pair<size_t, size_t>> SplitAtText(std::string_view text, std::string_view separator) {
  std::vector<std::pair<size_t, size_t>> parts;
  size_t pos = 0;
  while (true) {
    const size_t hit = FindText(text, separator, pos);
    if (hit == std::string_view::npos) break;
    parts.emplace_back(pos, hit);
    pos = hit + separator.size();
  }
  parts.emplace_back(pos, text.size());
  return parts;
}

Result MakeParts(Interp& interp, const Text& text, const std::vector<std::pair<size_t, size_t>>& ranges) {
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(static_cast<int64_t>(2 * ranges.size() + text.size() / 32)));
  std::vector<Value> parts;
  for (const auto& [begin, end] : ranges) parts.push_back(Value::String(text.Sub(begin, end)));
  return interp.MakeList(std::move(parts));
}

Result SplitAs(Interp& interp, Bound& args, bool from_right) {
  const Text& self = Self(args);
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t max_split, IntOr(interp, args, 2, -1));
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(static_cast<int64_t>(self.size() / 32)));
  std::vector<std::pair<size_t, size_t>> parts;
  const bool at_space = !args.Has(1) || args[1].Is(Kind::kNone);
  if (at_space) {
    parts = SplitAtSpace(self.bytes(), from_right ? -1 : max_split);
    // In a limited split from the right, the rest keeps its leading and inner white space.
    if (from_right && max_split >= 0 && static_cast<int64_t>(parts.size()) > max_split) {
      const size_t num_merged = parts.size() - static_cast<size_t>(max_split);
      parts[0].second = parts[num_merged - 1].second;
      parts[0].first = 0;
      parts.erase(parts.begin() + 1, parts.begin() + static_cast<int64_t>(num_merged));
    }
    return MakeParts(interp, self, parts);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Text* separator, TextArg(interp, args, 1));
  if (separator->empty()) return interp.Fail("split needs a separator that is not empty");
  parts = SplitAtText(self.bytes(), separator->bytes());
  if (from_right && max_split < 0) return MakeParts(interp, self, parts);
  // A limited split from the right may find other hits than one from the left, if hits overlap.
  if (max_split >= 0 && (from_right || static_cast<int64_t>(parts.size()) - 1 > max_split)) {
    const size_t keep = max_split;
    if (from_right) {
      parts.clear();
      size_t end = self.size();
      std::string reversed(self.bytes().rbegin(), self.bytes().rend());
      const std::string needle(separator->bytes().rbegin(), separator->bytes().rend());
      for (size_t pos = 0; parts.size() < keep;) {
        const size_t hit = FindText(reversed, needle, pos);
        if (hit == std::string_view::npos) break;
        parts.emplace_back(self.size() - hit, end);
        end = self.size() - hit - needle.size();
        pos = hit + needle.size();
      }
      parts.emplace_back(0, end);
      std::reverse(parts.begin(), parts.end());
    } else {
      parts.resize(keep + 1);
      parts.back().second = self.size();
    }
  }
  return MakeParts(interp, self, parts);
}

Result Split(Interp& interp, Bound& args) { return SplitAs(interp, args, false); }
Result RSplit(Interp& interp, Bound& args) { return SplitAs(interp, args, true); }

Result SplitLinesOf(Interp& interp, Bound& args) {
  const bool keep_ends = TruthOr(args, 1, false);
  std::vector<std::pair<size_t, size_t>> parts;
  for (const LineRange& line : SplitLines(Self(args).bytes())) {
    parts.emplace_back(line.begin, keep_ends ? line.next : line.end);
  }
  return MakeParts(interp, Self(args), parts);
}

Result PartitionAs(Interp& interp, Bound& args, bool from_right) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text* separator, TextArg(interp, args, 1));
  if (separator->empty()) return interp.Fail("partition needs a separator that is not empty");
  const Text& self = Self(args);
  size_t hit = std::string::npos;
  for (size_t at = FindText(self.bytes(), separator->bytes()); at != std::string::npos;
       at = FindText(self.bytes(), separator->bytes(), at + 1)) {
    PENSTOCK_RETURN_IF_ERROR(interp.Charge(1 + static_cast<int64_t>(separator->size() / 32)));
    hit = at;
    if (!from_right) break;
  }
  std::vector<Value> parts;
  if (hit == std::string::npos) {
    parts = {Value::String(""), Value::String(""), Value::String("")};
    parts[from_right ? 2 : 0] = args[0];
  } else {
    parts = {Value::String(self.Sub(0, hit)), Value::String(*separator),
             Value::String(self.Sub(hit + separator->size(), self.size()))};
  }
  PENSTOCK_RETURN_IF_ERROR(interp.CheckText(self));
  return interp.MakeTuple(std::move(parts));
}

Result Partition(Interp& interp, Bound& args) { return PartitionAs(interp, args, false); }
Result RPartition(Interp& interp, Bound& args) { return PartitionAs(interp, args, true); }

// Returns the byte range that optional start and end arguments (slots 2 and 3) select.
absl::StatusOr<std::pair<size_t, size_t>> RangeOf(Interp& interp, const Bound& args) {
  const std::string& bytes = Self(args).bytes();
  if (!args.Has(2)) return std::pair<size_t, size_t>(0, bytes.size());
  const int64_t size = NumRunes(bytes);
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(static_cast<int64_t>(bytes.size() / 32)));
  PENSTOCK_ASSIGN_OR_RETURN(int64_t begin, IntOr(interp, args, 2, 0));
  PENSTOCK_ASSIGN_OR_RETURN(int64_t end, IntOr(interp, args, 3, size));
  if (begin < 0) begin = std::max<int64_t>(begin + size, 0);
  if (end < 0) end = std::max<int64_t>(end + size, 0);
  end = std::min(end, size);
  if (begin > end) return std::pair<size_t, size_t>(1, 0);  // an empty range, in which nothing is found
  return std::pair(RuneOffset(bytes, begin), RuneOffset(bytes, end));
}

Result AffixAs(Interp& interp, Bound& args, bool at_start) {
  PENSTOCK_ASSIGN_OR_RETURN(const auto range, RangeOf(interp, args));
  if (range.first > range.second) return Value::Bool(false);
  const std::string_view text = std::string_view(Self(args).bytes()).substr(range.first, range.second - range.first);
  std::vector<Value> affixes;
  if (args[1].Is(Kind::kList) && args[1].is_tuple()) {
    PENSTOCK_ASSIGN_OR_RETURN(affixes, interp.Iterate(args[1]));
  } else {
    affixes.push_back(args[1]);
  }
  for (const Value& affix : affixes) {
    if (affix.Is(Kind::kUndefined)) return interp.UndefinedError(affix);
    if (!affix.Is(Kind::kString)) return interp.Fail("a prefix or suffix must be a str, found {}", affix.type_name());
    PENSTOCK_RETURN_IF_ERROR(interp.Charge(1 + static_cast<int64_t>(affix.text().size() / 256)));
    if (at_start ? text.starts_with(affix.bytes()) : text.ends_with(affix.bytes())) return Value::Bool(true);
  }
  return Value::Bool(false);
}

Result StartsWith(Interp& interp, Bound& args) { return AffixAs(interp, args, true); }
Result EndsWith(Interp& interp, Bound& args) { return AffixAs(interp, args, false); }

// Returns the character index of the first or last hit, or -1.
absl::StatusOr<int64_t> FindIn(Interp& interp, Bound& args, bool last) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text* needle, TextArg(interp, args, 1));
  PENSTOCK_ASSIGN_OR_RETURN(const auto range, RangeOf(interp, args));
  if (range.first > range.second) return -1;
  const std::string& bytes = Self(args).bytes();
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(1 + static_cast<int64_t>(bytes.size() / 32)));
  const std::string_view text = std::string_view(bytes).substr(0, range.second);
  size_t hit = std::string_view::npos;
  if (!last) {
    hit = FindText(text, needle->bytes(), range.first);
  } else {
    // Searches the reversed bytes, which keeps the time linear.
    const std::string_view area = text.substr(range.first);
    const std::string reversed(area.rbegin(), area.rend());
    const std::string pattern(needle->bytes().rbegin(), needle->bytes().rend());
    const size_t back = FindText(reversed, pattern);
    if (back != std::string_view::npos) hit = text.size() - back - pattern.size();
  }
  if (hit == std::string_view::npos) return -1;
  return NumRunes(std::string_view(bytes).substr(0, hit));
}

Result FindAs(Interp& interp, Bound& args, bool last, bool must_exist) {
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t at, FindIn(interp, args, last));
  if (at < 0 && must_exist) return interp.Fail("the text to find is not there");
  return Value::Int(at);
}

Result Find(Interp& interp, Bound& args) { return FindAs(interp, args, false, false); }
Result RFind(Interp& interp, Bound& args) { return FindAs(interp, args, true, false); }
Result Index(Interp& interp, Bound& args) { return FindAs(interp, args, false, true); }
Result RIndex(Interp& interp, Bound& args) { return FindAs(interp, args, true, true); }

Result Count(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text* needle, TextArg(interp, args, 1));
  PENSTOCK_ASSIGN_OR_RETURN(const auto range, RangeOf(interp, args));
  if (range.first > range.second) return Value::Int(0);
  const std::string_view text = std::string_view(Self(args).bytes()).substr(range.first, range.second - range.first);
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(1 + static_cast<int64_t>(text.size() / 32)));
  if (needle->empty()) return Value::Int(NumRunes(text) + 1);
  return Value::Int(static_cast<int64_t>(SplitAtText(text, needle->bytes()).size()) - 1);
}

Result Replace(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text* from, TextArg(interp, args, 1));
  PENSTOCK_ASSIGN_OR_RETURN(const Text* to, TextArg(interp, args, 2));
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t count, IntOr(interp, args, 3, -1));
  PENSTOCK_ASSIGN_OR_RETURN(Text text, Replaced(interp, Self(args), *from, *to, count));
  return Value::String(std::move(text));
}

bool IsCased(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

enum class Case : uint8_t { kUpper, kLower, kTitle, kCapitalize, kSwap };

Result InCase(Interp& interp, const Text& text, Case wanted) {
  Text out;
  bool after_letter = false;
  for (RuneReader reader(text); !reader.done();) {
    const bool first = reader.pos() == 0;
    const auto [c, origin] = reader.Next();
    bool upper = wanted == Case::kUpper;
    if (wanted == Case::kTitle) upper = !after_letter;
    if (wanted == Case::kCapitalize) upper = first;
    if (wanted == Case::kSwap) upper = utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0;
    const bool title = wanted == Case::kTitle || wanted == Case::kCapitalize;
    if (upper) {
      title ? AppendTitle(c, origin, out) : AppendUpper(c, origin, out);
    } else {
      AppendLower(c, origin, out);
    }
    after_letter = IsCased(c);
  }
  return interp.MakeString(std::move(out));
}

Result Upper(Interp& interp, Bound& args) { return InCase(interp, Self(args), Case::kUpper); }
Result Lower(Interp& interp, Bound& args) { return InCase(interp, Self(args), Case::kLower); }
Result Title(Interp& interp, Bound& args) { return InCase(interp, Self(args), Case::kTitle); }
Result Capitalize(Interp& interp, Bound& args) { return InCase(interp, Self(args), Case::kCapitalize); }
Result SwapCase(Interp& interp, Bound& args) { return InCase(interp, Self(args), Case::kSwap); }

Result Join(Interp& interp, Bound& args) {
  if (args[1].Is(Kind::kUndefined)) return Value::String("");
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Value> items, interp.Iterate(args[1]));
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].Is(Kind::kUndefined)) return interp.UndefinedError(items[i]);
    if (!items[i].Is(Kind::kString)) return interp.Fail("join needs strings, found {}", items[i].type_name());
    if (i > 0) PENSTOCK_RETURN_IF_ERROR(interp.AppendStr(args[0], out));
    PENSTOCK_RETURN_IF_ERROR(interp.AppendStr(items[i], out));
  }
  return interp.MakeString(std::move(out));
}

Result Format(Interp& interp, Bound& args) { return FormatBraces(interp, Self(args), args.rest); }

Result RemovePrefix(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text* prefix, TextArg(interp, args, 1));
  if (!Self(args).bytes().starts_with(prefix->bytes())) return args[0];
  return interp.MakeString(Self(args).Sub(prefix->size(), Self(args).size()));
}

Result RemoveSuffix(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text* suffix, TextArg(interp, args, 1));
  if (!Self(args).bytes().ends_with(suffix->bytes())) return args[0];
  return interp.MakeString(Self(args).Sub(0, Self(args).size() - suffix->size()));
}

// Pads to `width` characters; `halves_left` is the part of the padding on the left: 0, 1 or 2 halves.
Result PadAs(Interp& interp, Bound& args, int halves_left) {
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t width, IntOr(interp, args, 1, 0));
  if (width > interp.max_text_bytes()) return interp.Fail("a width of {} is too wide", width);
  Text fill(" ", Origin::kTemplate);
  if (args.Has(2)) {
    PENSTOCK_ASSIGN_OR_RETURN(const Text* text, TextArg(interp, args, 2));
    fill = *text;
  }
  if (NumRunes(fill.bytes()) != 1) return interp.Fail("the fill must be one character");
  const int64_t pad = std::max<int64_t>(std::max<int64_t>(width, 0) - NumRunes(Self(args).bytes()), 0);
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(pad));
  const int64_t left = halves_left == 1 ? pad / 2 + (pad & width & 1) : halves_left == 2 ? pad : 0;
  Text out;
  for (int64_t i = 0; i < left; ++i) out.Append(fill);
  out.Append(Self(args));
  for (int64_t i = left; i < pad; ++i) out.Append(fill);
  return interp.MakeString(std::move(out));
}

Result LJust(Interp& interp, Bound& args) { return PadAs(interp, args, 0); }
Result Center(Interp& interp, Bound& args) { return PadAs(interp, args, 1); }
Result RJust(Interp& interp, Bound& args) { return PadAs(interp, args, 2); }

Result ZFill(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t width, IntOr(interp, args, 1, 0));
  if (width > interp.max_text_bytes()) return interp.Fail("a width of {} is too wide", width);
  const Text& self = Self(args);
  const int64_t pad = std::max<int64_t>(std::max<int64_t>(width, 0) - NumRunes(self.bytes()), 0);
  const size_t sign = self.bytes().starts_with('-') || self.bytes().starts_with('+') ? 1 : 0;
  Text out = self.Sub(0, sign);
  out.Append(std::string(pad, '0'), Origin::kTemplate);
  out.Append(self, sign, self.size());
  return interp.MakeString(std::move(out));
}

template <bool (*kIs)(char32_t)>
Result All(Interp& interp, Bound& args) {
  PENSTOCK_RETURN_IF_ERROR(interp.CheckText(Self(args)));
  for (RuneReader reader(Self(args)); !reader.done();) {
    if (!kIs(reader.Next().first)) return Value::Bool(false);
  }
  return Value::Bool(!Self(args).empty());
}

bool IsAscii(char32_t c) { return c < 0x80; }
utf8proc_category_t CategoryOf(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }
bool IsAlpha(char32_t c) { return CategoryOf(c) >= UTF8PROC_CATEGORY_LU && CategoryOf(c) <= UTF8PROC_CATEGORY_LO; }
bool IsDecimal(char32_t c) { return CategoryOf(c) == UTF8PROC_CATEGORY_ND; }
// As in Python, superscripts and circled digits count as digits; other numbers are only numeric.
bool IsDigit(char32_t c) {
  return IsDecimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468);
}
bool IsNumeric(char32_t c) { return CategoryOf(c) >= UTF8PROC_CATEGORY_ND && CategoryOf(c) <= UTF8PROC_CATEGORY_NO; }
bool IsAlnum(char32_t c) { return IsAlpha(c) || IsNumeric(c); }

// Wraps the methods that return true for an empty text.
template <Result (*kAll)(Interp&, Bound&)>
Result OrEmpty(Interp& interp, Bound& args) {
  return Self(args).empty() ? Result(Value::Bool(true)) : kAll(interp, args);
}

// Returns whether each word starts with a capital and continues in small letters.
Result IsTitle(Interp& interp, Bound& args) {
  PENSTOCK_RETURN_IF_ERROR(interp.CheckText(Self(args)));
  bool any = false;
  bool after_letter = false;
  for (RuneReader reader(Self(args)); !reader.done();) {
    const utf8proc_category_t category = CategoryOf(reader.Next().first);
    const bool small = category == UTF8PROC_CATEGORY_LL;
    const bool capital = category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT;
    if ((small && !after_letter) || (capital && after_letter)) return Value::Bool(false);
    after_letter = small || capital;
    any |= after_letter;
  }
  return Value::Bool(any);
}

Result IsUpper(Interp& interp, Bound& args) {
  PENSTOCK_RETURN_IF_ERROR(interp.CheckText(Self(args)));
  return Value::Bool(IsUpperText(Self(args).bytes()));
}

Result IsLower(Interp& interp, Bound& args) {
  PENSTOCK_RETURN_IF_ERROR(interp.CheckText(Self(args)));
  return Value::Bool(IsLowerText(Self(args).bytes()));
}

constexpr Builtin kMethods[] = {
    {"strip", "self chars", 1, Strip},
    {"lstrip", "self chars", 1, LStrip},
    {"rstrip", "self chars", 1, RStrip},
    {"split", "self sep maxsplit", 1, Split},
    {"rsplit", "self sep maxsplit", 1, RSplit},
    {"splitlines", "self keepends", 1, SplitLinesOf},
    {"partition", "self sep", 2, Partition},
    {"rpartition", "self sep", 2, RPartition},
    {"startswith", "self prefix start end", 2, StartsWith},
    {"endswith", "self suffix start end", 2, EndsWith},
    {"find", "self sub start end", 2, Find},
    {"rfind", "self sub start end", 2, RFind},
    {"index", "self sub start end", 2, Index},
    {"rindex", "self sub start end", 2, RIndex},
    {"count", "self sub start end", 2, Count},
    {"replace", "self old new count", 3, Replace},
    {"upper", "self", 1, Upper},
    {"lower", "self", 1, Lower},
    {"casefold", "self", 1, Lower},
    {"title", "self", 1, Title},
    {"capitalize", "self", 1, Capitalize},
    {"swapcase", "self", 1, SwapCase},
    {"join", "self iterable", 2, Join},
    {"format", "self *", 1, Format},
    {"removeprefix", "self prefix", 2, RemovePrefix},
    {"removesuffix", "self suffix", 2, RemoveSuffix},
    {"ljust", "self width fillchar", 2, LJust},
    {"rjust", "self width fillchar", 2, RJust},
    {"center", "self width fillchar", 2, Center},
    {"zfill", "self width", 2, ZFill},
    {"isalpha", "self", 1, All<IsAlpha>},
    {"isdigit", "self", 1, All<IsDigit>},
    {"isdecimal", "self", 1, All<IsDecimal>},
    {"isnumeric", "self", 1, All<IsNumeric>},
    {"isalnum", "self", 1, All<IsAlnum>},
    {"isspace", "self", 1, All<IsSpace>},
    {"isascii", "self", 1, OrEmpty<All<IsAscii>>},
    {"isprintable", "self", 1, OrEmpty<All<IsPrintable>>},
    {"istitle", "self", 1, IsTitle},
    {"isupper", "self", 1, IsUpper},
    {"islower", "self", 1, IsLower},
};

}  // namespace

bool IsWordRune(char32_t c) { return c == '_' || IsAlnum(c); }

std::span<const Builtin> StringMethods() { return kMethods; }

}  // namespace penstock::jinja
