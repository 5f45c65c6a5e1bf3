// A chat as a value, from which a model's chat template makes a prompt.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

struct ChatMessage {
  std::string role;
  std::string content;
};

struct ChatParts;  // Penstock's own form of a chat

// Messages, tools and further variables of the chat template. Immutable; copies share one content.
class Chat {
 public:
  // Makes a chat of plain messages. `date` is the day that the template prints (strftime_now), as "2026-11-21"; an
  // empty one stands for 2024-07-26.
  explicit Chat(std::span<const ChatMessage> messages, std::string date = {});
  // For Penstock's own use: makes a chat of parts that it has already checked.
  explicit Chat(ChatParts parts);

  // Parses and checks a chat in the form that OpenAI's clients send. `messages` is a JSON list of {"role", "content",
  // ...}. `tools` is a list of objects. `variables` is an object of further variables of the template, such as
  // documents or enable_thinking. `tools` and `variables` may be empty texts. Returns kInput, naming the part at fault.
  static absl::StatusOr<Chat> FromJson(std::string_view messages, std::string_view tools = {},
                                       std::string_view variables = {});

  const ChatParts& parts() const { return *parts_; }

 private:
  std::shared_ptr<const ChatParts> parts_;
};

}  // namespace penstock
