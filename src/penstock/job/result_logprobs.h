// Log-probabilities in the JSON of result lines, in OpenAI's and vLLM's forms, and helpers to write JSON piece by
// piece.
//
// With 20 alternatives, a token has kilobytes of log-probabilities. So they are never held as a tree of values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "penstock/base/json.h"
#include "penstock/engine.h"

namespace penstock {

// Engine::TokenBytes
using TokenText = std::function<std::string(TokenId, bool begins_text)>;

// The most memory that the log-probabilities of a token take, with this many alternatives: in vectors that grow, and
// in the text of a result. A growing string holds up to three times its text. In the text, a value is
// {"token":" the","logprob":-1.2345678901234567E1,"bytes":[32,116,104,101]}.
uint64_t KeptLogprobsBytes(int num_top);
uint64_t ListedLogprobsBytes(int num_top);

std::string JsonText(const json::value& value);
// Returns a JSON object without its closing brace.
std::string OpenJson(const json::object& object);
// Appends "[item(0),item(1),...]".
void AppendList(size_t count, absl::FunctionRef<std::string(size_t)> item, std::string& out);

// Appends the object `logprobs` of a chat completion, or of a piece of one, which does not begin the text.
void AppendChatLogprobs(std::span<const TokenLogprobs> tokens, bool begins_text, const TokenText& token_text,
                        std::string& out);
// The beginning of the text to which listed tokens belong: the first token of a text may lose a leading space.
enum class TextBegins : uint8_t {
  kWithPrompt,  // the prompt's tokens are listed, too (echo)
  kWithAnswer,
  kBefore,  // the tokens continue a text
};
// Appends the object `logprobs` of a completion, or of a piece of one. `num_chars` counts the characters before it, and
// then also those in it: the object's `text_offset`s begin there.
void AppendCompletionLogprobs(const Completion& completion, TextBegins begins, int num_top, const TokenText& token_text,
                              int64_t& num_chars, std::string& out);
// Appends vLLM's field `prompt_logprobs`: for each token of the prompt an object with token ids as keys, null for the
// first one.
void AppendPromptLogprobs(const std::vector<TokenLogprobs>& tokens, int num_top, const TokenText& token_text,
                          std::string& out);

}  // namespace penstock
