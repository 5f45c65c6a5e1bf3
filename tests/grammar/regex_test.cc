// Proves which texts regular expressions match, and that what automata cannot match is refused.
#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "tests/grammar/compiled.h"

namespace penstock {
namespace {

std::shared_ptr<const Constraint> Regex(const std::string& pattern) {
  return Compiled({OutputFormat::Kind::kRegex, pattern});
}

TEST(RegexTest, MatchesWholeTexts) {
  const auto constraint = Regex(R"(^(?:ab|cd)+[x-z\d]{2,3}\.é?$)");
  EXPECT_TRUE(AcceptsAnswer(constraint, "abx1."));
  EXPECT_TRUE(AcceptsAnswer(constraint, "abcdz99.é"));
  EXPECT_FALSE(AcceptsAnswer(constraint, "abx."));
  EXPECT_FALSE(AcceptsAnswer(constraint, "abx1"));
  EXPECT_FALSE(AcceptsAnswer(constraint, "xabx1."));
}

TEST(RegexTest, CountsFar) {
  const auto constraint = Regex("[^a]{3,5000}b");
  EXPECT_FALSE(AcceptsAnswer(constraint, "xxb"));
  EXPECT_TRUE(AcceptsAnswer(constraint, "xxxb"));
  EXPECT_TRUE(AcceptsAnswer(constraint, std::string(4999, 'y') + "éb"));
  EXPECT_FALSE(AcceptsAnswer(constraint, std::string(5001, 'y') + "b"));
}

TEST(RegexTest, ClassesHaveWhatPythonAndEcmaScriptShare) {
  EXPECT_FALSE(AcceptsAnswer(Regex(R"(\d)"), "٣"));
  EXPECT_FALSE(AcceptsAnswer(Regex(R"(\D)"), "٣"));
  EXPECT_FALSE(AcceptsAnswer(Regex(R"(\W)"), "é"));
  EXPECT_FALSE(AcceptsAnswer(Regex(R"(\S)"), "\xC2\xA0"));
  EXPECT_TRUE(AcceptsAnswer(Regex(R"(\S)"), "é"));
  EXPECT_FALSE(AcceptsAnswer(Regex("."), "\n"));
}

TEST(RegexTest, LooksAhead) {
  // A password, as many schemas have it.
  const auto password = Regex(R"(^(?=.*[A-Z])(?=.*\d)(?!.*secret)[A-Za-z\d]{4,}$)");
  EXPECT_TRUE(AcceptsAnswer(password, "abcD1"));
  EXPECT_TRUE(AcceptsAnswer(password, "1secreD"));
  for (const char* text : {"abcde1", "abcDe", "aD1", "A1secret", "abcD1-"}) {
    EXPECT_FALSE(AcceptsAnswer(password, text)) << text;
  }
  // Decimals of at most 6 digits, 2 of them behind the point, as pydantic writes them.
  const auto decimal = Regex(R"(^(?!^[-+.]*$)[+-]?0*(?:\d{0,4}|(?=[\d.]{1,7}0*$)\d{0,4}\.\d{0,2}0*$))");
  for (const char* text : {"1234.5", "-0.25", "007", ".5", "12.50000"}) {
    EXPECT_TRUE(AcceptsAnswer(decimal, text)) << text;
  }
  for (const char* text : {"", "-", ".", "12345", "1.255", "-."}) {
    EXPECT_FALSE(AcceptsAnswer(decimal, text)) << text;
  }
  EXPECT_FALSE(AcceptsAnswer(Regex("(?!a|b$)[a-c]+"), "b"));
  EXPECT_TRUE(AcceptsAnswer(Regex("(?!a|b$)[a-c]+"), "ba"));
  // Characters that only one of Python and ECMAScript takes for digits or spaces do not stand where none may.
  EXPECT_FALSE(AcceptsAnswer(Regex(R"((?!\d)[^x])"), "٣"));
  EXPECT_FALSE(AcceptsAnswer(Regex(R"([^\s])"), "\xC2\x85"));
  EXPECT_FALSE(AcceptsAnswer(Regex("(?!a$)[^x]+"), "a\n"));
  EXPECT_TRUE(AcceptsAnswer(Regex("a(?:b$|c)"), "ac"));
}

TEST(RegexTest, RefusesWhatAutomataCannotMatch) {
  for (const char* pattern : {"(a)\\1",   "(?=a)*b",      "(?<!a)b", "(?i)a",       "\\bab",
                              "a**",      "*a",           "a(b",     "a)b",         "[b-a]",
                              "[",        "\\p{L}",       "a{3,2}",  "a{,2}",       "x$y",
                              "a^b",      "[]",           "\\ud800", "a{99999999}", "[^\\d\\D]{2}[^\\x00-\\u{10ffff}]",
                              "a(?!^b)c", "(?:(?=a)|b)c", "(?=a))"}) {
    EXPECT_FALSE(grammar::CompileFormat({OutputFormat::Kind::kRegex, pattern}).ok()) << pattern;
  }
}

TEST(RegexTest, RefusesWhatTakesTooMuch) {
  EXPECT_FALSE(grammar::CompileFormat({OutputFormat::Kind::kRegex, "(a|b)*a(a|b){30}"}).ok());
  const std::string deep = std::string(3000, '(') + "a" + std::string(3000, ')');
  EXPECT_FALSE(grammar::CompileFormat({OutputFormat::Kind::kRegex, deep}).ok());
  EXPECT_FALSE(grammar::CompileFormat({OutputFormat::Kind::kRegex, std::string(70000, 'a')}).ok());
  // A class of many ranges, many times: each copy is small, but not all of them together.
  std::string ranges = "[";
  for (char32_t code = 0x4E00; code < 0x4E00 + 4000; code += 2) AppendUtf8(code, ranges);
  ranges += "]{100000}";
  const auto compiled = grammar::CompileFormat(
      {OutputFormat::Kind::kJsonSchema, R"({"type": "string", "minLength": 1, "pattern": "^)" + ranges + "$\"}"});
  EXPECT_NE(Message(compiled.status()).find("too much memory"), std::string::npos) << compiled.status();
}

}  // namespace
}  // namespace penstock
