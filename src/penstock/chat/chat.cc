#include "penstock/chat.h"

#include <algorithm>
#include <utility>

#include "penstock/base/text.h"
#include "penstock/chat/chat_parts.h"

namespace penstock {
namespace {

// Returns what is wrong with a message's content, or an empty string. An assistant that only called tools needs none.
std::string CheckContent(const json::object& message, std::string_view role) {
  const json::value* content = message.if_contains("content");
  if (content == nullptr) return role == "assistant" ? "" : "\"content\" is missing";
  if (content->is_string()) return "";
  if (!content->is_array()) {
    return fmt::format("\"content\": expected a string or a list of text parts, found {}", JsonTypeName(*content));
  }
  for (const json::value& part : content->get_array()) {
    const json::object* object = part.if_object();
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    const json::value* text = object == nullptr ? nullptr : object->if_contains("text");
    if (type == nullptr || !type->is_string()) return "\"content\": a part must be an object with a \"type\"";
    if (View(type->get_string()) != "text") {
      return fmt::format("\"content\": only text parts are supported, found \"{}\"", View(type->get_string()));
    }
    if (text == nullptr || !text->is_string()) return "\"content\": a text part must have a \"text\" string";
  }
  return "";
}

// Prepares a message as transformers does before a template sees it: fields that are null are removed, and the model's
// thoughts get the names that templates look for.
void NormalizeFields(json::object& message) {
  for (auto field = message.begin(); field != message.end();) {
    field = field->value().is_null() ? message.stable_erase(field) : field + 1;
  }
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const json::value* found = message.if_contains(name);
    if (found == nullptr) continue;
    const json::value reasoning = *found;
    message.emplace("thinking", reasoning);
    message["reasoning_content"] = reasoning;
    return;
  }
}

absl::Status StatusOf(const std::optional<ChatFault>& fault) {
  return fault.has_value() ? InputError("{}: {}", fault->place, fault->message) : absl::OkStatus();
}

// Returns the role of which `role` is a typing error; "" if it is none. Templates may know roles of their own.
std::string_view RoleMeant(std::string_view role) {
  constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool", "developer", "function"};
  constexpr size_t kMaxBytes = 64;
  if (role.size() > kMaxBytes || std::ranges::find(kRoles, role) != std::end(kRoles)) return "";
  for (const std::string_view known : kRoles) {
    if (EditDistance(SimplifiedName(role), known) <= 1) return known;
  }
  return "";
}

}  // namespace

std::optional<ChatFault> ReadChatMessages(const json::value& value, json::array& messages) {
  if (!value.is_array() || value.get_array().empty()) {
    return ChatFault{"messages", "expected a list of at least one message"};
  }
  messages = value.get_array();
  for (size_t i = 0; i < messages.size(); ++i) {
    std::string place = fmt::format("messages[{}]", i);
    json::object* message = messages[i].if_object();
    if (message == nullptr) {
      return ChatFault{std::move(place), fmt::format("expected an object, found {}", JsonTypeName(messages[i]))};
    }
    const json::value* role = message->if_contains("role");
    if (role == nullptr || !role->is_string() || role->get_string().empty()) {
      return ChatFault{std::move(place), "expected a \"role\" such as \"user\""};
    }
    const std::string role_text(View(role->get_string()));
    if (const std::string_view known = RoleMeant(role_text); !known.empty()) {
      return ChatFault{std::move(place),
                       fmt::format("unknown role \"{}\"; did you mean {}?", Printable(role_text), known)};
    }
    NormalizeFields(*message);
    if (std::string wrong = CheckContent(*message, role_text); !wrong.empty()) {
      return ChatFault{std::move(place), std::move(wrong)};
    }
  }
  return std::nullopt;
}

std::optional<ChatFault> CheckChatTools(const json::value& tools) {
  if (!tools.is_array()) return ChatFault{"tools", fmt::format("expected a list, found {}", JsonTypeName(tools))};
  for (const json::value& tool : tools.get_array()) {
    if (tool.is_object()) continue;
    return ChatFault{"tools", fmt::format("expected a list of objects, found {} in it", JsonTypeName(tool))};
  }
  return std::nullopt;
}

std::optional<ChatFault> CheckChatDocuments(const json::value& documents) {
  const auto is_object = [](const json::value& document) { return document.is_object(); };
  if (documents.is_array() && std::ranges::all_of(documents.get_array(), is_object)) return std::nullopt;
  return ChatFault{"documents", "expected a list of objects"};
}

uint64_t JsonBytes(const json::array& messages) {
  json::serializer serializer;
  serializer.reset(&messages);
  char buffer[4096];
  uint64_t num_bytes = 0;
  while (!serializer.done()) num_bytes += serializer.read(buffer, sizeof(buffer)).size();
  return num_bytes;
}

Chat::Chat(ChatParts parts) : parts_(std::make_shared<const ChatParts>(std::move(parts))) {}

Chat::Chat(std::span<const ChatMessage> messages, std::string date) {
  ChatParts parts;
  parts.date = std::move(date);
  for (const ChatMessage& message : messages) {
    parts.messages.push_back(json::object{{"role", message.role}, {"content", message.content}});
  }
  parts_ = std::make_shared<const ChatParts>(std::move(parts));
}

absl::StatusOr<Chat> Chat::FromJson(std::string_view messages, std::string_view tools, std::string_view variables) {
  ChatParts parts;
  PENSTOCK_ASSIGN_OR_RETURN(const json::value list, ParseJson(messages, Fault::kInput));
  PENSTOCK_RETURN_IF_ERROR(StatusOf(ReadChatMessages(list, parts.messages)));
  if (!tools.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(json::value value, ParseJson(tools, Fault::kInput));
    PENSTOCK_RETURN_IF_ERROR(StatusOf(CheckChatTools(value)));
    if (!value.get_array().empty()) parts.tools = std::move(value);
  }
  if (!variables.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(json::value value, ParseJson(variables, Fault::kInput));
    if (!value.is_object()) return InputError("variables: expected an object, found {}", JsonTypeName(value));
    const json::value* documents = value.get_object().if_contains("documents");
    if (documents != nullptr && !documents->is_null()) {
      PENSTOCK_RETURN_IF_ERROR(StatusOf(CheckChatDocuments(*documents)));
    }
    parts.variables = std::move(value.get_object());
  }
  return Chat(std::move(parts));
}

}  // namespace penstock
