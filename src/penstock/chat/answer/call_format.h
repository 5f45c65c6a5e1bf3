// Composes the formats of tool calls, as each family writes them.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/chat/answer/answer_format.h"
#include "penstock/chat_answer.h"

namespace penstock {

// Returns the text with its marks as formats write them (grammar::MarkText).
std::string WithMarks(const AnswerFormat& format, std::string_view text);

// Returns the format of the calls of an answer: one, or several unless rule.has_one_call, of the tools that the rule
// allows. Arguments follow the schema of a tool if the rule demands a call, or if the tool is strict; otherwise they
// are any object. kInput, naming the tool, if it has no name of letters, digits, "_" and "-", or if its parameters
// cannot be written as tags; kInput, too, if the family has no calls.
absl::StatusOr<OutputFormat> FormatOfCalls(const AnswerFormat& format, const json::value& tools,
                                           const AnswerRule& rule);

// Whether one of the tools demands that its arguments follow their schema.
bool HasStrictTool(const json::value& tools);

}  // namespace penstock
