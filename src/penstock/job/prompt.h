// The prompt of a request: the tokens of its text, or those of its chat in the model's template.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/input/request_line.h"

namespace penstock {

// The things on which a prompt depends besides the request.
struct PromptMaker {
  ModelInfo model;
  std::function<absl::StatusOr<std::vector<TokenId>>(std::string_view)> tokenize;
  std::function<absl::StatusOr<std::vector<TokenId>>(std::string_view)> tokenize_piece;  // Engine::TokenizePiece
  std::function<absl::StatusOr<std::vector<TokenId>>(const Chat&)> tokenize_chat;
  std::optional<std::string> system;  // see JobOptions
  std::string date = {};              // see ChatParts
};

// Returns what the engine's model needs. The engine must outlive it.
PromptMaker MakerOf(const Engine& engine, const std::optional<std::string>& system, const std::string& date);

// Returns the prompt's tokens; of turns, the prompt of the first one that `answers` do not answer. Takes the messages
// of a chat out of the request, and hands the chat out if `chat` is given. kInput for a prompt that cannot fit the
// context, and as Engine::TokenizeChat().
absl::StatusOr<std::vector<TokenId>> PromptOf(const PromptMaker& maker, JobRequest& request,
                                              const std::vector<std::string>& answers,
                                              std::optional<Chat>* chat = nullptr);

// Returns the tokens of words that an answer must not contain.
absl::StatusOr<std::vector<std::vector<TokenId>>> BadWordsOf(const PromptMaker& maker,
                                                             const std::vector<std::string>& words);

}  // namespace penstock
