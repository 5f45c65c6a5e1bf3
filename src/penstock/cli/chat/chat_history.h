// The messages of a chat in the terminal, and its file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "penstock/base/json.h"

namespace penstock::cli {

class ChatHistory {
 public:
  void SetSystem(std::string_view text) { system_ = text; }
  void Clear() { messages_.clear(); }
  bool empty() const { return messages_.empty(); }
  size_t num_messages() const { return messages_.size(); }

  void Add(std::string_view role, std::string_view text);
  // Removes the last turn: the last message of the user, and all behind it. Returns its text, or nothing if there is no
  // turn.
  std::optional<std::string> RemoveLastTurn();
  // Removes the oldest turn, and returns the text of its question. Returns nothing if only one turn is left.
  std::optional<std::string> RemoveOldestTurn();

  // Returns all messages, the system message first.
  json::array Messages() const;

  // The file holds one line, {"messages": [...]}, which penstock run takes as a request, too. Load() also takes a list
  // of messages. An error leaves the chat unchanged.
  absl::Status Save(const std::string& path) const;
  absl::Status Load(const std::string& path);

 private:
  std::string system_;  // empty: none
  json::array messages_;
};

}  // namespace penstock::cli
