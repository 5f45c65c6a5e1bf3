// Composes the format of a whole answer: reasoning, which is free, and what follows it.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/chat/answer/answer_format.h"
#include "penstock/chat_answer.h"

namespace penstock {

// Returns the white space between reasoning and content in this format. Nothing: there may be any, because the content
// never begins with some.
std::optional<std::string_view> SpaceBehindReasoning(const AnswerFormat& format, const OutputFormat& content);

// Returns the format of an answer to a chat with these tools (null: none). Nothing if any answer follows the rule.
//
// Reasoning is any text up to the mark that ends it. Then come the content, in its format, or calls. A tool that is
// strict makes all calls well-formed, also in an answer that need not call. kInput as FormatOfCalls(), and if the model
// has no calls to make.
absl::StatusOr<std::optional<OutputFormat>> FormatOfAnswer(const AnswerFormat& format, AnswerStart start,
                                                           const json::value& tools, const AnswerRule& rule);

}  // namespace penstock
