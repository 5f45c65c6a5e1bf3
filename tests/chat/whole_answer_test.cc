// Proves for each family that random answers which follow the format of a whole answer are read as what was demanded:
// content in its format behind free reasoning, and calls whose arguments follow their schemas.
#include "penstock/chat/answer/whole_answer.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <regex>
#include <set>

#include "penstock/base/status.h"
#include "penstock/grammar/constraint.h"
#include "tests/chat/answer_testing.h"
#include "tests/effort.h"
#include "tests/environment.h"

namespace penstock::testing_answers {
namespace {

const uint64_t kSeed = FromEnvironment("PENSTOCK_TEST_SEED", 1);

constexpr std::string_view kSchema = R"({"type": "object", "properties": {
    "city": {"type": "string", "minLength": 2, "maxLength": 6}, "unit": {"enum": ["C", "F"]},
    "days": {"type": "integer", "minimum": 1, "maximum": 14}, "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2}},
    "required": ["city", "unit", "days"], "additionalProperties": false, "$defs": {"tag": {"type": "string"}}})";

std::string ToolsWith(bool is_strict) {
  json::array tools;
  for (const char* name : {"weather", "tides"}) {
    tools.push_back(json::object{
        {"type", "function"},
        {"function",
         json::object{{"name", name}, {"strict", is_strict}, {"parameters", *ParseJson(kSchema, Fault::kInput)}}}});
  }
  return json::serialize(tools);
}

void ExpectValid(std::string_view text, const std::string& name) {
  const auto value = ParseJson(text, Fault::kInput);
  ASSERT_TRUE(value.ok() && value->is_object()) << name << ": " << text;
  const json::object& object = value->get_object();
  const auto is = [&](std::string_view key, auto&& test) {
    const json::value* member = object.if_contains(key);
    EXPECT_TRUE(member != nullptr && test(*member)) << name << ": " << key << " in " << text;
  };
  is("city", [](const json::value& city) {
    if (!city.is_string()) return false;
    const auto length = std::ranges::count_if(View(city.get_string()), [](char c) { return !ContinuesCharacter(c); });
    return length >= 2 && length <= 6;
  });
  is("unit", [](const json::value& unit) { return unit == "C" || unit == "F"; });
  is("days",
     [](const json::value& days) { return days.is_int64() && days.get_int64() >= 1 && days.get_int64() <= 14; });
  for (const auto& [key, member] : object) {
    if (key == "zip") {
      EXPECT_TRUE(member.is_string() || member.is_null()) << name << ": " << text;
    } else if (key == "tags") {
      ASSERT_TRUE(member.is_array() && member.get_array().size() <= 2) << name << ": " << text;
      for (const json::value& tag : member.get_array()) EXPECT_TRUE(tag.is_string()) << name << ": " << text;
    } else {
      EXPECT_TRUE(key == "city" || key == "unit" || key == "days") << name << ": " << text;
    }
  }
}

// Draws an answer, and now and then one of the family's marks as a whole. Returns nothing if it does not end.
std::optional<std::vector<TokenId>> RandomIds(const Model& model, const std::shared_ptr<const Constraint>& constraint,
                                              std::mt19937& random) {
  constexpr int kMaxSteps = 4000;
  std::vector<std::string> marks = {model.format().open,
                                    model.format().close,
                                    "<|end|>",
                                    "<|start|>assistant",
                                    "null",
                                    "</arg_key>\n<arg_value>",
                                    "</arg_value>\n",
                                    "</parameter>\n",
                                    "\n</parameter>\n",
                                    "</arg_key><arg_value>",
                                    "</arg_value>"};
  for (const auto* more : {&model.format().starts, &model.format().ends}) {
    marks.insert(marks.end(), more->begin(), more->end());
  }
  ConstraintState state(constraint, false);
  std::vector<TokenId> answer;
  const auto take = [&](const std::vector<TokenId>& ids) {
    ConstraintState next = state;
    for (const TokenId id : ids) {
      if (!next.Accept(id)) return;
    }
    state = next;
    answer.insert(answer.end(), ids.begin(), ids.end());
  };
  for (int i = 0; i < kMaxSteps; ++i) {
    if (state.is_complete() && (!state.can_go_on() || random() % 8 == 0)) return answer;
    if (random() % 6 == 0) take(model.Encode(marks[random() % marks.size()]));
    grammar::TokenMask mask(grammar::MaskWords(constraint->trie().vocab_size()), 0);
    EXPECT_TRUE(state.AllowedTokens(mask).ok());
    std::vector<TokenId> allowed, closing;
    for (TokenId id = 0; id < constraint->trie().vocab_size(); ++id) {
      if (!grammar::HasToken(mask, id)) continue;
      allowed.push_back(id);
      if (state.TokenText(id).find_first_of("\"]}<") != std::string_view::npos) closing.push_back(id);
    }
    if (allowed.empty()) continue;  // the mark completed the answer
    const auto& from = !closing.empty() && random() % 3 == 0 ? closing : allowed;
    take({from[random() % from.size()]});
  }
  return std::nullopt;
}

