// An answer of a chat, by its parts.
#pragma once

#include <string>
#include <vector>

namespace penstock {

struct ToolCall {
  std::string name;
  std::string arguments;  // as the model wrote them: JSON, if it did well
};

struct ChatAnswer {
  std::string content;
  std::string reasoning = {};  // thoughts that the model's format keeps apart
  std::vector<ToolCall> tool_calls = {};
};

}  // namespace penstock
