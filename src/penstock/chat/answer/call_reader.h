// Reads the tool calls with which a text begins.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "penstock/chat/answer/answer_format.h"
#include "penstock/chat/answer/tagged_arguments.h"
#include "penstock/chat_answer.h"

namespace penstock {

struct CallRead {
  enum class Kind : uint8_t { kCalls, kCutOff, kNone } kind = Kind::kNone;
  std::vector<ToolCall> calls = {};
  size_t num_bytes = 0;  // of the text that the calls take
};

// Reads the calls at the beginning of `text`, which begins with one of the format's starts. Their arguments are valid
// JSON. kCutOff: more text may complete a call. kNone: whatever follows, this is no call. `types` are those of
// arguments that are written as tags.
CallRead ReadCalls(const AnswerFormat& format, const ToolTypes& types, std::string_view text);

}  // namespace penstock
