// The answer to a chat, split into its parts.
#pragma once

#include <string>
#include <vector>

namespace penstock {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON as the model wrote it, so it may be invalid
};

struct ChatAnswer {
  std::string content;
  std::string reasoning = {};  // thoughts, if the model's format separates them
  std::vector<ToolCall> tool_calls = {};
};

}  // namespace penstock
