#include "penstock/tokenizer/split/split_pattern.h"

#include <algorithm>

#include "penstock/base/status.h"
#include "penstock/tokenizer/json_fields.h"
#include "penstock/tokenizer/split/unicode.h"

namespace penstock {
namespace {

using unicode::kLetter;
using unicode::kLowerWord;
using unicode::kMark;
using unicode::kNewline;
using unicode::kNumber;
using unicode::kPunctuation;
using unicode::kSpace;
using unicode::kSymbol;
using unicode::kUpperWord;
using unicode::Rune;
using unicode::RuneAt;
using unicode::SkipClass;

// These raw strings are the patterns as tokenizer.json files spell them.
constexpr std::string_view kGpt2Regexes[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",
};
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwenMarksRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The spellings of cl100k. `\s*[\r\n]` without the last plus ends at the same place: the last line break of the white
// space.
constexpr std::string_view kCl100kRegexes[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
};
constexpr std::string_view kO200kRegexes[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};
constexpr std::string_view kDeepSeekV3Regex =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool IsAsciiLetter(char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
enum class Case : uint8_t { kExact, kIgnored };

// Returns the end of 's 't 're 've 'm 'll or 'd at `pos`, or `pos`. If case is ignored, U+017F (long s) counts as s.
size_t EndContraction(std::string_view text, size_t pos, Case letter_case) {
  if (pos + 1 >= text.size() || text[pos] != '\'') return pos;
  const auto letter = [&](size_t i) -> char {
    if (i >= text.size()) return 0;
    const char c = text[i];
    return letter_case == Case::kIgnored && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  const char first = letter(pos + 1);
  const char second = letter(pos + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return pos + 2;
  if ((first == 'r' || first == 'v') && second == 'e') return pos + 3;
  if (first == 'l' && second == 'l') return pos + 3;
  if (letter_case == Case::kIgnored && text.substr(pos + 1).starts_with("\xC5\xBF")) return pos + 3;
  return pos;
}

// Matches the tail `\s+(?!\S)|\s+` of most patterns: white space without its last character if a word follows.
size_t EndSpaces(std::string_view text, size_t pos) {
  const size_t end = SkipClass(text, pos, kSpace);
  if (end == pos || end == text.size()) return end;
  const size_t last = unicode::PreviousRune(text, end);
  return last > pos ? last : end;
}

// Matches `\s*[\r\n]+|\s+(?!\S)|\s+`.
size_t EndLinesOrSpaces(std::string_view text, size_t pos) {
  size_t after_newline = pos;
  size_t end = pos;
  for (Rune rune = RuneAt(text, end); rune.Is(kSpace); rune = RuneAt(text, end)) {
    end += rune.num_bytes;
    if (rune.Is(kNewline)) after_newline = end;
  }
  if (after_newline > pos) return after_newline;
  if (end == pos || end == text.size()) return end;
  const size_t last = unicode::PreviousRune(text, end);
  return last > pos ? last : end;
}

// Returns the end of a run of at most `max_runes` code points that have one of the classes.
size_t EndBoundedRun(std::string_view text, size_t pos, uint16_t classes, size_t max_runes) {
  for (size_t i = 0; i < max_runes; ++i) {
    const Rune rune = RuneAt(text, pos);
    if (!rune.Is(classes)) break;
    pos += rune.num_bytes;
  }
  return pos;
}

// Returns the end of the run of code points that have none of the classes.
size_t SkipOthers(std::string_view text, size_t pos, uint16_t none_of) {
  for (Rune rune = RuneAt(text, pos); rune.num_bytes > 0 && !rune.Is(none_of); rune = RuneAt(text, pos)) {
    pos += rune.num_bytes;
  }
  return pos;
}

}  // namespace

absl::StatusOr<SplitPattern> SplitPattern::FromRegex(std::string_view regex, std::string_view where) {
  if (regex.size() > kMaxPatternBytes) return ModelError("{}: a pattern of {} bytes", where, regex.size());
  SplitPattern pattern;
  const auto is_one_of = [&](const auto& regexes) {
    return std::find(std::begin(regexes), std::end(regexes), regex) != std::end(regexes);
  };
  if (is_one_of(kGpt2Regexes)) return Gpt2();
  if (is_one_of(kCl100kRegexes) || regex == kQwen2Regex || regex == kQwenMarksRegex) {
    pattern.kind_ = Kind::kCl100k;
    pattern.cl100k_.word = regex == kQwenMarksRegex ? kLetter | kMark : kLetter;
    pattern.cl100k_.max_digits = is_one_of(kCl100kRegexes) ? 3 : 1;
    return pattern;
  }
  if (is_one_of(kO200kRegexes)) {
    pattern.kind_ = Kind::kO200k;
    pattern.cl100k_.word = kLetter;
    pattern.cl100k_.newlines_and_slash = true;
    return pattern;
  }
  if (regex == kDeepSeekV3Regex) {
    pattern.kind_ = Kind::kDeepSeekV3;
    return pattern;
  }
  if (regex == R"(\s+$)") {
    pattern.kind_ = Kind::kFinalSpace;
    return pattern;
  }
  if (regex == R"(\p{N})") return Classes(kNumber, false);
  if (regex == R"(\p{N}+)") return Classes(kNumber, true);
  if (regex == R"(\s+)") return Classes(kSpace, true);
  if (regex == R"(\p{N}{1,3})") {
    pattern = Classes(kNumber, true);
    pattern.max_run_ = 3;
    return pattern;
  }
  if (const std::optional<SplitPattern> ranges = ParseClassRange(regex)) return *ranges;
  PENSTOCK_ASSIGN_OR_RETURN(SplitRegex compiled, SplitRegex::Compile(regex, where));
  pattern.kind_ = Kind::kRegex;
  pattern.regex_ = std::make_shared<const SplitRegex>(std::move(compiled));
  return pattern;
}

SplitPattern SplitPattern::Gpt2() { return {}; }

SplitPattern SplitPattern::Literal(std::string_view text) {
  SplitPattern pattern;
  pattern.kind_ = Kind::kLiteral;
  pattern.literal_ = text;
  return pattern;
}

SplitPattern SplitPattern::Classes(uint16_t classes, bool runs) {
  SplitPattern pattern;
  pattern.kind_ = Kind::kClasses;
  pattern.classes_ = classes;
  pattern.max_run_ = runs ? SIZE_MAX : 1;
  return pattern;
}

SplitPattern SplitPattern::Words() {
  SplitPattern pattern;
  pattern.kind_ = Kind::kWords;
  return pattern;
}

SplitPattern SplitPattern::Punctuation() {
  SplitPattern pattern;
  pattern.kind_ = Kind::kPunctuation;
  return pattern;
}

// Parses `[class]`, `[class]+` or `\s?[class]+` if the class has only characters, ranges and escaped characters.
std::optional<SplitPattern> SplitPattern::ParseClassRange(std::string_view regex) {
  SplitPattern pattern;
  pattern.kind_ = Kind::kClassRange;
  if (regex.starts_with("\\s?")) {
    pattern.space_before_ = true;
    regex.remove_prefix(3);
  }
  pattern.max_run_ = regex.ends_with("]+") ? SIZE_MAX : 1;
  if (pattern.max_run_ > 1) regex.remove_suffix(1);
  if (regex.size() < 3 || regex.front() != '[' || regex.back() != ']' || regex[1] == '^') return std::nullopt;
  regex = regex.substr(1, regex.size() - 2);
  size_t pos = 0;
  const auto next = [&]() -> std::optional<char32_t> {
    Rune rune = RuneAt(regex, pos);
    pos += rune.num_bytes;
    if (rune.num_bytes == 0 || rune.code_point == '[' || rune.code_point == ']' || rune.code_point == '&') {
      return std::nullopt;
    }
    if (rune.code_point != '\\') return rune.code_point;
    rune = RuneAt(regex, pos);
    pos += rune.num_bytes;
    if (rune.code_point == 'r') return '\r';
    if (rune.code_point == 'n') return '\n';
    if (rune.code_point == 't') return '\t';
    if (unicode::IsAsciiPunctuation(rune.code_point)) return rune.code_point;
    return std::nullopt;
  };
  while (pos < regex.size()) {
    const std::optional<char32_t> first = next();
    if (!first.has_value()) return std::nullopt;
    std::optional<char32_t> last = first;
    if (pos + 1 < regex.size() && regex[pos] == '-') {
      ++pos;
      last = next();
    }
    if (!last.has_value() || *last < *first) return std::nullopt;
    pattern.ranges_.emplace_back(*first, *last);
  }
  std::sort(pattern.ranges_.begin(), pattern.ranges_.end());
  return pattern;
}

SplitPattern::Match SplitPattern::Next(std::string_view text, size_t pos) const {
  SplitRegex::Memo memo;
  return Next(text, pos, memo);
}

SplitPattern::Match SplitPattern::Next(std::string_view text, size_t pos, SplitRegex::Memo& memo) const {
  if (kind_ == Kind::kRegex) {
    for (memo.Forget(pos); pos < text.size(); pos += RuneAt(text, pos).num_bytes) {
      const size_t end = regex_->MatchAt(text, pos, memo);
      if (end != SplitRegex::kNone) return {pos, end};
    }
    return {text.size(), text.size()};
  }
  if (kind_ == Kind::kLiteral) {
    const size_t found = text.find(literal_, pos);
    if (found == std::string_view::npos) return {text.size(), text.size()};
    return {found, found + literal_.size()};
  }
  if (kind_ == Kind::kFinalSpace) {
    return NextLineEnd(text, pos);
  }
  while (pos < text.size()) {
    const size_t end = EndAt(text, pos);
    if (end > pos) return {pos, end};
    pos += RuneAt(text, pos).num_bytes;
  }
  return {text.size(), text.size()};
}

// Matches `\s+$`, where $ is the end of the text or of a line: white space up to the last line break of its run.
SplitPattern::Match SplitPattern::NextLineEnd(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    size_t end = pos;
    size_t last_newline = pos;
    for (Rune rune = RuneAt(text, end); rune.Is(kSpace); rune = RuneAt(text, end)) {
      if (rune.code_point == '\n') last_newline = end;
      end += rune.num_bytes;
    }
    if (end == text.size()) return {pos, end};
    if (last_newline > pos) return {pos, last_newline};
    pos = end > pos ? end : pos + RuneAt(text, pos).num_bytes;
  }
  return {text.size(), text.size()};
}

size_t SplitPattern::EndAt(std::string_view text, size_t pos) const {
  switch (kind_) {
    case Kind::kGpt2: return EndGpt2(text, pos);
    case Kind::kCl100k: return EndCl100k(text, pos);
    case Kind::kO200k: return EndO200k(text, pos);
    case Kind::kDeepSeekV3: return EndDeepSeekV3(text, pos);
    case Kind::kClasses: return EndBoundedRun(text, pos, classes_, max_run_);
    case Kind::kClassRange: return EndClassRange(text, pos);
    case Kind::kWords: {
      const size_t word_end = SkipClass(text, pos, unicode::kWord);
      return word_end > pos ? word_end : SkipOthers(text, pos, unicode::kWord | kSpace);
    }
    case Kind::kPunctuation: {
      const Rune rune = RuneAt(text, pos);
      return rune.Is(kPunctuation) || unicode::IsAsciiPunctuation(rune.code_point) ? pos + rune.num_bytes : pos;
    }
    case Kind::kFinalSpace:
    case Kind::kRegex:
    case Kind::kLiteral: break;  // Next finds it
  }
  return pos;
}

size_t SplitPattern::EndGpt2(std::string_view text, size_t pos) const {
  const size_t contraction = EndContraction(text, pos, Case::kExact);
  if (contraction > pos) return contraction;
  const size_t word = text[pos] == ' ' ? pos + 1 : pos;
  const Rune rune = RuneAt(text, word);
  if (rune.Is(kLetter)) return SkipClass(text, word, kLetter);
  if (rune.Is(kNumber)) return SkipClass(text, word, kNumber);
  if (rune.num_bytes > 0 && !rune.Is(kSpace)) return SkipOthers(text, word, kSpace | kLetter | kNumber);
  return EndSpaces(text, pos);
}

// Matches ` ?[^\s\p{L}\p{N}]+[\r\n]*`.
size_t SplitPattern::EndPunctuationRun(std::string_view text, size_t pos) const {
  const size_t begin = text[pos] == ' ' ? pos + 1 : pos;
  size_t end = SkipOthers(text, begin, kSpace | kNumber | cl100k_.word);
  if (end == begin) return pos;
  while (end < text.size() &&
         (text[end] == '\r' || text[end] == '\n' || (cl100k_.newlines_and_slash && text[end] == '/'))) {
    ++end;
  }
  return end;
}

size_t SplitPattern::EndCl100k(std::string_view text, size_t pos) const {
  const size_t contraction = EndContraction(text, pos, Case::kIgnored);
  if (contraction > pos) return contraction;
  const Rune rune = RuneAt(text, pos);
  if (rune.Is(cl100k_.word)) return SkipClass(text, pos, cl100k_.word);
  if (!rune.Is(kNewline | kNumber)) {
    const size_t after_prefix = pos + rune.num_bytes;
    const size_t word_end = SkipClass(text, after_prefix, cl100k_.word);
    if (word_end > after_prefix) return word_end;
  }
  if (rune.Is(kNumber)) return EndBoundedRun(text, pos, kNumber, static_cast<size_t>(cl100k_.max_digits));
  const size_t punctuation = EndPunctuationRun(text, pos);
  return punctuation > pos ? punctuation : EndLinesOrSpaces(text, pos);
}

// Matches upper and lower case in a word: `p?U*W+` or else `p?U+W*`, each with an optional contraction. U and W share
// the letters without case and the marks. So U* may have to give back; the word then ends behind the last shared
// letter.
size_t SplitPattern::EndO200k(std::string_view text, size_t pos) const {
  const Rune rune = RuneAt(text, pos);
  const bool may_be_prefix = !rune.Is(kNewline | kLetter | kNumber);
  const size_t begins[2] = {pos + rune.num_bytes, pos};
  size_t upper_ends[2] = {0, 0};
  for (int i = may_be_prefix ? 0 : 1; i < 2; ++i) {
    size_t end = begins[i];
    size_t after_last_shared = begins[i];
    for (Rune next = RuneAt(text, end); next.Is(kUpperWord); next = RuneAt(text, end)) {
      end += next.num_bytes;
      if (next.Is(kLowerWord)) after_last_shared = end;
    }
    upper_ends[i] = end;
    const size_t lower_end = SkipClass(text, end, kLowerWord);
    if (lower_end > end) return EndContraction(text, lower_end, Case::kIgnored);
    if (after_last_shared > begins[i]) return EndContraction(text, after_last_shared, Case::kIgnored);
  }
  for (int i = may_be_prefix ? 0 : 1; i < 2; ++i) {
    if (upper_ends[i] > begins[i]) return EndContraction(text, upper_ends[i], Case::kIgnored);
  }
  if (rune.Is(kNumber)) return EndBoundedRun(text, pos, kNumber, 3);
  const size_t punctuation = EndPunctuationRun(text, pos);
  return punctuation > pos ? punctuation : EndLinesOrSpaces(text, pos);
}

size_t SplitPattern::EndDeepSeekV3(std::string_view text, size_t pos) const {
  const Rune rune = RuneAt(text, pos);
  const size_t next = pos + rune.num_bytes;
  if (unicode::IsAsciiPunctuation(rune.code_point) && next < text.size() &&
      IsAsciiLetter(static_cast<uint8_t>(text[next]))) {
    size_t end = next;
    while (end < text.size() && IsAsciiLetter(static_cast<uint8_t>(text[end]))) ++end;
    return end;
  }
  if (rune.Is(kLetter | kMark)) return SkipClass(text, pos, kLetter | kMark);
  if (!rune.Is(kNewline | kPunctuation | kSymbol)) {
    const size_t word_end = SkipClass(text, next, kLetter | kMark);
    if (word_end > next) return word_end;
  }
  const size_t begin = rune.code_point == ' ' ? next : pos;
  const size_t punctuation = SkipClass(text, begin, kPunctuation | kSymbol);
  if (punctuation > begin) return SkipClass(text, punctuation, kNewline);
  return EndLinesOrSpaces(text, pos);
}

bool SplitPattern::InRanges(char32_t c) const {
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), std::pair<char32_t, char32_t>(c, 0x10FFFF));
  return after != ranges_.begin() && std::prev(after)->second >= c;
}

size_t SplitPattern::EndClassRange(std::string_view text, size_t pos) const {
  const auto end_of_run = [&](size_t begin) {
    size_t end = begin;
    for (size_t i = 0; i < max_run_; ++i) {
      const Rune rune = RuneAt(text, end);
      if (rune.num_bytes == 0 || !InRanges(rune.code_point)) break;
      end += rune.num_bytes;
    }
    return end;
  };
  const Rune rune = RuneAt(text, pos);
  if (space_before_ && rune.Is(kSpace)) {
    const size_t end = end_of_run(pos + rune.num_bytes);
    if (end > pos + rune.num_bytes) return end;
  }
  return end_of_run(pos);
}

}  // namespace penstock
