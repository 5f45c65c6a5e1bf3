// Proves that compiled patterns find the matches of a backtracking engine (the expected values are Oniguruma's), that
// unsupported syntax is refused by name, and that hostile texts take linear time.
#include "penstock/tokenizer/split/split_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "penstock/base/status.h"
#include "penstock/tokenizer/split/split_pattern.h"
#include "penstock/tokenizer/split/unicode.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Pieces = std::vector<std::string>;

// Returns all matches, without the text between them. At each place, the first choice that matches counts.
Pieces Matches(std::string_view regex, std::string_view text) {
  const auto compiled = SplitRegex::Compile(regex, "test");
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  Pieces pieces;
  if (!compiled.ok()) return pieces;
  SplitRegex::Memo memo;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = compiled->MatchAt(text, pos, memo);
    if (end != SplitRegex::kNone && end > pos) {
      pieces.emplace_back(text.substr(pos, end - pos));
      pos = end;
    } else {
      pos += unicode::RuneAt(text, pos).num_bytes;
    }
  }
  return pieces;
}

TEST(SplitRegexTest, FirstAlternativeWins) {
  EXPECT_THAT(Matches("ab|abc|c", "abcab"), ElementsAre("ab", "c", "ab"));
  EXPECT_THAT(Matches("(?:ab|a)b", "abb ab"), ElementsAre("abb", "ab"));
}

TEST(SplitRegexTest, QuantifiersAreGreedyLazyAndPossessive) {
  EXPECT_THAT(Matches("a+b?", "aab ab b"), ElementsAre("aab", "ab"));
  EXPECT_THAT(Matches("a{2,3}", "aaaaaa a"), ElementsAre("aaa", "aaa"));
  EXPECT_THAT(Matches("a{2}", "aaaaa"), ElementsAre("aa", "aa"));
  EXPECT_THAT(Matches("xa+?", "xaaa"), ElementsAre("xa"));
  EXPECT_THAT(Matches("a++a|b", "aaab"), ElementsAre("b"));  // a possessive quantifier does not backtrack
  EXPECT_THAT(Matches("a+a|b", "aaab"), ElementsAre("aaa", "b"));
  EXPECT_THAT(Matches("(?>ab?)b", "abb ab"), ElementsAre("abb"));
  EXPECT_THAT(Matches("a{,x}", "a{,x}"), ElementsAre("a{,x}"));  // these are no bounds, so they are ordinary text
}

TEST(SplitRegexTest, LooksAndAnchors) {
  EXPECT_THAT(Matches(R"(\s+(?!\S)|\s)", "a   b  "), ElementsAre("  ", " ", "  "));
  EXPECT_THAT(Matches("(?<=a)b", "ab bb"), ElementsAre("b"));
  EXPECT_THAT(Matches("(?<!a)b", "ab bb"), ElementsAre("b", "b"));
  EXPECT_THAT(Matches(R"(a$)", "a\na b"), ElementsAre("a"));
  EXPECT_THAT(Matches(R"(^a)", "a\naa"), ElementsAre("a", "a"));
  EXPECT_THAT(Matches(R"(a\z)", "a\na"), ElementsAre("a"));
  EXPECT_THAT(Matches(R"(\bab\b)", "ab abc ab"), ElementsAre("ab", "ab"));
  EXPECT_THAT(Matches(R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))", "1234567 12"), ElementsAre("1", "234", "567", "12"));
}

