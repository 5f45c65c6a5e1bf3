// Reads generation_config.json, or what a GGUF file has of it: the model's end-of-sequence ids and default sampling.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/gguf.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/model/config_reader.h"
#include "penstock/token_id.h"

namespace penstock {

struct GenerationConfig {
  std::vector<TokenId> eos_ids;
  std::vector<TokenId> decoder_start_ids;  // of an encoder-decoder model: one, or none if not given
  bool do_sample = false;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  int64_t max_new_tokens = 0;  // 0: not given

  // Whether tokens are drawn at random, unless a request says otherwise.
  bool draws_tokens() const { return do_sample && temperature > 0; }
};

// Returns the defaults above when the file is absent.
absl::StatusOr<GenerationConfig> LoadGenerationConfig(const ModelFolder& folder, int64_t vocab_size);
absl::StatusOr<GenerationConfig> ParseGenerationConfig(std::string_view text, int64_t vocab_size);

// Reads the keys general.sampling.*, which llama.cpp's converter takes from generation_config.json. It does not say
// whether the model samples at all, so a model with any of these keys does, unless its temperature is 0.
absl::StatusOr<GenerationConfig> ReadGgufGenerationConfig(const GgufMetadata& metadata);

// Reads a field that holds one id, a list of ids, or null. The reader gets an error for ids outside [0, vocab_size).
std::vector<TokenId> ReadTokenIds(ConfigReader& reader, std::string_view field, int64_t vocab_size);

}  // namespace penstock
