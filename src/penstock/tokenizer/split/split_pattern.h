// The regular expressions with which tokenizers split text.
//
// The most common ones have hand-written scanners: patterns that are recognised by their exact text, and the small
// family `\s?[class]+`. All others are compiled (split_regex.h). Either way, splitting takes time linear in the text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/tokenizer/split/split_regex.h"

namespace penstock {

class SplitPattern {
 public:
  struct Match {
    size_t begin;
    size_t end;  // begin == end is an empty match, or no match if both are text.size()
  };

  // Returns kModel, naming the pattern and `where`, if the pattern cannot be compiled.
  static absl::StatusOr<SplitPattern> FromRegex(std::string_view regex, std::string_view where);
  // Matches each occurrence of `text`, which is not empty.
  static SplitPattern Literal(std::string_view text);
  // Matches each code point of the classes (unicode.h), or each run of them.
  static SplitPattern Classes(uint16_t classes, bool runs);
  // The default pattern of a ByteLevel pre-tokenizer.
  static SplitPattern Gpt2();
  // Matches `\w+|[^\w\s]+`.
  static SplitPattern Words();
  // Matches each punctuation character and each ASCII symbol.
  static SplitPattern Punctuation();

  // Returns the leftmost match in `text` that begins at `pos` or later. REQUIRES: pos < text.size(), text is UTF-8.
  // Pass the same `memo` for all matches of one text.
  Match Next(std::string_view text, size_t pos, SplitRegex::Memo& memo) const;
  Match Next(std::string_view text, size_t pos) const;

 private:
  enum class Kind : uint8_t {
    kGpt2,
    kCl100k,
    kO200k,
    kDeepSeekV3,
    kClasses,
    kClassRange,
    kFinalSpace,
    kLiteral,
    kWords,
    kPunctuation,
    kRegex,
  };
  // The differences within the family of cl100k.
  struct Cl100kOptions {
    int max_digits = 3;
    uint16_t word = 0;                // classes that make words; set by FromRegex
    bool newlines_and_slash = false;  // what may follow punctuation: [\r\n/] instead of [\r\n]
  };

  static Match NextLineEnd(std::string_view text, size_t pos);
  size_t EndAt(std::string_view text, size_t pos) const;
  size_t EndGpt2(std::string_view text, size_t pos) const;
  size_t EndCl100k(std::string_view text, size_t pos) const;
  size_t EndO200k(std::string_view text, size_t pos) const;
  size_t EndDeepSeekV3(std::string_view text, size_t pos) const;
  size_t EndClassRange(std::string_view text, size_t pos) const;
  size_t EndPunctuationRun(std::string_view text, size_t pos) const;
  bool InRanges(char32_t c) const;
  static std::optional<SplitPattern> ParseClassRange(std::string_view regex);

  Kind kind_ = Kind::kGpt2;
  Cl100kOptions cl100k_;
  uint16_t classes_ = 0;
  size_t max_run_ = 0;                                 // for kClasses and kClassRange, in code points
  bool space_before_ = false;                          // kClassRange: \s? before the class
  std::vector<std::pair<char32_t, char32_t>> ranges_;  // sorted, both ends included
  std::string literal_;
  std::shared_ptr<const SplitRegex> regex_;
};

}  // namespace penstock
