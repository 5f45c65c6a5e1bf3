// Unicode classes of code points, as the regular expressions of tokenizers use them.
//
// The tables come from utf8proc. Debian 12's utf8proc 2.8.0 has Unicode 14; Hugging Face's tokenizers follow newer
// versions. The two differ only for code points assigned since (Unicode 15: 4,489 of them, mostly CJK extension H).
// These count as "other" here and may split differently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/base/text.h"

namespace penstock::unicode {

// One bit per class; a code point may have several.
inline constexpr uint16_t kLetter = 1 << 0;       // \p{L}
inline constexpr uint16_t kNumber = 1 << 1;       // \p{N}
inline constexpr uint16_t kMark = 1 << 2;         // \p{M}
inline constexpr uint16_t kPunctuation = 1 << 3;  // \p{P}
inline constexpr uint16_t kSymbol = 1 << 4;       // \p{S}
inline constexpr uint16_t kSpace = 1 << 5;        // \s: the property White_Space
inline constexpr uint16_t kUpperWord = 1 << 6;    // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
inline constexpr uint16_t kLowerWord = 1 << 7;    // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
inline constexpr uint16_t kNewline = 1 << 8;      // [\r\n]
inline constexpr uint16_t kWord = 1 << 9;         // \w

uint16_t ClassesOf(char32_t code_point);

// Returns the general category as one bit.
uint32_t CategoryBit(char32_t code_point);
// Returns the categories that a name in a regular expression means (L, Lu, Letter ...), or 0 for an unknown name.
uint32_t CategoryMask(std::string_view name);
// Returns the sorted code points of a script (Han, Hiragana, Katakana, Hangul, Thai ...), or none for an unknown name.
std::span<const std::pair<char32_t, char32_t>> ScriptRanges(std::string_view name);

char32_t ToLower(char32_t code_point);
char32_t ToUpper(char32_t code_point);

// A code point of a text with its classes. At the end of the text, `num_bytes` and `classes` are 0.
struct Rune {
  char32_t code_point = 0;
  uint16_t classes = 0;
  uint16_t num_bytes = 0;

  bool Is(uint16_t any_of) const { return (classes & any_of) != 0; }
};

Rune RuneAt(std::string_view text, size_t pos);

// Returns the end of the run of code points from `pos` on that have one of the classes.
size_t SkipClass(std::string_view text, size_t pos, uint16_t any_of);

// Returns the start of the code point that ends at `end`. REQUIRES: 0 < end <= text.size(), text is UTF-8.
size_t PreviousRune(std::string_view text, size_t end);

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Appends the normal form of `text` (UTF-8), in O(n log n) even for long runs of combining marks.
void AppendNormalized(std::string_view text, NormalForm form, std::string& out);

// Returns the end of the shortest piece from `pos` on that can be normalised without what follows it.
size_t NormalizationPieceEnd(std::string_view text, size_t pos);

inline bool IsAsciiPunctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

}  // namespace penstock::unicode
