// The parts of a chat as parsed JSON, and the checks that each of them passes once, where it enters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "penstock/base/json.h"

namespace penstock {

struct ChatParts {
  json::array
      messages;       // objects, each with a "role"; no field is null; a "content" is a string or a list of text parts
  json::value tools;  // a list of objects, or null
  json::object variables;       // further variables of the template: documents, enable_thinking ...
  bool continues_last = false;  // the answer continues the last message, which is the model's
  std::string date = {};        // the day that the template prints (strftime_now), as "2026-11-21"; empty: 2024-07-26
};

// The first fault of a chat: its place ("messages[2]"), and what is wrong there.
struct ChatFault {
  std::string place;
  std::string message;
};

// Checks `value`, a list of messages, and copies it to `messages` with their fields as transformers passes them.
std::optional<ChatFault> ReadChatMessages(const json::value& value, json::array& messages);
std::optional<ChatFault> CheckChatTools(const json::value& tools);
std::optional<ChatFault> CheckChatDocuments(const json::value& documents);

// Returns the size of the messages as JSON text.
uint64_t JsonBytes(const json::array& messages);

}  // namespace penstock
