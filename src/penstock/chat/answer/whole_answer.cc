#include "penstock/chat/answer/whole_answer.h"

#include <string>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/chat/answer/call_format.h"
#include "penstock/chat/answer/format_parts.h"

namespace penstock {
namespace {

// Solar marks where each part of an answer begins.
bool NamesContent(const AnswerFormat& format) { return format.open == "<|think|>"; }

// Returns any text up to a mark, and the mark: as a token, or spelled by other tokens, because readers take both.
OutputFormat UpTo(const AnswerFormat& format, const std::string& mark) {
  form::Parts marks = {form::Text(mark)};
  if (const std::string spelled = WithMarks(format, mark); spelled != mark) marks.push_back(form::Text(spelled));
  return form::Sequence({form::TextWithout({form::Text(mark)}), form::Choice(std::move(marks))});
}

// The reasoning before the content, for families that mark it.
OutputFormat Reasoning(const AnswerFormat& format, AnswerStart start, const std::optional<OutputFormat>& content) {
  if (!format.has_reasoning() || start == AnswerStart::kBehindReasoning) return form::Text("");
  const OutputFormat space = form::Choice({form::Text(""), form::Text("\n"), form::Text("\n\n")});
  OutputFormat behind = NamesContent(format) ? form::Text(WithMarks(format, "<|begin|>assistant")) : space;
  if (content.has_value() && !NamesContent(format)) {
    if (const auto fixed = SpaceBehindReasoning(format, *content)) behind = form::Text(std::string(*fixed));
  }
  const OutputFormat rest = form::Sequence({UpTo(format, format.close), behind});
  if (start == AnswerStart::kInReasoning) return rest;
  const OutputFormat open = form::Text(WithMarks(format, format.open));
  return form::Optional(form::Sequence({space, format.only_closes ? form::Optional(open) : open, rest}));
}

// The answer behind its reasoning. `calls`: the calls that the answer may have, if any.
OutputFormat Body(const AnswerFormat& format, const AnswerRule& rule, const std::optional<OutputFormat>& calls) {
  if (rule.must_call) return *calls;
  const OutputFormat begin = form::Text(NamesContent(format) ? WithMarks(format, "<|content|>") : "");
  if (rule.content.has_value()) {
    const OutputFormat content = form::Sequence({begin, *rule.content});
    return calls.has_value() ? form::Choice({content, *calls}) : content;
  }
  form::Parts starts;
  for (const std::string& start : format.starts) starts.push_back(form::Text(start));
  const OutputFormat text = form::Sequence({begin, form::TextWithout(std::move(starts))});
  if (format.form == CallForm::kBareJson) return form::Choice({text, *calls});
  return form::Sequence({NamesContent(format) ? form::Optional(text) : text,
                         form::Optional(form::Sequence({*calls, form::Optional(form::Text("\n"))}))});
}

// gpt-oss's messages: thoughts in the channel "analysis", then a final message or a call.
OutputFormat Harmony(const AnswerFormat& format, const AnswerRule& rule, const std::optional<OutputFormat>& calls) {
  const auto spell = [&](std::string_view text) { return form::Text(WithMarks(format, text)); };
  const OutputFormat next = form::Sequence({form::TextWithout({}), spell("<|end|><|start|>assistant")});
  form::Parts before = {spell("<|channel|>analysis<|message|>")};
  const bool is_free = !rule.must_call && !rule.content.has_value();
  if (is_free) before.push_back(spell("<|channel|>commentary<|message|>"));
  form::Parts last;
  if (!rule.must_call) {
    last.push_back(form::Sequence({spell("<|channel|>final"), form::Optional(spell(" <|constrain|>json")),
                                   spell("<|message|>"), rule.content.value_or(form::TextWithout({}))}));
  }
  if (calls.has_value()) last.push_back(*calls);
  return form::Sequence(
      {form::Repeat(form::Sequence({form::Choice(std::move(before)), next})), form::Choice(std::move(last))});
}

}  // namespace

std::optional<std::string_view> SpaceBehindReasoning(const AnswerFormat& format, const OutputFormat& content) {
  if (content.kind == OutputFormat::Kind::kJson || content.kind == OutputFormat::Kind::kJsonSchema) return std::nullopt;
  return NamesContent(format) ? "" : "\n\n";
}

absl::StatusOr<std::optional<OutputFormat>> FormatOfAnswer(const AnswerFormat& format, AnswerStart start,
                                                           const json::value& tools, const AnswerRule& rule) {
  const bool has_tools = tools.is_array() && !tools.get_array().empty();
  if (rule.must_call && !has_tools) return InputError("tool_choice: there are no tools");
  const bool may_call = has_tools && format.form != CallForm::kNone;
  if (!rule.must_call && !rule.content.has_value() && (!may_call || !HasStrictTool(tools))) return std::nullopt;
  std::optional<OutputFormat> calls;
  if (rule.must_call || may_call) {
    PENSTOCK_ASSIGN_OR_RETURN(calls, FormatOfCalls(format, tools, rule));
  }
  if (format.form == CallForm::kHarmony) return Harmony(format, rule, calls);
  const bool has_reasoning = format.has_reasoning() && start != AnswerStart::kBehindReasoning;
  // A format alone is compiled as it is.
  if (rule.content.has_value() && !has_reasoning && !calls.has_value() && !NamesContent(format)) return rule.content;
  return form::Sequence({Reasoning(format, start, rule.content), Body(format, rule, calls)});
}

}  // namespace penstock
