// Rotary position embeddings (Su et al. 2021): by which angle each pair of dimensions rotates at each position.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/model/config_reader.h"

namespace penstock {

// A pair of dimensions i at position p rotates by p * frequencies[i]; cos and sin are multiplied by `scale`.
struct RopeFrequencies {
  std::vector<float> frequencies;  // [rotary_dim / 2]
  float scale = 1;

  bool operator==(const RopeFrequencies&) const = default;
};

struct Rope {
  double theta = 0;             // that frequencies are powers of
  int64_t rotary_dim = 0;       // even; the first dimensions of a head (of MLA, the last)
  bool is_interleaved = false;  // pairs are (2 i, 2 i + 1), not (i, i + rotary_dim / 2)
  RopeFrequencies usual;
  // LongRoPE (Ding et al. 2024): of sequences that are longer than original_positions; empty elsewhere.
  RopeFrequencies longer;
  int64_t original_positions = 0;
  // What YaRN multiplies q . k by in models that have mscale_all_dim (DeepSeek); 1 elsewhere.
  float attention_factor = 1;

  // Of a row at `pos` of a sequence whose prompt has `prompt_length` tokens.
  const RopeFrequencies& At(int64_t pos, int64_t prompt_length) const {
    const bool is_long =
        !longer.frequencies.empty() && (pos >= original_positions || prompt_length > original_positions);
    return is_long ? longer : usual;
  }
  bool operator==(const Rope&) const = default;
};

struct RopeDefaults {
  int64_t dim = 0;  // that rotates where all of a head does
  double theta = 1e4;
  double partial_factor = 1;      // of `dim`
  bool takes_part = false;        // a part of `dim` may rotate
  std::string_view scaling = {};  // JSON, where neither rope_scaling nor rope_parameters is there
  int64_t max_positions = 0;
  std::string_view layer_type = {};  // whose object of `rope_parameters` counts; empty: it is one for all layers
  double layer_theta = 0;            // instead of rope_theta, where it is not 0
  bool takes_alpha = false;          // of type dynamic
};

// From `rope_theta`, `partial_rotary_factor` (or `rotary_dim`) and `rope_scaling`, or (newer transformers)
// `rope_parameters`: types default, linear, dynamic (up to max_positions; with Hunyuan's `alpha`, too), yarn (Peng et
// al. 2023), longrope and llama3, computed as transformers does. Leaves is_interleaved. Errors go to the reader.
void ReadRope(ConfigReader& reader, const RopeDefaults& defaults, Rope& rope);

}  // namespace penstock
