// Proves that masks allow exactly the tokens that keep an answer valid, and that answers end.
#include <gtest/gtest.h>

#include <thread>

#include "penstock/base/status.h"
#include "tests/environment.h"
#include "tests/grammar/compiled.h"

namespace penstock {
namespace {

using Kind = OutputFormat::Kind;

const uint64_t kSeed = FromEnvironment("PENSTOCK_TEST_SEED", 1);

const OutputFormat kFormats[] = {
    {Kind::kJson, ""},
    {Kind::kRegex, "(?:[a-c]{2,300}é|true\\d+)*"},
    {Kind::kRegex, "(?:a|ab|abc){5,400}\n"},
    {Kind::kGrammar, "root ::= \"[\" (root (\",\" root)*)? \"]\" | \"abc\" | \"12\" [0-9]*"},
    {Kind::kJsonSchema, R"({"type": "object", "properties": {"abc": {"type": "string", "maxLength": 300},
                            "n": {"type": "array", "items": {"type": "integer"}, "maxItems": 5}},
                            "required": ["abc"], "additionalProperties": {"type": "null"}})"},
    {Kind::kJsonSchema, R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties":
                            {"v": {"enum": ["abc", "12", true, null]}, "next": {"anyOf": [{"$ref": "#/$defs/node"},
                            {"type": "null"}]}}, "required": ["v", "next"], "additionalProperties": false}}})"},
    {Kind::kSequence,
     "",
     {{Kind::kRepeat, "", {{Kind::kString, "", {{Kind::kText, "abc"}}}}},
      {Kind::kText, "abc"},
      {Kind::kChoice,
       "",
       {{Kind::kTaggedJson, R"({"type": "array", "maxItems": 2})"},
        {Kind::kString, R"({"minLength": 2, "maxLength": 9})"}}}}}};

TEST(ConstraintTest, MasksAreThoseOfEachTokenAlone) {
  for (const OutputFormat& format : kFormats) {
    const auto constraint = Compiled(format);
    std::mt19937_64 random(kSeed);
    for (int walk = 0; walk < 8; ++walk) {
      ConstraintState state(constraint, false);
      for (int i = 0; i < 60 && state.can_go_on(); ++i) {
        grammar::TokenMask mask(grammar::MaskWords(constraint->trie().vocab_size()), 0), again = mask;
        ASSERT_TRUE(state.AllowedTokens(mask).ok());
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < constraint->trie().vocab_size(); ++id) {
          ConstraintState next = state;
          ASSERT_EQ(next.Accept(id), grammar::HasToken(mask, id)) << format.text << " token " << state.TokenText(id);
          if (grammar::HasToken(mask, id)) allowed.push_back(id);
        }
        ASSERT_FALSE(allowed.empty());
        // Kept masks are the same.
        ASSERT_TRUE(state.AllowedTokens(again).ok());
        ASSERT_EQ(mask, again);
        ASSERT_TRUE(state.Accept(allowed[random() % allowed.size()]));
      }
    }
  }
}

TEST(ConstraintTest, RandomAnswersEnd) {
  for (const OutputFormat& format : kFormats) {
    const auto constraint = Compiled(format);
    int num_ended = 0;
    for (uint64_t seed = 0; seed < 30; ++seed) {
      const auto answer = RandomAnswer(constraint, kSeed + seed);
      if (!answer.has_value()) continue;
      ++num_ended;
      EXPECT_TRUE(AcceptsAnswer(constraint, *answer)) << *answer;
    }
    EXPECT_GT(num_ended, 10) << format.text;
  }
}

