// Proves that UTF-8 is decoded as the Unicode standard says (every code point, every ill-formed kind), and that
// Printable and ReplaceInvalidUtf8 return valid text for any bytes.
#include "penstock/base/text.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

namespace penstock {
namespace {

using namespace std::string_literals;  // NOLINT(google-build-using-namespace): literals with NUL bytes

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, text);
    ASSERT_EQ(text.size(), c < 0x80 ? 1u : c < 0x800 ? 2u : c < 0x10000 ? 3u : 4u);
    const DecodedRune rune = DecodeUtf8(text, 0);
    ASSERT_TRUE(rune.valid) << static_cast<uint32_t>(c);
    ASSERT_EQ(rune.code_point, c);
    ASSERT_EQ(rune.num_bytes, static_cast<int>(text.size()));
    ASSERT_TRUE(IsUtf8(text));
    for (size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_FALSE(IsUtf8(text.substr(0, cut))) << static_cast<uint32_t>(c);
      ASSERT_FALSE(IsUtf8(text.substr(cut))) << static_cast<uint32_t>(c);
    }
  }
}

// An independent implementation of the standard's table 3-7: a sequence is well-formed if it encodes a scalar value in
// its shortest form.
bool IsWellFormed(const std::string& bytes) {
  const auto at = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])); };
  for (size_t i = 1; i < bytes.size(); ++i) {
    if ((at(i) & 0xC0) != 0x80) return false;
  }
  uint32_t c = 0;
  switch (bytes.size()) {
    case 1: return at(0) < 0x80;
    case 2: c = (at(0) & 0x1F) << 6 | (at(1) & 0x3F); return (at(0) & 0xE0) == 0xC0 && c >= 0x80;
    case 3:
      c = (at(0) & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
      return (at(0) & 0xF0) == 0xE0 && c >= 0x800 && (c < 0xD800 || c > 0xDFFF);
    default:
      c = (at(0) & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F);
      return (at(0) & 0xF8) == 0xF0 && c >= 0x10000 && c <= 0x10FFFF;
  }
}

TEST(Utf8, AgreesWithTheTableOnAllShortSequences) {
  const std::vector<int> tails = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xE0, 0xFF};
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string two = {static_cast<char>(a), static_cast<char>(b)};
      const DecodedRune rune = DecodeUtf8(two, 0);
      ASSERT_EQ(rune.valid && rune.num_bytes == 2, IsWellFormed(two)) << a << " " << b;
      ASSERT_EQ(rune.valid && rune.num_bytes == 1, IsWellFormed(two.substr(0, 1))) << a;
      for (const int c : tails) {
        const std::string three = two + static_cast<char>(c);
        const DecodedRune rune3 = DecodeUtf8(three, 0);
        ASSERT_EQ(rune3.valid && rune3.num_bytes == 3, IsWellFormed(three)) << a << " " << b << " " << c;
        for (const int d : {0x7F, 0x80, 0xBF, 0xC0}) {
          const std::string four = three + static_cast<char>(d);
          const DecodedRune rune4 = DecodeUtf8(four, 0);
          ASSERT_EQ(rune4.valid && rune4.num_bytes == 4, IsWellFormed(four)) << a << " " << b << " " << c << " " << d;
        }
      }
    }
  }
}

TEST(Utf8, InvalidBytesAdvanceByOne) {
  const DecodedRune rune = DecodeUtf8("\xe2\x82", 0);
  EXPECT_FALSE(rune.valid);
  EXPECT_EQ(rune.num_bytes, 1);
  EXPECT_EQ(rune.code_point, U'\xFFFD');
}

TEST(Utf8, FindInvalidGivesTheOffset) {
  EXPECT_EQ(FindInvalidUtf8(""), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8("plain \xc3\xa9 \xf0\x9f\x98\x80"), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8("ab\xff"), 2u);
  EXPECT_EQ(FindInvalidUtf8("\xc3\xa9\xed\xa0\x80"), 2u);  // a surrogate
  EXPECT_EQ(FindInvalidUtf8("a\xf0\x9f\x98"), 1u);
}

