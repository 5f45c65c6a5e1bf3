// All that is known about a model before its weights are read: config, tensor catalogue, tokenizer, chat template.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/chat/answer/answer_format.h"
#include "penstock/chat/chat_prompt.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/engine.h"
#include "penstock/grammar/constraint.h"
#include "penstock/model/generation_config.h"
#include "penstock/model/model_config.h"
#include "penstock/model/weight_map.h"
#include "penstock/plan/formats.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

struct LoadedModel {
  std::string name;  // last part of the folder's path
  ModelConfig config;
  GenerationConfig generation;
  Checkpoint checkpoint;
  WeightMap weights;                     // points into `checkpoint`
  std::unique_ptr<Tokenizer> tokenizer;  // null when the folder has none: token ids only
  std::optional<ChatPrompts> chat_prompts;
  AnswerFormat answer_format;
  absl::Status tokenizer_status;      // why texts cannot be tokenized
  absl::Status chat_template_status;  // why chats cannot be rendered
  mutable std::mutex compile_mutex;   // one format is compiled at a time: it takes much memory
  mutable std::mutex format_mutex;    // of the next one
  mutable std::shared_ptr<const grammar::FormatVocabulary> format_vocabulary;  // null: no format was compiled yet
  std::string fingerprint;  // digest of all that texts depend on: configs, tokenizer files, samples of tensors

  // See Engine.
  absl::StatusOr<std::vector<TokenId>> Tokenize(std::string_view text) const;
  absl::StatusOr<std::vector<TokenId>> TokenizePiece(std::string_view text) const;
  absl::StatusOr<std::vector<TokenId>> TokenizeChat(const Chat& chat) const;
  // Returns what a prompt's end leaves open.
  AnswerStart StartOf(const Chat& chat, std::span<const TokenId> prompt_ids) const;
  std::unique_ptr<AnswerStream> NewAnswerStream(std::span<const TokenId> prompt_ids, const Chat& chat,
                                                const AnswerRule& rule) const;
  absl::StatusOr<std::optional<OutputFormat>> FormatOfAnswer(std::span<const TokenId> prompt_ids, const Chat& chat,
                                                             const AnswerRule& rule) const;
  std::string TokenBytes(TokenId id, bool begins_text) const;
  absl::StatusOr<std::shared_ptr<const Constraint>> CompileFormat(const OutputFormat& format) const;
  // Returns the maximum number of text bytes that one token can stand for; 0 without a tokenizer.
  uint64_t longest_token_bytes() const;
  // Returns the bytes that this object takes.
  uint64_t memory_bytes() const;
};

// Returns kInput for token ids outside of the vocabulary. The error begins with the name of their field, if it is
// given.
absl::Status CheckTokenIds(std::span<const TokenId> ids, int64_t vocab_size, std::string_view field = "");
// Returns kInput for a prompt that is empty, has such ids, or leaves no room for `num_behind` more tokens.
absl::Status CheckPrompt(std::span<const TokenId> ids, int64_t vocab_size, int64_t context_length,
                         int64_t num_behind = 1);

// Returns why a prompt that an encoder reads has no log-probabilities.
absl::Status NoPromptLogprobs();

ModelInfo InfoOf(const LoadedModel& model, const Formats& formats, int64_t context_length);

// Reads and validates all metadata. Of the tensors it reads only samples, for the fingerprint. Returns a unique_ptr
// because `weights` points into `checkpoint`.
// `mirrors`: see EngineOptions::model_mirrors.
absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const std::string& model_dir,
                                                       std::span<const std::string> mirrors = {});

}  // namespace penstock
