#include "penstock/chat/chat_prompt.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

std::string_view TextOf(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr || !value->is_string() ? std::string_view() : View(value->get_string());
}

void JoinParts(json::object& message) {
  json::value* content = message.if_contains("content");
  if (content == nullptr || !content->is_array()) return;
  std::string joined;
  for (const json::value& part : content->get_array()) {
    if (part.is_object()) joined += TextOf(part.get_object(), "text");
  }
  *content = joined;
}

// Gives an empty content to each message without one. Returns whether there was any.
bool FillContents(json::array& messages) {
  bool filled = false;
  for (json::value& message : messages) {
    if (message.is_object()) filled |= message.get_object().emplace("content", "").second;
  }
  return filled;
}

// Returns whether the value contains an integer too large for 64 bits, which the parser rounded to a double.
bool HasRoundedNumber(const json::value& value) {
  if (value.is_double()) return std::fabs(value.get_double()) >= 9.2e18;
  if (value.is_array()) return std::ranges::any_of(value.get_array(), HasRoundedNumber);
  if (!value.is_object()) return false;
  return std::ranges::any_of(value.get_object(), [](const auto& field) { return HasRoundedNumber(field.value()); });
}

// Parses arguments that are the text of a JSON object, as OpenAI's clients write them. Returns whether there were any.
bool ParseArguments(json::array& messages) {
  bool parsed_any = false;
  for (json::value& message : messages) {
    json::value* calls = message.is_object() ? message.get_object().if_contains("tool_calls") : nullptr;
    if (calls == nullptr || !calls->is_array()) continue;
    for (json::value& call : calls->get_array()) {
      json::value* function = call.is_object() ? call.get_object().if_contains("function") : nullptr;
      json::value* arguments =
          function != nullptr && function->is_object() ? function->get_object().if_contains("arguments") : nullptr;
      if (arguments == nullptr || !arguments->is_string()) continue;
      absl::StatusOr<json::value> parsed = ParseJson(View(arguments->get_string()), Fault::kInput);
      if (!parsed.ok() || !parsed->is_object() || HasRoundedNumber(*parsed)) continue;
      *arguments = *std::move(parsed);
      parsed_any = true;
    }
  }
  return parsed_any;
}

// Returns a chat in which a message of this role has two parts.
json::array ChatWithParts(std::string_view role, std::string_view first, std::string_view second) {
  const auto part = [](std::string_view text) {
    return json::object{{"type", "text"}, {"text", json::string_view(text.data(), text.size())}};
  };
  const json::object parts = {{"role", json::string_view(role.data(), role.size())},
                              {"content", json::array{part(first), part(second)}}};
  const json::object question = {{"role", "user"}, {"content", "question"}};
  if (role == "user") return {parts};
  if (role == "system" || role == "developer") return {parts, question};
  if (role == "assistant") return {question, parts, question};
  const json::object call = {{"id", "call00000"},
                             {"type", "function"},
                             {"function", json::object{{"name", "f"}, {"arguments", json::object{{"x", 1}}}}}};
  const json::object calls = {{"role", "assistant"}, {"content", ""}, {"tool_calls", json::array{call}}};
  json::object result = parts;
  result["name"] = "f";
  result["tool_call_id"] = "call00000";
  return {question, calls, result};
}

// Cuts off what a template writes behind the text of the last message. Templates may leave out white space around it.
absl::Status EndWithLastMessage(const json::array& messages, std::vector<TextSegment>& segments) {
  json::object last = messages.empty() ? json::object() : messages.back().get_object();
  JoinParts(last);
  const std::string_view content = WithoutLeadingSpace(TextOf(last, "content"));
  const std::string_view body = WithoutTrailingSpace(content);
  while (!body.empty() && !segments.empty()) {
    std::string& text = segments.back().text;
    const size_t found = segments.back().origin == Origin::kMessage ? text.rfind(body) : std::string::npos;
    if (found != std::string::npos) {
      text.resize(found + (text.compare(found, content.size(), content) == 0 ? content : body).size());
      return absl::OkStatus();
    }
    segments.pop_back();
  }
  return InputError("continue_final_message: the chat template does not write the last message's text as it is");
}

}  // namespace

absl::StatusOr<ChatPrompts> ChatPrompts::Create(const ChatTemplateTexts& texts, json::object special_tokens) {
  ChatPrompts prompts;
  prompts.special_tokens_ = std::move(special_tokens);
  PENSTOCK_ASSIGN_OR_RETURN(prompts.general_, prompts.MakeVariant(texts.general));
  PENSTOCK_ASSIGN_OR_RETURN(prompts.tool_use_, prompts.MakeVariant(texts.tool_use));
  return prompts;
}

absl::StatusOr<std::optional<ChatPrompts::Variant>> ChatPrompts::MakeVariant(
    const std::optional<std::string>& source) const {
  if (!source.has_value()) return std::optional<Variant>();
  absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(*source);
  if (!chat_template.ok())
    return ModelError("the model's chat template is invalid: {}", Message(chat_template.status()));
  Variant variant{.chat_template = *std::move(chat_template), .part_roles = {}};
  for (const char* role : {"system", "developer", "user", "assistant", "tool"}) {
    if (TakesParts(variant.chat_template, role)) variant.part_roles.emplace_back(role);
  }
  variant.writes_tools = WritesTools(variant.chat_template);
  return std::optional<Variant>(std::move(variant));
}