TEST(SplitRegexTest, ClassesHavePropertiesRangesAndIntersections) {
  EXPECT_THAT(Matches(R"([\p{L}&&[^a-c]]+)", "xaby\u00e9"), ElementsAre("x", "y\u00e9"));
  EXPECT_THAT(Matches(R"([\p{Lu}\p{Lt}]+)", "ABcD"), ElementsAre("AB", "D"));
  EXPECT_THAT(Matches(R"(\p{Han}+)", "ab\u4e2d\u6587\u3042"), ElementsAre("\u4e2d\u6587"));
  EXPECT_THAT(Matches(R"(\P{L}+)", "a1-b"), ElementsAre("1-"));
  EXPECT_THAT(Matches(R"([^\s\d]+)", "a1 b\u00a0c"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(Matches(R"([\x{4E00}-\x{9FA5}\u3042]+)", "\u4e2d\u3042\u3044"), ElementsAre("\u4e2d\u3042"));
  EXPECT_THAT(Matches(R"([\]\-x]+)", "x-]y"), ElementsAre("x-]"));
  EXPECT_THAT(Matches("[]a]+", "a]b"), ElementsAre("a]"));
  EXPECT_THAT(Matches(R"(.+)", "ab\nc"), ElementsAre("ab", "c"));
}

TEST(SplitRegexTest, CaseCanBeIgnored) {
  EXPECT_THAT(Matches("(?i:'s|'ll)", "'S 'lL 'x"), ElementsAre("'S", "'lL"));
  EXPECT_THAT(Matches("(?i)'s", "'\u017f"), ElementsAre("'\u017f"));  // the long s
  EXPECT_THAT(Matches("(?i:[a-c])x", "Bx bX"), ElementsAre("Bx"));
}

TEST(SplitRegexTest, WhatIsNotUnderstoodIsRefusedByName) {
  for (const auto& [regex, message] : std::vector<std::pair<std::string, std::string>>{
           {R"((a)\1)", "the escape \\1"},
           {"(a", "a group is not closed"},
           {"a)", "a ')' without '('"},
           {"[a", "a class is not closed"},
           {"[b-a]", "ends before it begins"},
           {R"(\p{Greek})", "the property Greek"},
           {"(?:a?)*", "repeats a part that may be empty"},
           {"(?<=ab)c", "look-behind at more than one"},
           {"(?P<n>a)", "an unknown kind of group"},
           {"+a", "a quantifier without anything"},
           {"a{3,2}", "bounds of a repetition"},
           {"a{5000}", "bounds of a repetition"},
           {"(?:(?:a{999}){999}){999}", "it is too long"},
           {std::string(40, '(') + std::string(40, ')'), "nested more than 16 deep"},
           {"a\\", "ends with a backslash"}}) {
    const auto compiled = SplitRegex::Compile(regex, "here");
    ASSERT_FALSE(compiled.ok()) << regex;
    EXPECT_EQ(FaultOf(compiled.status()), Fault::kModel);
    EXPECT_THAT(Message(compiled.status()), HasSubstr("here: the pattern"));
    EXPECT_THAT(Message(compiled.status()), HasSubstr(message));
  }
}

// Each of these takes hours in an engine that does not remember what it has tried.
TEST(SplitRegexTest, HostileTextsTakeLinearTime) {
  const std::string as(1 << 20, 'a');
  const std::string digits(1 << 20, '1');
  EXPECT_THAT(Matches("(?:a+)+b", as), testing::IsEmpty());
  EXPECT_THAT(Matches("a*b", as), testing::IsEmpty());
  EXPECT_THAT(Matches("(?:a|a)*b", as), testing::IsEmpty());
  EXPECT_EQ(Matches("(?=(?:1{3})+(?!1))1", digits).size(), digits.size() / 3);
  EXPECT_EQ(Matches(R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))", digits).size(), digits.size() / 3 + 1);
}

TEST(SplitPatternTest, EmptyMatchesCut) {
  const auto pattern = SplitPattern::FromRegex(R"((?=(?:\d{3})+(?!\d)))", "test");
  ASSERT_TRUE(pattern.ok()) << pattern.status();
  const SplitPattern::Match match = pattern->Next("x12345", 0);
  EXPECT_EQ(match.begin, 3u);
  EXPECT_EQ(match.end, 3u);
}

}  // namespace
}  // namespace penstock
