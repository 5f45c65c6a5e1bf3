#include "penstock/chat/answer/call_format.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/chat/answer/format_parts.h"
#include "penstock/chat/answer/tagged_arguments.h"
#include "penstock/grammar/token_trie.h"

namespace penstock {
namespace {

bool IsStrict(const json::value& tool) {
  const json::object* function = FunctionOf(tool);
  const json::value* strict = function == nullptr ? nullptr : function->if_contains("strict");
  return strict != nullptr && strict->is_bool() && strict->get_bool();
}

std::string Serialized(const json::value& value) { return std::string(json::serialize(value)); }

// The text around the calls of an answer, and around each of them.
struct CallMarks {
  std::string begin = {}, end = {};         // around all
  OutputFormat before = form::Text("");     // a call
  std::string behind = {}, separator = {};  // a call; between two
  bool may_repeat = true;
};

// Returns a schema that holds for what both allow, with the definitions of the parameters.
std::string SchemaOf(const json::value& schema, const json::object& parameters, json::array types) {
  json::object both;
  for (const char* name : {"$defs", "definitions"}) {
    if (const json::value* list = parameters.if_contains(name)) both[name] = *list;
  }
  both["allOf"] = json::array{schema, json::object{{"type", std::move(types)}}};
  return Serialized(both);
}

class CallComposer {
 public:
  CallComposer(const AnswerFormat& format, const AnswerRule& rule) : format_(format), rule_(rule) {}

  absl::StatusOr<OutputFormat> Run(const json::array& tools) {
    form::Parts calls;
    for (const json::value& tool : tools) {
      const json::object* function = FunctionOf(tool);
      const std::string name(function == nullptr ? std::string_view() : StringOf(*function, "name"));
      if (!rule_.tool.empty() && name != rule_.tool) continue;
      // The name stands between marks of the template, so it must not be able to form one.
      const auto is_plain = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
      };
      if (name.empty() || !std::ranges::all_of(name, is_plain)) {
        return InputError("tools: expected a name of letters, digits, \"_\" and \"-\", found {}",
                          Excerpt(Printable(name)));
      }
      const json::value* parameters = function->if_contains("parameters");
      const bool has_schema = parameters != nullptr && parameters->is_object() && (rule_.must_call || IsStrict(tool));
      PENSTOCK_ASSIGN_OR_RETURN(calls.emplace_back(), CallOf(name, has_schema ? &parameters->get_object() : nullptr));
    }
    if (calls.empty()) return InputError("tool_choice: there is no tool {}", Excerpt(Printable(rule_.tool)));
    const CallMarks marks = Marks();
    const OutputFormat call =
        form::Sequence({marks.before, form::Choice(std::move(calls)), form::Text(Spell(marks.behind))});
    form::Parts all = {form::Text(Spell(marks.begin)), call};
    if (marks.may_repeat && !rule_.has_one_call)
      all.push_back(form::Repeat(form::Sequence({form::Text(Spell(marks.separator)), call})));
    all.push_back(form::Text(Spell(marks.end)));
    return form::Sequence(std::move(all));
  }

 private:
  std::string Spell(std::string_view text) const { return WithMarks(format_, text); }

  CallMarks Marks() const {
    const auto& starts = format_.starts;
    const auto& ends = format_.ends;
    const std::string last_end = ends.empty() ? "" : ends.back();
    switch (format_.form) {
      case CallForm::kJson: {
        const std::string end = starts[0] == "<|tool_call|>" ? "" : "\n" + last_end;
        if (format_.lists_calls) return {.begin = starts[0] + "\n[", .end = "]" + end, .separator = ", "};
        return {.before = form::Text(Spell(starts[0]) + "\n"), .behind = end, .separator = "\n"};
      }
      case CallForm::kMistral:
        if (format_.lists_calls) return {.begin = "[TOOL_CALLS][", .end = "]", .separator = ", "};
        return {.before = form::Text(Spell("[TOOL_CALLS]"))};
      case CallForm::kDeepSeek:
        return {.begin = starts[0],
                .end = ends[2],
                .before = form::Text(Spell(starts[1])),
                .behind = ends[1],
                .separator = format_.names_type ? "\n" : ""};
      case CallForm::kKimi:
        return {.begin = starts[0], .end = ends[1], .before = form::Text(Spell(starts[1])), .behind = ends[0]};
      case CallForm::kSolar:
        return {.begin = starts[0],
                .end = ends[1],
                .before = form::Sequence({form::Text(Spell(starts[1])), form::Regex("[0-9a-z]{1,10}"),
                                          form::Text(Spell("<|tool_call:name|>"))}),
                .behind = ends[0]};
      case CallForm::kPairs:
        if (!format_.lists_calls)
          return {
              .before = form::Text(Spell(starts[1])), .behind = ends[0], .separator = format_.breaks_lines ? "\n" : ""};
        return {.begin = starts[0] + "\n",
                .end = "\n" + ends[1],
                .before = form::Text(Spell(starts[1])),
                .behind = ends[0],
                .separator = "\n"};
      case CallForm::kFunction:
        return {.before = form::Text(Spell(starts[0]) + "\n"), .behind = "\n" + last_end, .separator = "\n"};
      case CallForm::kInvoke:
      case CallForm::kDsml: return {.begin = starts[0] + "\n", .end = "\n" + last_end, .separator = "\n"};
      case CallForm::kGemma: return {.before = form::Text(Spell(starts[0] + "call:")), .behind = last_end};
      case CallForm::kBareJson: return {.separator = "; "};
      case CallForm::kPython: return {.begin = starts[0] + "[", .end = "]" + last_end, .separator = ", "};
      case CallForm::kHarmony: return {.may_repeat = false};  // a call ends the answer
      case CallForm::kNone: break;
    }
    return {};
  }