// Renders a tool, and looks for its name in the output. A template that fails gets the benefit of the doubt.
bool ChatPrompts::WritesTools(const ChatTemplate& chat_template) const {
  constexpr const char* kName = "TOOLOFTRIAL";
  const json::object parameters = {{"type", "object"}, {"properties", json::object()}};
  const json::object function = {{"name", kName}, {"description", "trial"}, {"parameters", parameters}};
  const ChatParts chat{.messages = {},
                       .tools = json::array{json::object{{"type", "function"}, {"function", function}}},
                       .variables = {}};
  const auto segments = RenderWith(chat_template, chat, {json::object{{"role", "user"}, {"content", "question"}}},
                                   {.max_steps = kMaxTemplateSteps / 20});
  return !segments.ok() || std::ranges::any_of(*segments, [](const TextSegment& segment) {
    return segment.text.find(kName) != std::string::npos;
  });
}

// Renders two parts, and looks for the texts of both in the output; quoted texts are a list that was printed as it is.
bool ChatPrompts::TakesParts(const ChatTemplate& chat_template, std::string_view role) const {
  constexpr std::string_view kFirst = "FIRSTPARTOFTWO";
  constexpr std::string_view kSecond = "SECONDPARTOFTWO";
  // A trial takes some thousand steps; the limit stops templates that loop for long.
  const auto segments =
      RenderWith(chat_template, {}, ChatWithParts(role, kFirst, kSecond), {.max_steps = kMaxTemplateSteps / 20});
  if (!segments.ok()) return false;
  std::string text;
  for (const TextSegment& segment : *segments) text += segment.text;
  const auto is_written = [&](std::string_view part) {
    const size_t at = text.find(part);
    if (at == std::string::npos) return false;
    const bool is_quoted = at > 0 && (text[at - 1] == '\'' || text[at - 1] == '"');
    return !is_quoted;
  };
  return is_written(kFirst) && is_written(kSecond);
}

absl::StatusOr<std::vector<TextSegment>> ChatPrompts::RenderWith(const ChatTemplate& chat_template,
                                                                 const ChatParts& chat, json::array messages,
                                                                 const TemplateLimits& limits) const {
  // As in transformers, a missing argument is null, but a missing special token is undefined.
  json::object trusted = special_tokens_;
  trusted["add_generation_prompt"] = !chat.continues_last;
  if (!chat.date.empty()) trusted["current_time"] = chat.date;
  json::object untrusted = chat.variables;
  untrusted["messages"] = std::move(messages);
  untrusted["tools"] = chat.tools;
  for (const char* name : {"tools", "documents"}) {
    const json::value* value = untrusted.if_contains(name);
    if (value == nullptr || value->is_null()) trusted[name] = nullptr;
  }
  return chat_template.Render(trusted, untrusted, limits);
}

absl::StatusOr<std::vector<TextSegment>> ChatPrompts::Render(const ChatParts& chat) const {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<TextSegment> segments, RenderWhole(chat));
  if (chat.continues_last) PENSTOCK_RETURN_IF_ERROR(EndWithLastMessage(chat.messages, segments));
  return segments;
}

absl::StatusOr<std::vector<TextSegment>> ChatPrompts::RenderWhole(const ChatParts& chat) const {
  const bool with_tools = !chat.tools.is_null() && tool_use_.has_value();
  if (!with_tools && !general_.has_value()) {
    return InputError("the model has a chat template for requests with tools only; give tools or use completions");
  }
  const Variant& variant = with_tools ? *tool_use_ : *general_;
  if (!chat.tools.is_null() && !with_tools && !variant.writes_tools) {
    return InputError("tools: the model's chat template does not show them to the model; leave them out");
  }
  json::array messages = chat.messages;
  for (json::value& message : messages) {
    if (!message.is_object()) continue;
    const auto& roles = variant.part_roles;
    const bool takes_parts = std::find(roles.begin(), roles.end(), TextOf(message.get_object(), "role")) != roles.end();
    if (!takes_parts) JoinParts(message.get_object());
  }
  json::array with_objects = messages;
  const bool parsed_any = ParseArguments(with_objects);
  auto segments = RenderWith(variant.chat_template, chat, with_objects);
  if (!segments.ok() && FillContents(with_objects)) {
    segments = RenderWith(variant.chat_template, chat, std::move(with_objects));
  }
  // DeepSeek-V3's template joins arguments with text, so it needs them as text.
  if (!segments.ok() && parsed_any) {
    FillContents(messages);
    return RenderWith(variant.chat_template, chat, std::move(messages));
  }
  return segments;
}

std::string ChatPrompts::Literals() const {
  std::string literals;
  if (general_.has_value()) literals += general_->chat_template.Literals();
  if (tool_use_.has_value()) literals += tool_use_->chat_template.Literals();
  return literals;
}

}  // namespace penstock
