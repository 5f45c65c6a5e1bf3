// Splits the answers of all families.
#pragma once

#include <memory>
#include <string>

#include "penstock/chat.h"
#include "penstock/chat/answer/answer_format.h"
#include "penstock/chat_answer.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

// Returns a stream for one answer to `chat`, which follows `rule`. Only a chat with tools gets tool calls, except in
// gpt-oss's format. The format and the tokenizer must outlive the stream.
//
// Text that is no valid call is content, with its marks. White space beside a mark belongs to nothing. Calls are handed
// out as soon as they are complete. Content that follows a format stays as it is.
std::unique_ptr<AnswerStream> NewAnswerStream(const AnswerFormat& format, AnswerStart start, const Chat& chat,
                                              const AnswerRule& rule, const Tokenizer& tokenizer);

}  // namespace penstock
