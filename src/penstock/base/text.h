// UTF-8: validates and decodes it, and makes bytes from outside printable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock {

struct DecodedRune {
  char32_t code_point;  // U+FFFD when the bytes at this place are not UTF-8
  int num_bytes;        // >= 1; 1 when invalid
  bool valid;
};

// Decodes the code point that starts at text[pos]. Overlong forms, surrogates and values above U+10FFFF are
// invalid. REQUIRES: pos < text.size().
DecodedRune DecodeUtf8(std::string_view text, size_t pos);

void AppendUtf8(char32_t code_point, std::string& out);

// Returns the offset of the first byte that is not UTF-8, or npos.
size_t FindInvalidUtf8(std::string_view text);
inline bool IsUtf8(std::string_view text) { return FindInvalidUtf8(text) == std::string_view::npos; }

// Returns the text with U+FFFD in place of invalid bytes (one for each maximal invalid prefix, as the Unicode standard
// recommends).
std::string ReplaceInvalidUtf8(std::string_view text);

// Returns one line that a terminal can show: control characters become \n, \t, \x1b, \u202e ..., invalid bytes \xNN.
// Cuts it after 2000 bytes.
std::string Printable(std::string_view text);

// Escapes the text for an element or an attribute of HTML or XML.
std::string EscapeXml(std::string_view text);

// Shortens a name from outside for the middle of a message: at most `max_bytes` of it, then "...", so that the text
// after the name is not cut. Never cuts inside a code point.
std::string Excerpt(std::string_view text, size_t max_bytes = 200);

// Returns how many bytes to insert, remove, change or swap with their neighbours make `b` of `a`, for "did you mean".
// Takes a time of a.size() * b.size().
size_t EditDistance(std::string_view a, std::string_view b);

// Returns a name in small letters, without "_" and "-", so that its other spellings become the same.
std::string SimplifiedName(std::string_view name);

// Returns whether a byte of UTF-8 is not the first one of its character.
inline bool ContinuesCharacter(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// Return a part of the text: without the white space at its beginning, or at its end.
std::string_view WithoutLeadingSpace(std::string_view text);
std::string_view WithoutTrailingSpace(std::string_view text);

}  // namespace penstock