struct Drawn {
  ChatAnswer answer;
  std::string text;
};

// Draws answers that end, from each place where an answer may begin. Reads them whole, and in pieces.
std::vector<Drawn> Draw(const Family& family, std::string_view tools, const AnswerRule& rule, AnswerStart start) {
  const Model model(family.literals, family.special);
  const json::value list = tools.empty() ? json::value() : *ParseJson(tools, Fault::kInput);
  const auto format = FormatOfAnswer(model.format(), start, list, rule);
  EXPECT_TRUE(format.ok() && format->has_value()) << family.name << Message(format.status());
  const auto vocabulary = grammar::FormatVocabulary::Create(model.tokenizer(), model.tokenizer().vocab_size());
  const auto constraint = Constraint::Compile(**format, *vocabulary);
  EXPECT_TRUE(constraint.ok()) << family.name << Message(constraint.status());
  std::mt19937 random(kSeed);
  std::vector<Drawn> drawn;
  for (int i = 0; i < 12 && constraint.ok(); ++i) {
    const auto ids = RandomIds(model, *constraint, random);
    if (!ids.has_value()) continue;
    drawn.push_back({model.ReadIds(*ids, tools, start, rule), model.tokenizer().Decode(*ids, SkipSpecial::kNo)});
    const ChatAnswer pieces = model.ReadInPieces(*ids, tools, start, random, rule);
    EXPECT_EQ(pieces.content, drawn.back().answer.content) << family.name;
    EXPECT_EQ(CallsOf(pieces), CallsOf(drawn.back().answer)) << family.name;
  }
  EXPECT_GT(drawn.size(), 4u) << family.name;
  return drawn;
}

std::vector<AnswerStart> StartsOf(const Family& family) {
  const Model model(family.literals, family.special);
  if (!model.format().has_reasoning()) return {AnswerStart::kUnknown};
  return {AnswerStart::kUnknown, AnswerStart::kInReasoning, AnswerStart::kBehindReasoning};
}

// Under sanitizers a part of the families.
std::vector<Family> TriedFamilies() {
  std::vector<Family> tried;
  const std::span<const Family> all = Families();
  for (size_t i = 0; i < all.size(); i += kSanitized ? 4 : 1) tried.push_back(all[i]);
  return tried;
}

const OutputFormat kContent = {OutputFormat::Kind::kJsonSchema, std::string(kSchema)};

