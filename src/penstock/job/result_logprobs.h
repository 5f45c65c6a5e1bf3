// Log-probabilities in the JSON of result lines, in OpenAI's and vLLM's forms, and helpers to write JSON piece by
// piece.
//
// With 20 alternatives, a token has kilobytes of log-probabilities. So they are never held as a tree of values.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "penstock/base/json.h"
#include "penstock/engine.h"

namespace penstock {

// Engine::TokenBytes
using TokenText = std::function<std::string(TokenId, bool begins_text)>;

std::string JsonText(const json::value& value);
// Returns a JSON object without its closing brace.
std::string OpenJson(const json::object& object);
// Appends "[item(0),item(1),...]".
void AppendList(size_t count, absl::FunctionRef<std::string(size_t)> item, std::string& out);

// Appends the object `logprobs` of a chat completion.
void AppendChatLogprobs(const std::vector<TokenLogprobs>& tokens, const TokenText& token_text, std::string& out);
// Appends the object `logprobs` of a completion; with an echo also the prompt's. `text_offset` counts characters from
// the start of the text.
void AppendCompletionLogprobs(const Completion& completion, bool with_prompt, int num_top, const TokenText& token_text,
                              std::string& out);
// Appends vLLM's field `prompt_logprobs`: for each token of the prompt an object with token ids as keys, null for the
// first one.
void AppendPromptLogprobs(const std::vector<TokenLogprobs>& tokens, int num_top, const TokenText& token_text,
                          std::string& out);

}  // namespace penstock
