// Reads the tool calls with which a text begins.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "penstock/chat/answer/answer_format.h"
#include "penstock/chat/answer/tagged_arguments.h"
#include "penstock/chat_answer.h"

namespace penstock {

// Says what may follow behind a call that is written as JSON.
struct CallPlace {
  bool in_object = false;  // further members of the object that holds the arguments
  bool in_list = false;    // further calls
  bool any() const { return in_object || in_list; }
};

struct CallRead {
  enum class Kind : uint8_t {
    kCalls,
    kOpen,    // one call, whose arguments begin behind num_bytes
    kCutOff,  // the text ends before that
    kNone,    // no call, whatever follows
  } kind = Kind::kNone;
  // Their arguments are valid JSON. Of kOpen, the call has none yet. Of kCutOff, the last one has what the text tells
  // of its arguments.
  std::vector<ToolCall> calls = {};
  size_t num_bytes = 0;  // of the text that the calls take
  CallPlace place = {};  // of what follows; of kOpen, behind the arguments
};

// Reads calls at the beginning of `text`, which begins with one of the format's starts. A call whose arguments stand as
// one JSON object is read up to them. `types` are those of arguments that are written as tags.
CallRead ReadCalls(const AnswerFormat& format, const ToolTypes& types, std::string_view text);

// Reads one step further behind a call: the end of its object (kCalls, without a call), or the next call of a list.
// REQUIRES: place.any().
CallRead ReadBehindCall(CallPlace place, std::string_view text);

}  // namespace penstock
