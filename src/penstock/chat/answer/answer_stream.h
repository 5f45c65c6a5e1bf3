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
// Text that is no call is content, with its marks. White space beside a mark belongs to nothing. Content that follows a
// format stays as it is. A call whose arguments are JSON is one as soon as they begin, and they are handed out as they
// come. Other calls are handed out when they are complete, or at the answer's end with what there is of them.
std::unique_ptr<AnswerStream> NewAnswerStream(const AnswerFormat& format, AnswerStart start, const Chat& chat,
                                              const AnswerRule& rule, const Tokenizer& tokenizer);

}  // namespace penstock