  // Returns a call of one tool; without parameters its arguments are any object.
  absl::StatusOr<OutputFormat> CallOf(const std::string& name, const json::object* parameters) const {
    const OutputFormat object = {OutputFormat::Kind::kJsonSchema,
                                 parameters == nullptr ? R"({"type":"object"})" : Serialized(*parameters)};
    const auto with = [&](std::string_view before, std::string_view behind) {
      return form::Sequence({form::Text(Spell(before)), object, form::Text(Spell(behind))});
    };
    switch (format_.form) {
      case CallForm::kNone: return InputError("tool_choice: the model's chat template has no tool calls");
      case CallForm::kHarmony: {
        const std::string to = " to=functions." + name;
        return form::Sequence({form::Choice({form::Text(Spell("<|channel|>commentary" + to)),
                                             form::Text(Spell(to + "<|channel|>commentary"))}),
                               form::Optional(form::Text(Spell(" <|constrain|>json"))),
                               form::Text(Spell("<|message|>")), object});
      }
      case CallForm::kMistral:
        if (!format_.lists_calls) return with(name + "[ARGS]", "");
        [[fallthrough]];
      case CallForm::kPython:  // its list of JSON objects
      case CallForm::kJson: return with(fmt::format(R"({{"name": "{}", "arguments": )", name), "}");
      case CallForm::kDeepSeek:
        if (!format_.names_type) return with(name + "<｜tool▁sep｜>", "");
        return with(fmt::format("function<｜tool▁sep｜>{}\n```json\n", name), "\n```");
      case CallForm::kKimi:
        return form::Sequence({form::Text(fmt::format("functions.{}:", name)), form::Regex("[0-9]{1,3}"),
                               form::Text(Spell("<|tool_call_argument_begin|>")), object});
      case CallForm::kSolar: return with(name + "<|tool_call:args|>", "");
      case CallForm::kBareJson: return with(fmt::format(R"({{"name": "{}", "parameters": )", name), "}");
      case CallForm::kPairs: {
        const std::string line_end = format_.breaks_lines ? "\n" : "";
        return Tagged(name + (format_.lists_calls ? format_.Tag("<tool_sep>") : "") + line_end, "", name, parameters);
      }
      case CallForm::kFunction: return Tagged(fmt::format("<function={}>\n", name), "</function>", name, parameters);
      case CallForm::kInvoke: return Tagged(fmt::format("<invoke name=\"{}\">\n", name), "</invoke>", name, parameters);
      case CallForm::kDsml:
        return Tagged(fmt::format("<｜DSML｜invoke name=\"{}\">\n", name), "</｜DSML｜invoke>", name, parameters);
      case CallForm::kGemma: return with(name, "");  // JSON, which its readers take as well
    }
    return OutputFormat{};
  }

  // Returns a call whose arguments are tags.
  absl::StatusOr<OutputFormat> Tagged(std::string_view before, std::string_view behind, const std::string& tool,
                                      const json::object* parameters) const {
    const TagMarks tags = TagsOf(format_);
    form::Parts parts = {form::Text(Spell(before))};
    if (parameters == nullptr) {
      const OutputFormat key = form::TextWithout({form::Text("<"), form::Text(">"), form::Text("\""), form::Text("\n")},
                                                 R"({"minLength": 1})");
      const OutputFormat value = form::TextWithout({form::Text(tags.behind_value)});
      OutputFormat before_value = form::Text(Spell(tags.before_text));
      if (tags.before_json != tags.before_text) {
        before_value = form::Choice({std::move(before_value), form::Text(Spell(tags.before_json))});
      }
      parts.push_back(
          form::Repeat(form::Sequence({form::Text(Spell(tags.before_key)), key, form::Text(Spell(tags.behind_key)),
                                       std::move(before_value), value, form::Text(Behind(tags))})));
    } else {
      PENSTOCK_RETURN_IF_ERROR(AddArguments(tool, *parameters, parts));
    }
    parts.push_back(form::Text(Spell(behind)));
    return form::Sequence(std::move(parts));
  }

