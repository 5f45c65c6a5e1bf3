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
      {CallForm::kInvoke,
       "<minimax:tool_call>",
       {"<minimax:tool_call>", "<invoke name="},
       {"</minimax:tool_call>"},
       {}},
      {CallForm::kPairs,
       "<arg_key>",
       {"<tool_calls>", "<tool_call>"},
       {"</tool_call>", "</tool_calls>"},
       {"<tool_sep>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}},
      {CallForm::kFunction, "<parameter=", {"<tool_call>", "<function="}, {"</tool_call>"}, {}},
      {CallForm::kMistral, "[TOOL_CALLS]", {"[TOOL_CALLS]"}, {}, {"[CALL_ID]", "[ARGS]"}},
      {CallForm::kJson, "<tool_calls>", {"<tool_calls>"}, {"</tool_calls>"}, {}},
      {CallForm::kJson, "<|tool_call|>", {"<|tool_call|>", "<tool_call>"}, {"</tool_call>"}, {}},
      {CallForm::kJson, "<tool_call>", {"<tool_call>"}, {"</tool_call>"}, {}},
  };
  return *forms;
}

struct ReasoningMarks {
  std::string_view open, close;
};

constexpr ReasoningMarks kReasoningMarks[] = {
    {"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"<|think|>", "<|end|>"}};

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

void FindReasoning(std::string_view literals, const Tokenizer& tokenizer, AnswerFormat& format) {
  for (const auto& [open, close] : kReasoningMarks) {
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

// Remembers the mark if decoded text leaves it out.
void AddHidden(const Tokenizer& tokenizer, std::string_view mark, AnswerFormat& format) {
  const TokenId id = tokenizer.FindToken(mark);
  if (id >= 0 && tokenizer.IsSpecial(id)) format.hidden.emplace(id, mark);
}

absl::StatusOr<ToolCallShape> JsonShape(const AnswerFormat& format, const std::string& name, std::string schema) {
  const std::string end = format.ends.empty() || format.starts[0] == "<|tool_call|>" ? "" : "\n" + format.ends.back();
  const std::string_view list = format.lists_calls ? "[" : "";
  return ToolCallShape{.name = name,
                       .prefix = fmt::format("{}\n{}{{\"name\": {}, \"arguments\": ", format.starts[0], list,
                                             std::string(json::serialize(json::value(name)))),
                       .schema = std::move(schema),
                       .suffix = fmt::format("}}{}{}", format.lists_calls ? "]" : "", end)};
}

}  // namespace

AnswerFormat FindAnswerFormat(std::string_view literals, const Tokenizer& tokenizer) {
  AnswerFormat format;
  if (HarmonyTokens::Find(tokenizer).has_value()) {
    format.form = CallForm::kHarmony;
    return format;
  }
  const auto& forms = AllForms();
  const auto traits = std::ranges::find_if(forms, [&](const FormTraits& t) { return Has(literals, t.sign); });
  if (traits != forms.end()) {
    format.form = traits->form;
    format.starts.assign(traits->starts.begin(), traits->starts.end());
    format.ends.assign(traits->ends.begin(), traits->ends.end());
    for (const std::string_view mark : traits->inner) AddHidden(tokenizer, mark, format);
    format.names_type = Has(literals, "```json");
    format.lists_calls =
        format.form == CallForm::kMistral ? !Has(literals, "[ARGS]") : format.starts[0] != "<tool_call>";
  }
  FindReasoning(literals, tokenizer, format);
  for (const auto* marks : {&format.starts, &format.ends, &format.dropped}) {
    for (const std::string& mark : *marks) AddHidden(tokenizer, mark, format);
  }
  AddHidden(tokenizer, format.open, format);
  AddHidden(tokenizer, format.close, format);
  if (format.open == "<|think|>") AddHidden(tokenizer, "<|begin|>", format);
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

absl::StatusOr<ToolCallShape> ShapeOf(const AnswerFormat& format, const json::value& tool) {
  const json::object* function = FunctionOf(tool);
  const std::string name(function == nullptr ? std::string_view() : StringOf(*function, "name"));
  // The name stands between marks of the template, so it must not be able to form one.
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (name.empty() || !std::ranges::all_of(name, is_plain)) {
    return InputError("tools: expected a name of letters, digits, \"_\" and \"-\"");
  }
  const json::value* parameters = function->if_contains("parameters");
  const bool has_schema = parameters != nullptr && parameters->is_object();
  std::string schema = has_schema ? std::string(json::serialize(*parameters)) : R"({"type":"object"})";
  const auto shape = [&](std::string prefix, std::string suffix) {
    return ToolCallShape{name, std::move(prefix), std::move(schema), std::move(suffix)};
  };
  const auto marks = [&](std::string_view body, size_t first_end) {
    return shape(fmt::format("{}{}{}", format.starts[0], format.starts[1], body),
                 format.ends[first_end] + format.ends[first_end + 1]);
  };
  switch (format.form) {
    case CallForm::kHarmony:
      return shape(fmt::format("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", name), "<|call|>");
    case CallForm::kJson: return JsonShape(format, name, std::move(schema));
    case CallForm::kMistral:
      if (!format.lists_calls) return shape(fmt::format("[TOOL_CALLS]{}[ARGS]", name), "");
      return shape(
          fmt::format(R"([TOOL_CALLS][{{"name": {}, "arguments": )", std::string(json::serialize(json::value(name)))),
          "}]");
    case CallForm::kDeepSeek:
      if (!format.names_type) return marks(fmt::format("{}<｜tool▁sep｜>", name), 1);
      return shape(fmt::format("{}{}function<｜tool▁sep｜>{}\n```json\n", format.starts[0], format.starts[1], name),
                   fmt::format("\n```{}{}", format.ends[1], format.ends[2]));
    case CallForm::kKimi: return marks(fmt::format("functions.{}:0<|tool_call_argument_begin|>", name), 0);
    case CallForm::kSolar: return marks(fmt::format("0<|tool_call:name|>{}<|tool_call:args|>", name), 0);
    case CallForm::kNone: return InputError("tool_choice: the model's chat template has no tool calls");
    case CallForm::kPairs:
    case CallForm::kFunction:
    case CallForm::kInvoke: break;
  }
  return InputError("tool_choice: this model writes arguments as tags ({}), so a call cannot be forced",
                    format.starts.back());
}

}  // namespace penstock
