// Proves which texts grammars match, and that faulty grammars are refused with their place.
#include <gtest/gtest.h>

#include "penstock/base/status.h"
#include "tests/grammar/compiled.h"

namespace penstock {
namespace {

std::shared_ptr<const Constraint> Gbnf(const std::string& text) {
  return Compiled({OutputFormat::Kind::kGrammar, text});
}

std::string GbnfError(const std::string& text) {
  return Message(grammar::CompileFormat({OutputFormat::Kind::kGrammar, text}).status());
}

TEST(GbnfTest, MatchesRulesThatRecur) {
  const auto constraint = Gbnf(R"x(
# Sums of numbers and groups.
root ::= term ("+" term)*
term ::= [0-9]+ | "(" root ")"
  | "x" "²"{1,2}
)x");
  EXPECT_TRUE(AcceptsAnswer(constraint, "1+(2+(33+x²))+x²²"));
  EXPECT_FALSE(AcceptsAnswer(constraint, "1+(2"));
  EXPECT_FALSE(AcceptsAnswer(constraint, "1)"));
  EXPECT_FALSE(AcceptsAnswer(constraint, "x²²²"));
}

TEST(GbnfTest, MatchesDeeplyNestedTexts) {
  const auto constraint = Gbnf("root ::= \"[\" root \"]\" | \"x\"");
  EXPECT_TRUE(AcceptsAnswer(constraint, std::string(6000, '[') + "x" + std::string(6000, ']')));
  EXPECT_FALSE(AcceptsAnswer(constraint, std::string(6000, '[') + "x" + std::string(5999, ']')));
}

TEST(GbnfTest, MatchesInAllWays) {
  const auto constraint = Gbnf("root ::= a root \"b\" | c root \"d\" | \"\"\na ::= \"x\"\nc ::= \"x\" | \"xx\"");
  EXPECT_TRUE(AcceptsAnswer(constraint, "xxxbd"));
  EXPECT_TRUE(AcceptsAnswer(constraint, "xxxdb"));
  EXPECT_FALSE(AcceptsAnswer(constraint, "xxxbb"));
}

TEST(GbnfTest, ReadsEscapesAndClasses) {
  const auto constraint = Gbnf(R"(root ::= "\"\\\n\x41é" [^\]a-c] . [\U0001F600-\U0001F64F])");
  EXPECT_TRUE(AcceptsAnswer(constraint, "\"\\\nAéd\n😀"));
  EXPECT_FALSE(AcceptsAnswer(constraint, "\"\\\nAéb\n😀"));
}

TEST(GbnfTest, NamesThePlaceOfFaults) {
  EXPECT_EQ(GbnfError("root ::= foo"), "line 1, column 10: the rule foo is not defined");
  EXPECT_EQ(GbnfError("a ::= \"b\""), "the grammar has no rule named root");
  EXPECT_EQ(GbnfError("root ::= \"a"), "line 1, column 12: expected \"");
  EXPECT_EQ(GbnfError("root ::= a\na ::= b \"x\"\nb ::= a | \"y\""),
            "a refers to itself before it has matched anything (left recursion)");
  EXPECT_EQ(GbnfError("root ::= \"a\" root"), "no text matches it");
  EXPECT_EQ(GbnfError("root ::= " + std::string(500, '(') + "\"a\"" + std::string(500, ')')),
            "line 1, column 111: groups are nested deeper than 100");
}

TEST(GbnfTest, ReadsHiddenLeftRecursion) {
  EXPECT_NE(GbnfError("root ::= a\na ::= b? a \"x\" | \"y\"\nb ::= \"z\""), "");
  EXPECT_NE(GbnfError("root ::= a{5000}\na ::= b*\nb ::= a? \"z\""), "");
}

}  // namespace
}  // namespace penstock
