#include "penstock/chat/answer/answer_format.h"

#include <algorithm>

#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/chat/harmony.h"

namespace penstock {
namespace {

struct FormTraits {
  CallForm form;
  std::string_view sign;  // occurs in the templates of this form, and not in those of the rows below
  std::vector<std::string_view> starts;
  std::vector<std::string_view> ends;
  std::vector<std::string_view> inner;  // further marks, which may be special tokens
};

const std::vector<FormTraits>& AllForms() {
  static const auto* const forms = new std::vector<FormTraits>{
      {CallForm::kKimi,
       "<|tool_call_argument_begin|>",
       {"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
       {"<|tool_call_end|>", "<|tool_calls_section_end|>"},
       {"<|tool_call_argument_begin|>"}},
      {CallForm::kDeepSeek,
       "<｜tool▁call▁begin｜>",
       {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
       {"```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
       {"<｜tool▁sep｜>"}},
      {CallForm::kSolar,
       "<|tool_call:args|>",
       {"<|tool_calls|>", "<|tool_call:begin|>"},
       {"<|tool_call:end|>", "<|calls|>"},
       {"<|tool_call:name|>", "<|tool_call:args|>"}},
      {CallForm::kDsml,
       "｜DSML｜",
       {"<｜DSML｜function_calls>", "<｜DSML｜invoke name="},
       {"</｜DSML｜function_calls>"},
       {"｜DSML｜"}},
      {CallForm::kGemma, "<|tool_call>", {"<|tool_call>"}, {"<tool_call|>"}, {"<|\"|>"}},
      {CallForm::kInvoke,
       "<minimax:tool_call>",
       {"<minimax:tool_call>", "<invoke name="},
       {"</minimax:tool_call>"},
       {}},
      {CallForm::kPairs,
       "<arg_key",
       {"<tool_calls>", "<tool_call>"},
       {"</tool_call>", "</tool_calls>"},
       {"<tool_sep>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}},
      {CallForm::kFunction, "<parameter=", {"<tool_call>", "<function="}, {"</tool_call>"}, {}},
      {CallForm::kMistral, "[TOOL_CALLS]", {"[TOOL_CALLS]"}, {}, {"[CALL_ID]", "[ARGS]"}},
      {CallForm::kJson, "<tool_calls>", {"<tool_calls>"}, {"</tool_calls>"}, {}},
      {CallForm::kJson, "<|tool_call|>", {"<|tool_call|>", "<tool_call>"}, {"</tool_call>"}, {}},
      {CallForm::kJson, "<tool_call>", {"<tool_call>"}, {"</tool_call>"}, {}},
      {CallForm::kBareJson,
       "{\"name\": function name, \"parameters\": ",
       {"{\"name\"", "<|python_start|>", "<|python_tag|>"},
       {";"},
       {}},
      {CallForm::kPython, "<|tool_call_start|>", {"<|tool_call_start|>"}, {"<|tool_call_end|>"}, {}},
  };
  return *forms;
}

struct ReasoningMarks {
  std::string_view open, close;
};

constexpr ReasoningMarks kReasoningMarks[] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<|think|>", "<|end|>"},
    {"<|channel>thought", "<channel|>"},
};

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Hunyuan 3's template writes tags as '<arg_key{}>'.format(suffix), and its vocabulary has them as tokens.
std::string FindSuffix(std::string_view literals, const Tokenizer& tokenizer) {
  if (!Has(literals, "<arg_key{}>")) return "";
  for (size_t begin = 0; begin < literals.size();) {
    const size_t end = std::min(literals.find('\0', begin), literals.size());
    const std::string_view literal = literals.substr(begin, end - begin);
    if (tokenizer.FindToken(fmt::format("<arg_key{}>", literal)) >= 0) return std::string(literal);
    begin = end + 1;
  }
  return "";
}

// Templates of LFM2 may leave the form to the vocabulary.
bool IsForm(const FormTraits& traits, std::string_view literals, const Tokenizer& tokenizer) {
  return Has(literals, traits.sign) || (traits.form == CallForm::kPython && tokenizer.FindToken(traits.sign) >= 0);
}

void FindReasoning(std::string_view literals, const Tokenizer& tokenizer, AnswerFormat& format) {
  for (const auto& [plain_open, plain_close] : kReasoningMarks) {
    const std::string open = format.Tag(plain_open), close = format.Tag(plain_close);
    const bool in_vocabulary = tokenizer.FindToken(open) >= 0 && tokenizer.FindToken(close) >= 0;
    const bool only_closes = close == "</think>" && Has(literals, close) && !Has(literals, open);
    if (!in_vocabulary && !only_closes && !(Has(literals, open) && Has(literals, close))) continue;
    format.open = open;
    format.close = close;
    format.only_closes = only_closes;
    if (open == "<|think|>") format.dropped = {"<|content|>", "<|begin|>assistant", "<|end|>"};
    break;
  }
  // Hunyuan-A13B and ERNIE-4.5-Thinking mark the answer behind the thoughts, too.
  if (!format.has_reasoning()) return;
  for (const std::string_view name : {"answer", "response"}) {
    const bool is_tool_result = name == "response" && format.form == CallForm::kInvoke;
    if (is_tool_result || !Has(literals, fmt::format("<{}>", name))) continue;
    format.dropped.push_back(fmt::format("<{}>", name));
    format.dropped.push_back(fmt::format("</{}>", name));
  }
}

// Remembers the mark if it is a token that messages cannot produce.
void AddMark(const Tokenizer& tokenizer, std::string_view mark, AnswerFormat& format) {
  const TokenId id = tokenizer.FindToken(mark);
  if (id < 0 || !tokenizer.IsMark(id)) return;
  format.marks.emplace_back(mark);
  if (tokenizer.IsSpecial(id)) format.hidden.emplace(id, mark);
}

}  // namespace

std::string AnswerFormat::Tag(std::string_view tag) const {
  if (suffix.empty() || !tag.ends_with('>')) return std::string(tag);
  return fmt::format("{}{}>", tag.substr(0, tag.size() - 1), suffix);
}

AnswerFormat FindAnswerFormat(std::string_view literals, const Tokenizer& tokenizer) {
  AnswerFormat format;
  if (HarmonyTokens::Find(tokenizer).has_value()) {
    format.form = CallForm::kHarmony;
    // The stream finds these marks by itself.
    for (const char* mark : {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"}) {
      if (tokenizer.FindToken(mark) >= 0) format.marks.emplace_back(mark);
    }
    return format;
  }
  const auto& forms = AllForms();
  const auto traits = std::ranges::find_if(forms, [&](const FormTraits& t) { return IsForm(t, literals, tokenizer); });
  if (traits != forms.end()) {
    format.form = traits->form;
    format.suffix = FindSuffix(literals, tokenizer);
    for (const std::string_view mark : traits->starts) format.starts.push_back(format.Tag(mark));
    for (const std::string_view mark : traits->ends) format.ends.push_back(format.Tag(mark));
    for (const std::string_view mark : traits->inner) AddMark(tokenizer, format.Tag(mark), format);
    format.names_type = Has(literals, "```json");
    format.breaks_lines = Has(literals, "</arg_key>\n") || Has(literals, "<tool_sep");
    format.lists_calls = format.form == CallForm::kMistral ? !Has(literals, "[ARGS]")
                         : format.form == CallForm::kPairs ? Has(literals, "<tool_sep")
                                                           : format.starts[0] != "<tool_call>";
  }
  FindReasoning(literals, tokenizer, format);
  for (const auto* marks : {&format.starts, &format.ends, &format.dropped}) {
    for (const std::string& mark : *marks) AddMark(tokenizer, mark, format);
  }
  AddMark(tokenizer, format.open, format);
  AddMark(tokenizer, format.close, format);
  if (format.open == "<|think|>") AddMark(tokenizer, "<|begin|>", format);
  if (format.open == "<|channel>thought") AddMark(tokenizer, "<|channel>", format);
  return format;
}

AnswerStart StartBehind(const AnswerFormat& format, std::span<const TokenId> prompt_ids, const Tokenizer& tokenizer) {
  constexpr size_t kMaxTail = 64;  // the marks are the prompt's last tokens, but for white space
  if (!format.has_reasoning()) return AnswerStart::kUnknown;
  const std::string tail = tokenizer.Decode(prompt_ids.last(std::min(prompt_ids.size(), kMaxTail)), SkipSpecial::kNo);
  const std::string_view text = WithoutTrailingSpace(tail);
  if (text.ends_with(format.open)) return AnswerStart::kInReasoning;
  return text.ends_with(format.close) ? AnswerStart::kBehindReasoning : AnswerStart::kUnknown;
}

const json::object* FunctionOf(const json::value& tool) {
  const json::object* object = tool.if_object();
  const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
  return function != nullptr && function->is_object() ? function->if_object() : object;
}

std::string_view StringOf(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? View(value->get_string()) : std::string_view();
}

}  // namespace penstock
