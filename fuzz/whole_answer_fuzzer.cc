// Composes formats of whole answers: of any family, with a format for the content, with tools, or both, behind
// reasoning and between channels. Draws an answer that follows the format. It must be read as what was demanded:
// content in its format, and calls of the tool.
//
// Input: bytes for the family, for where the answer begins, for the rule and for the content's kind. Then the schema of
// the tool's parameters, a zero, the text of the content's format, a zero, and bytes that choose the answer's tokens.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/base/text.h"
#include "penstock/chat/answer/answer_stream.h"
#include "penstock/chat/answer/json_pieces.h"
#include "penstock/chat/answer/whole_answer.h"
#include "penstock/chat/chat_parts.h"
#include "penstock/grammar/constraint.h"
#include "tests/chat/answer_families.h"

namespace {

using namespace penstock;
using Kind = OutputFormat::Kind;

struct Model {
  std::unique_ptr<Tokenizer> tokenizer;
  AnswerFormat format;
  std::shared_ptr<const grammar::FormatVocabulary> vocabulary;
};

const Model& ModelAt(size_t idx) {
  static auto* const models = [] {
    auto* const all = new std::vector<Model>();
    for (const testing_answers::Family& family : testing_answers::Families()) {
      Model& model = all->emplace_back();
      model.tokenizer = testing_answers::NewTokenizer(family.special);
      model.format = FindAnswerFormat(family.literals, *model.tokenizer);
      model.vocabulary = *grammar::FormatVocabulary::Create(*model.tokenizer, model.tokenizer->vocab_size());
    }
    return all;
  }();
  return (*models)[idx % models->size()];
}

struct Input {
  uint8_t family = 0, start = 0, rule = 0, kind = 0;
  std::string schema = {}, text = {}, choices = {};
};

Input InputOf(const uint8_t* data, size_t size) {
  constexpr size_t kHead = 4;
  if (size < kHead) return {};
  Input input{.family = data[0], .start = data[1], .rule = data[2], .kind = data[3]};
  std::string rest(reinterpret_cast<const char*>(data) + kHead, size - kHead);
  for (std::string* part : {&input.schema, &input.text}) {
    const size_t end = std::min(rest.find('\0'), rest.size());
    *part = rest.substr(0, end);
    rest.erase(0, end + 1);
  }
  input.choices = rest;
  return input;
}

// Returns a list with one tool, or null.
json::value ToolsOf(const Input& input) {
  const absl::StatusOr<json::value> schema = ParseJson(input.schema, Fault::kInput);
  if (!schema.ok() || !schema->is_object()) return nullptr;
  const bool is_strict = (input.rule & 8) != 0;
  return json::array{
      json::object{{"type", "function"},
                   {"function", json::object{{"name", "now"}, {"strict", is_strict}, {"parameters", *schema}}}}};
}

AnswerRule RuleOf(const Input& input) {
  AnswerRule rule{.must_call = (input.rule & 1) != 0, .has_one_call = (input.rule & 2) != 0};
  if ((input.rule & 4) != 0 && !rule.must_call)
    rule.content = OutputFormat{static_cast<Kind>(input.kind % 4), input.text};
  return rule;
}

// Draws an answer. Returns nothing if it does not end.
std::vector<TokenId> Draw(const std::shared_ptr<const Constraint>& constraint, const std::string& choices) {
  constexpr size_t kMaxTokens = 300;
  ConstraintState state(constraint, true);
  std::vector<TokenId> ids;
  for (size_t i = 0; i < kMaxTokens; ++i) {
    const uint8_t choice = choices.empty() ? 0 : static_cast<uint8_t>(choices[i % choices.size()]);
    if (state.is_complete() && (!state.can_go_on() || choice % 4 == 0)) return ids;
    grammar::TokenMask mask(grammar::MaskWords(constraint->trie().vocab_size()), 0);
    if (!state.AllowedTokens(mask).ok()) return {};
    std::vector<TokenId> allowed;
    for (TokenId token = 0; token < constraint->trie().vocab_size(); ++token) {
      if (grammar::HasToken(mask, token)) allowed.push_back(token);
    }
    PENSTOCK_CHECK(!allowed.empty());
    // A choice that is a token, or the number of one.
    const bool is_allowed = grammar::HasToken(mask, choice);
    ids.push_back(is_allowed ? choice : allowed[(choice + i) % allowed.size()]);
    PENSTOCK_CHECK(state.Accept(ids.back()));
  }
  return {};
}

bool Follows(const Model& model, const OutputFormat& format, std::string_view text) {
  const auto constraint = Constraint::Compile(format, model.vocabulary);
  PENSTOCK_CHECK(constraint.ok());
  ConstraintState state(*constraint, false);
  for (const char c : text) {
    if (!state.Accept(static_cast<uint8_t>(c))) return false;
  }
  return state.is_complete();
}

// White space with which the content begins may be lost behind reasoning.
bool ContentFollows(const Model& model, const OutputFormat& format, const ChatAnswer& answer, std::string_view text) {
  const std::string_view bare = WithoutLeadingSpace(answer.content);
  for (size_t begin = text.rfind(bare); begin != std::string_view::npos; --begin) {
    if (Follows(model, format, text.substr(begin))) return true;
    if (begin == 0 || !WithoutLeadingSpace(text.substr(begin - 1, 1)).empty()) return false;
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Input input = InputOf(data, size);
  const Model& model = ModelAt(input.family);
  const auto start = static_cast<AnswerStart>(input.start % 3);
  const json::value tools = ToolsOf(input);
  const AnswerRule rule = RuleOf(input);
  const auto format = FormatOfAnswer(model.format, start, tools, rule);
  if (!format.ok() || !format->has_value()) return 0;
  const auto constraint = Constraint::Compile(**format, model.vocabulary);
  if (!constraint.ok()) return 0;
  const std::vector<TokenId> ids = Draw(*constraint, input.choices);
  if (ids.empty()) return 0;

  ChatParts parts;
  parts.tools = tools;
  const Chat chat(std::move(parts));
  const std::string text = model.tokenizer->Decode(ids, SkipSpecial::kYes);
  PENSTOCK_CHECK(IsUtf8(text));
  const ChatAnswer answer = ReadAnswer(*NewAnswerStream(model.format, start, chat, rule, *model.tokenizer), ids, text);
  if (rule.must_call) PENSTOCK_CHECK(answer.content.empty() && !answer.tool_calls.empty());
  for (const ToolCall& call : answer.tool_calls) {
    const JsonExtent extent = FindJsonEnd(call.arguments);
    PENSTOCK_CHECK(call.name == "now" && call.arguments.starts_with('{'));
    PENSTOCK_CHECK(extent.kind == JsonExtent::Kind::kWhole && extent.num_bytes == call.arguments.size());
  }
  const bool has_content = rule.content.has_value() && answer.tool_calls.empty();
  if (has_content) PENSTOCK_CHECK(ContentFollows(model, *rule.content, answer, text));

  const auto stream = NewAnswerStream(model.format, start, chat, rule, *model.tokenizer);
  const ChatAnswer joined = testing_answers::ReadTokenByToken(*stream, ids, *model.tokenizer);
  PENSTOCK_CHECK(joined.content == answer.content && joined.reasoning == answer.reasoning);
  PENSTOCK_CHECK(joined.tool_calls.size() == answer.tool_calls.size());
  for (size_t i = 0; i < joined.tool_calls.size(); ++i) {
    PENSTOCK_CHECK(joined.tool_calls[i].arguments == answer.tool_calls[i].arguments);
  }
  return 0;
}