TEST(ConstraintTest, ThreadsShareMasks) {
  constexpr int kNumThreads = 4, kMaxTokens = 200;
  const auto vocabulary = std::make_shared<const grammar::FormatVocabulary>(ByteVocabulary()->trie());
  std::vector<std::shared_ptr<const Constraint>> shared;
  for (const OutputFormat& format : kFormats) shared.push_back(*Constraint::Compile(format, vocabulary));
  std::vector<std::vector<std::optional<std::string>>> answers(kNumThreads);
  std::vector<std::thread> threads;
  for (auto& own : answers) {
    threads.emplace_back([&shared, &own] {
      for (const auto& constraint : shared) own.push_back(RandomAnswer(constraint, kSeed, kMaxTokens));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::optional<std::string>> alone;
  for (const OutputFormat& format : kFormats) alone.push_back(RandomAnswer(Compiled(format), kSeed, kMaxTokens));
  for (const auto& own : answers) EXPECT_EQ(own, alone);
}

TEST(ConstraintTest, ForcedTextIsWhatMustCome) {
  const auto constraint = Compiled(kFormats[5]);
  ConstraintState state(constraint, false);
  EXPECT_EQ(state.ForcedText(100), "{");
  ASSERT_TRUE(state.Accept('{'));
  EXPECT_EQ(state.ForcedText(100), "");  // white space may come
  ASSERT_TRUE(state.Accept('"'));
  EXPECT_EQ(state.ForcedText(100), "v\":");
  EXPECT_EQ(state.ForcedText(2), "v\"");
}

TEST(ConstraintTest, ComposedFormats) {
  const OutputFormat without = {Kind::kString, "", {{Kind::kText, "</a>"}, {Kind::kRegex, "-?[0-9]+"}}};
  const auto tag = Compiled({Kind::kSequence, "", {without, {Kind::kText, "</a>"}}});
  for (const char* text : {"</a>", "x</a>", "12 </a>", "</b</a>", "\n<</a>", "é</a>"}) {
    EXPECT_TRUE(AcceptsAnswer(tag, text)) << text;
  }
  for (const char* text : {"12</a>", "-1</a>", "x</a></a>", "x</a> </a>", "x"}) {
    EXPECT_FALSE(AcceptsAnswer(tag, text)) << text;
  }
  // Behind the tag nothing can follow.
  ConstraintState state(tag, false);
  for (const char c : std::string("x</a>")) ASSERT_TRUE(state.Accept(static_cast<uint8_t>(c)));
  EXPECT_TRUE(state.is_complete() && !state.can_go_on());

  const auto strings = Compiled({Kind::kString,
                                 R"({"anyOf": [{"enum": ["a\"b", 5, "</a>"]}, {"type": "string",
      "pattern": "^x+$", "maxLength": 3}, {"type": "null"}]})",
                                 {{Kind::kText, "</a>"}}});
  for (const char* text : {"a\"b", "x", "xxx"}) EXPECT_TRUE(AcceptsAnswer(strings, text)) << text;
  for (const char* text : {"", "5", "null", "xxxx", "</a>", "\"x\""})
    EXPECT_FALSE(AcceptsAnswer(strings, text)) << text;

  const auto tagged = Compiled({Kind::kTaggedJson, R"({"type": "object", "properties": {"<": {"enum": ["<"]},
      "s": {"type": "string"}}})"});
  EXPECT_TRUE(AcceptsAnswer(tagged, R"({"\u003c": "\u003c", "s": "\u003C>"})"));
  EXPECT_FALSE(AcceptsAnswer(tagged, R"({"s": "<"})"));
}

TEST(ConstraintTest, MarksAreTokensThatNoTextForms) {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 128; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  texts.push_back(grammar::MarkText("<m>"));
  const auto vocabulary = std::make_shared<const grammar::FormatVocabulary>(grammar::TokenTrie(texts));
  const OutputFormat any = {Kind::kString};
  const auto constraint =
      *Constraint::Compile({Kind::kSequence, "", {any, {Kind::kText, grammar::MarkText("<m>") + "{"}}}, vocabulary);
  ConstraintState state(constraint, false);
  for (const char c : std::string("<m>{")) ASSERT_TRUE(state.Accept(c));
  EXPECT_FALSE(state.is_complete());
  ASSERT_TRUE(state.Accept(128));
  EXPECT_FALSE(state.Accept(128));
  EXPECT_EQ(state.ForcedText(9), "{");
  ASSERT_TRUE(state.Accept('{'));
  EXPECT_TRUE(state.is_complete() && !state.can_go_on());
}

TEST(ConstraintTest, AmbiguityIsBounded) {
  // Ways to split the text into "a" and "aa" differ in their counts, up to the limit of threads.
  const auto constraint = Compiled({Kind::kRegex, "(?:(?:a|aa|aaa){1,100000}b?){1,100000}"});
  ConstraintState state(constraint, false);
  absl::Status status;
  for (int i = 0; i < 3000 && status.ok(); ++i) {
    grammar::TokenMask mask(grammar::MaskWords(constraint->trie().vocab_size()), 0);
    status = state.AllowedTokens(mask);
    ASSERT_TRUE(!status.ok() || state.Accept('a'));
  }
  EXPECT_EQ(FaultOf(status), Fault::kInput);
}

TEST(ConstraintTest, ForbidsTokensThatLoseASpaceAtTheStart) {
  const std::vector<std::string> texts = {"a", " a", ""};
  const auto vocabulary = std::make_shared<const grammar::FormatVocabulary>(grammar::TokenTrie(texts));
  const auto constraint = *Constraint::Compile({Kind::kRegex, " ?a"}, vocabulary);
  grammar::TokenMask mask(1, 0);
  ASSERT_TRUE(ConstraintState(constraint, true).AllowedTokens(mask).ok());
  EXPECT_EQ(mask[0], 0b011u);
}

}  // namespace
}  // namespace penstock