TEST(WholeAnswer, ContentFollowsItsFormatBehindReasoning) {
  int num_with_reasoning = 0;
  for (const Family& family : TriedFamilies()) {
    for (const AnswerStart start : StartsOf(family)) {
      for (const Drawn& drawn : Draw(family, "", {.content = kContent}, start)) {
        SCOPED_TRACE(drawn.text);
        ExpectValid(drawn.answer.content, family.name);
        EXPECT_TRUE(drawn.answer.tool_calls.empty());
        EXPECT_TRUE(start != AnswerStart::kBehindReasoning || drawn.answer.reasoning.empty()) << family.name;
        num_with_reasoning += drawn.answer.reasoning.empty() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(num_with_reasoning, NumTried(20));
}

TEST(WholeAnswer, DemandedCallsFollowTheirSchemas) {
  for (const Family& family : TriedFamilies()) {
    if (family.name == "plain") continue;
    const Model model(family.literals, family.special);
    if (model.format().form == CallForm::kNone) continue;
    for (const AnswerStart start : StartsOf(family)) {
      std::set<std::string> names;
      for (const AnswerRule& rule : {AnswerRule{.must_call = true}, AnswerRule{.must_call = true, .has_one_call = true},
                                     AnswerRule{.must_call = true, .tool = "tides", .has_one_call = true}}) {
        size_t most = 0;
        for (const Drawn& drawn : Draw(family, ToolsWith(false), rule, start)) {
          SCOPED_TRACE(drawn.text);
          EXPECT_EQ(drawn.answer.content, "") << family.name;
          EXPECT_GE(drawn.answer.tool_calls.size(), 1u) << family.name;
          most = std::max(most, drawn.answer.tool_calls.size());
          for (const ToolCall& call : drawn.answer.tool_calls) {
            EXPECT_TRUE(call.name == "tides" || (rule.tool.empty() && call.name == "weather")) << call.name;
            names.insert(call.name);
            ExpectValid(call.arguments, family.name);
          }
        }
        EXPECT_EQ(most > 1, !rule.has_one_call && model.format().form != CallForm::kHarmony) << family.name;
      }
      EXPECT_EQ(names.size(), 2u) << family.name;
    }
  }
}

TEST(WholeAnswer, StrictCallsAndContentBesideTools) {
  int num_texts = 0;
  size_t num_calls = 0;
  for (const Family& family : TriedFamilies()) {
    const Model model(family.literals, family.special);
    if (model.format().form == CallForm::kNone) continue;
    for (const AnswerStart start : StartsOf(family)) {
      for (const Drawn& drawn : Draw(family, ToolsWith(true), {}, start)) {
        SCOPED_TRACE(drawn.text);
        num_calls += drawn.answer.tool_calls.size();
        num_texts += drawn.answer.content.empty() ? 0 : 1;
        for (const ToolCall& call : drawn.answer.tool_calls) ExpectValid(call.arguments, family.name);
      }
      for (const Drawn& drawn : Draw(family, ToolsWith(true), {.content = kContent}, start)) {
        SCOPED_TRACE(drawn.text);
        for (const ToolCall& call : drawn.answer.tool_calls) ExpectValid(call.arguments, family.name);
        if (drawn.answer.tool_calls.empty()) {
          ExpectValid(drawn.answer.content, family.name);
        } else {
          EXPECT_EQ(drawn.answer.content, "") << family.name;
        }
      }
    }
  }
  EXPECT_GT(num_calls, static_cast<size_t>(NumTried(50)));
  EXPECT_GT(num_texts, NumTried(50));
}

TEST(WholeAnswer, WhiteSpaceWithWhichContentBeginsStaysInItsPlace) {
  const AnswerRule rule{.content = OutputFormat{OutputFormat::Kind::kRegex, "\\s*[a-z ]+"}};
  std::mt19937 random(1);
  for (const char* name : {"qwen3", "hunyuan3", "gpt-oss"}) {
    const Model& model = ModelOf(name);
    const std::string begin = name == std::string("gpt-oss") ? "<|channel|>final<|message|>" : "";
    for (const std::string text : {"\n \f  \n a b", "a b\n"}) {
      const std::vector<TokenId> ids = model.Encode(begin + text);
      EXPECT_EQ(model.ReadIds(ids, "", AnswerStart::kUnknown, rule).content, text) << name;
      for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(model.ReadInPieces(ids, "", AnswerStart::kUnknown, random, rule).content, text) << name;
      }
    }
  }
}

TEST(WholeAnswer, WhiteSpaceWithWhichContentBeginsStaysBehindReasoning) {
  const std::regex pattern("[ \\n]{1,3}[a-z]{2,4}\\n?");
  int num_with_reasoning = 0;
  for (const Family& family : TriedFamilies()) {
    const AnswerRule rule{.content = OutputFormat{OutputFormat::Kind::kRegex, "[ \\n]{1,3}[a-z]{2,4}\\n?"}};
    for (const std::string& tools : {std::string(), ToolsWith(false)}) {
      for (const AnswerStart start : StartsOf(family)) {
        for (const Drawn& drawn : Draw(family, tools, rule, start)) {
          SCOPED_TRACE(drawn.text);
          if (!drawn.answer.tool_calls.empty()) continue;
          EXPECT_TRUE(std::regex_match(drawn.answer.content, pattern)) << family.name << ": " << drawn.answer.content;
          num_with_reasoning += drawn.answer.reasoning.empty() ? 0 : 1;
        }
      }
    }
  }
  EXPECT_GT(num_with_reasoning, NumTried(20));
}

TEST(WholeAnswer, FreeAnswersHaveNoFormatAndFaultsAreNamed) {
  const auto message = [](std::string_view family, std::string_view tools, const AnswerRule& rule) {
    const auto found = std::ranges::find(Families(), family, &Family::name);
    const Model model(found->literals, found->special);
    const auto format = FormatOfAnswer(model.format(), AnswerStart::kUnknown, *ParseJson(tools, Fault::kInput), rule);
    return format.ok() ? std::string(format->has_value() ? "a format" : "free") : Message(format.status());
  };
  EXPECT_EQ(message("qwen3", ToolsWith(false), {}), "free");
  EXPECT_EQ(message("qwen3", ToolsWith(true), {}), "a format");
  EXPECT_EQ(message("plain", ToolsWith(true), {}), "free");
  const auto tool = [](std::string_view name, std::string_view parameters) {
    return fmt::format(R"([{{"type": "function", "function": {{"name": "{}", "parameters": {}}}}}])", name, parameters);
  };
  const AnswerRule call = {.must_call = true};
  EXPECT_NE(message("plain", ToolsWith(false), call).find("no tool calls"), std::string::npos);
  EXPECT_NE(message("qwen3", tool("<b>", "{}"), call).find("found <b>"), std::string::npos);
  EXPECT_NE(message("glm", tool("now", R"({"anyOf": []})"), call).find("now: #/anyOf"), std::string::npos);
  EXPECT_NE(message("glm", tool("now", R"({"properties": {"a<": {}}})"), call).find("parameter a<"), std::string::npos);
}

}  // namespace
}  // namespace penstock::testing_answers
