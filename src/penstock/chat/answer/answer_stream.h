// Splits the answers of all families.
#pragma once

#include <memory>
#include <string>

#include "penstock/chat.h"
#include "penstock/chat/answer/answer_format.h"
#include "penstock/chat_answer.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

// Returns a stream for one answer to `chat`. Only a chat with tools gets tool calls, except in gpt-oss's format. The
// format and the tokenizer must outlive the stream.
//
// Text that is no valid call is content, with its marks. White space beside a mark belongs to nothing. Calls are handed
// out as soon as they are complete.
std::unique_ptr<AnswerStream> NewAnswerStream(const AnswerFormat& format, AnswerStart start, const Chat& chat,
                                              const Tokenizer& tokenizer);

// Returns a stream for an answer that is the arguments of one call.
std::unique_ptr<AnswerStream> NewCallStream(std::string tool_name);
// Returns a stream that leaves out all calls of another one except the first.
std::unique_ptr<AnswerStream> OnlyFirstCall(std::unique_ptr<AnswerStream> stream);

}  // namespace penstock
