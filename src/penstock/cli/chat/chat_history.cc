#include "penstock/cli/chat/chat_history.h"

#include <utility>

#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/chat/chat_parts.h"

namespace penstock::cli {
namespace {

json::string_view Of(std::string_view text) { return {text.data(), text.size()}; }

std::string_view RoleOf(const json::value& message) { return View(message.at("role").as_string()); }

std::string ContentOf(const json::value& message) {
  const json::value* content = message.as_object().if_contains("content");
  return content != nullptr && content->is_string() ? std::string(View(content->get_string())) : "";
}

}  // namespace

void ChatHistory::Add(std::string_view role, std::string_view text) {
  messages_.push_back(json::object{{"role", Of(role)}, {"content", Of(text)}});
}

std::optional<std::string> ChatHistory::RemoveLastTurn() {
  for (size_t i = messages_.size(); i-- > 0;) {
    if (RoleOf(messages_[i]) != "user") continue;
    std::string text = ContentOf(messages_[i]);
    messages_.erase(messages_.begin() + static_cast<int64_t>(i), messages_.end());
    return text;
  }
  return std::nullopt;
}

std::optional<std::string> ChatHistory::RemoveOldestTurn() {
  for (size_t i = 1; i < messages_.size(); ++i) {
    if (RoleOf(messages_[i]) != "user") continue;
    std::string text = ContentOf(messages_[0]);
    messages_.erase(messages_.begin(), messages_.begin() + static_cast<int64_t>(i));
    return text;
  }
  return std::nullopt;
}

json::array ChatHistory::Messages() const {
  json::array all;
  if (!system_.empty()) all.push_back(json::object{{"role", "system"}, {"content", system_}});
  all.insert(all.end(), messages_.begin(), messages_.end());
  return all;
}

absl::Status ChatHistory::Save(const std::string& path) const {
  return ReplaceFile(path, std::string(json::serialize(json::object{{"messages", Messages()}})) + "\n");
}

absl::Status ChatHistory::Load(const std::string& path) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRequestLineBytes));
  const absl::StatusOr<json::value> value = ParseJson(text, Fault::kInput);
  if (!value.ok()) return Annotate(value.status(), path);
  const json::value* list = value->is_object() ? value->get_object().if_contains("messages") : &*value;
  json::array messages;
  if (list == nullptr) return InputError("{}: expected an object with \"messages\"", path);
  if (const auto fault = ReadChatMessages(*list, messages)) {
    return InputError("{}: {}: {}", path, fault->place, fault->message);
  }
  const bool has_system = RoleOf(messages[0]) == "system" && messages[0].as_object().contains("content");
  system_ = has_system ? ContentOf(messages[0]) : "";
  if (has_system) messages.erase(messages.begin());
  messages_ = std::move(messages);
  return absl::OkStatus();
}

}  // namespace penstock::cli