  // Returns what stands behind a value.
  std::string Behind(const TagMarks& tags) const {
    const std::string_view line_end = format_.form == CallForm::kFunction ? "\n" : "";
    return Spell(fmt::format("{}{}{}", line_end, tags.behind_value, tags.behind_argument));
  }

  absl::Status AddArguments(const std::string& tool, const json::object& parameters, form::Parts& parts) const {
    constexpr std::string_view kKnown[] = {"type",        "properties",  "required", "additionalProperties",
                                           "title",       "description", "$schema",  "$defs",
                                           "definitions", "examples",    "default"};
    for (const auto& [key, value] : parameters) {
      const std::string_view keyword(key.data(), key.size());
      if (std::ranges::find(kKnown, keyword) != std::end(kKnown)) continue;
      return InputError("tools: {}: #/{}: the keyword is not supported where arguments are written as tags", tool,
                        Excerpt(Printable(keyword)));
    }
    std::vector<std::string_view> required;
    if (const json::value* list = parameters.if_contains("required"); list != nullptr && list->is_array()) {
      for (const json::value& one : list->get_array()) {
        if (one.is_string()) required.push_back(View(one.get_string()));
      }
    }
    std::vector<std::string_view> names;
    const auto add = [&](std::string_view name, const json::value& schema) -> absl::Status {
      if (name.empty() || name.find_first_of("<>\"\n") != std::string_view::npos) {
        return InputError("tools: {}: the parameter {} cannot be written as a tag", tool, Excerpt(Printable(name)));
      }
      names.push_back(name);
      OutputFormat argument = Argument(name, schema, parameters);
      const bool is_required = std::ranges::find(required, name) != required.end();
      parts.push_back(is_required ? std::move(argument) : form::Optional(std::move(argument)));
      return absl::OkStatus();
    };
    const json::value* properties = parameters.if_contains("properties");
    if (properties != nullptr && properties->is_object()) {
      for (const auto& [key, schema] : properties->get_object()) {
        PENSTOCK_RETURN_IF_ERROR(add({key.data(), key.size()}, schema));
      }
    }
    for (const std::string_view name : required) {
      if (std::ranges::find(names, name) == names.end()) PENSTOCK_RETURN_IF_ERROR(add(name, json::object()));
    }
    return absl::OkStatus();
  }

  OutputFormat Argument(std::string_view name, const json::value& schema, const json::object& parameters) const {
    const TagMarks tags = TagsOf(format_);
    return form::Sequence({form::Text(Spell(fmt::format("{}{}{}", tags.before_key, name, tags.behind_key))),
                           Value(schema, parameters, tags), form::Text(Behind(tags))});
  }

  // Returns a value such that ToolTypes reads one that the schema allows: a string stands as it is, other JSON as JSON.
  OutputFormat Value(const json::value& schema, const json::object& parameters, const TagMarks& tags) const {
    const JsonTypes types = TypesOf(schema, parameters);
    const OutputFormat json =
        form::Sequence({form::Text(Spell(tags.before_json)),
                        {OutputFormat::Kind::kTaggedJson,
                         SchemaOf(schema, parameters, {"null", "boolean", "number", "array", "object"})}});
    if (types != 0 && (types & kStringType) == 0) return json;
    form::Parts without = {form::Text(tags.behind_value)};
    // Readers take a line end at the borders of the value for a part of the tag.
    if (format_.form == CallForm::kInvoke) without.push_back(form::Regex(R"(\n[\s\S]*|[\s\S]*\n)"));
    const bool may_look_like_json = types == kStringType || tags.before_json != tags.before_text;
    if (!may_look_like_json) without.push_back(form::Regex(JsonPattern(types == 0 ? ~JsonTypes{0} : types)));
    const OutputFormat text =
        form::Sequence({form::Text(Spell(tags.before_text)),
                        form::TextWithout(std::move(without), SchemaOf(schema, parameters, {"string"}))});
    return types == kStringType ? text : form::Choice({json, text});
  }

  const AnswerFormat& format_;
  const AnswerRule& rule_;
};

}  // namespace

std::string WithMarks(const AnswerFormat& format, std::string_view text) {
  std::string spelled;
  while (!text.empty()) {
    const std::string* longest = nullptr;
    for (const std::string& mark : format.marks) {
      if (text.starts_with(mark) && (longest == nullptr || mark.size() > longest->size())) longest = &mark;
    }
    spelled += longest == nullptr ? std::string(text.substr(0, 1)) : grammar::MarkText(*longest);
    text.remove_prefix(longest == nullptr ? 1 : longest->size());
  }
  return spelled;
}

absl::StatusOr<OutputFormat> FormatOfCalls(const AnswerFormat& format, const json::value& tools,
                                           const AnswerRule& rule) {
  return CallComposer(format, rule).Run(tools.get_array());
}

bool HasStrictTool(const json::value& tools) {
  return tools.is_array() && std::ranges::any_of(tools.get_array(), IsStrict);
}

}  // namespace penstock