TEST(Utf8, ReplacesMaximalPrefixes) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(ReplaceInvalidUtf8("a\xf0\x9f\x98"
                               "b"),
            "a" + r + "b");
  // The standard's own example (section 3.9, table 3-8): 61 F1 80 80 E1 80 C2 62 80 63 80 BF 64.
  EXPECT_EQ(ReplaceInvalidUtf8("a\xf1\x80\x80\xe1\x80\xc2"
                               "b\x80"
                               "c\x80\xbf"
                               "d"),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(ReplaceInvalidUtf8("\xc0\xaf"), r + r);
  EXPECT_EQ(ReplaceInvalidUtf8("ok\0ok"s), "ok\0ok"s);
}

TEST(Printable, EscapesWhatATerminalWouldAct) {
  EXPECT_EQ(Printable("plain 'text' \\ stays"), "plain 'text' \\ stays");
  EXPECT_EQ(Printable("a\nb\tc\rd\0e\x1b[31m\x7f"s), "a\\nb\\tc\\x0dd\\x00e\\x1b[31m\\x7f");
  EXPECT_EQ(Printable("caf\xc3\xa9"), "caf\xc3\xa9");
  EXPECT_EQ(Printable("caf\xe9"), "caf\\xe9");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "31m"),
            "\\x9b"
            "31m");  // the one-byte CSI of ISO 6429
  EXPECT_EQ(Printable("a\xe2\x80\xa8"
                      "b"),
            "a\\u2028b");  // a line separator
  EXPECT_EQ(Printable("a\xe2\x80\xae"
                      "b"),
            "a\\u202eb");                             // right-to-left override
  EXPECT_EQ(Printable("\xef\xbb\xbfx"), "\\ufeffx");  // a byte-order mark
}

TEST(Printable, IsCut) {
  const std::string cut = Printable(std::string(10'000, 'x'));
  EXPECT_LT(cut.size(), 2100u);
  EXPECT_EQ(cut.substr(cut.size() - 3), "...");
  EXPECT_EQ(Printable(std::string(2000, 'x')), std::string(2000, 'x'));
}

TEST(EditDistance, CountsChangesAndSwapsOfNeighbours) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("seed", "seed"), 0);
  EXPECT_EQ(EditDistance("sed", "seed"), 1);
  EXPECT_EQ(EditDistance("sede", "seed"), 1);
  EXPECT_EQ(EditDistance("eesd", "seed"), 2);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(SimplifiedName, HasSmallLettersAlone) { EXPECT_EQ(SimplifiedName("Max-Tokens_2"), "maxtokens2"); }

TEST(Excerpt, CutsBetweenCodePoints) {
  EXPECT_EQ(Excerpt("abc", 3), "abc");
  EXPECT_EQ(Excerpt("abcd", 3), "abc...");
  EXPECT_EQ(Excerpt("ab\xc3\xa9", 3), "ab...");
  EXPECT_EQ(Excerpt("ab\xc3\xa9", 4), "ab\xc3\xa9");
  EXPECT_EQ(Excerpt("\xf0\x9f\x98\x80x", 3), "...");
  EXPECT_EQ(Excerpt(std::string(500, '\x80'), 3), "...");
}

RC_GTEST_PROP(Printable, IsOneValidLine, (std::vector<uint8_t> bytes)) {
  const std::string text(bytes.begin(), bytes.end());
  const std::string line = Printable(text);
  RC_ASSERT(IsUtf8(line));
  for (const char c : line) RC_ASSERT(static_cast<uint8_t>(c) >= 0x20);
  RC_ASSERT(Printable(line) == line);
}

RC_GTEST_PROP(ReplaceInvalidUtf8, YieldsValidTextAndKeepsValidText, (std::vector<uint8_t> bytes)) {
  const std::string text(bytes.begin(), bytes.end());
  const std::string replaced = ReplaceInvalidUtf8(text);
  RC_ASSERT(IsUtf8(replaced));
  RC_ASSERT(ReplaceInvalidUtf8(replaced) == replaced);
  RC_ASSERT((replaced == text) == IsUtf8(text));
}

}  // namespace
}  // namespace penstock
