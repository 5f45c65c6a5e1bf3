// Rotary position embeddings (Su et al. 2021): the angle by which each pair of dimensions rotates at each position.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/model/config_reader.h"

namespace penstock {

// The pair of dimensions i at position p rotates by p * frequencies[i]; cos and sin are multiplied by `scale`.
struct RopeFrequencies {
  std::vector<float> frequencies;  // [rotary_dim / 2]
  float scale = 1;

  bool operator==(const RopeFrequencies&) const = default;
};

struct Rope {
  double theta = 0;             // base of the frequencies
  int64_t rotary_dim = 0;       // even; the first dimensions of a head (the last in MLA)
  bool is_interleaved = false;  // pairs are (2 i, 2 i + 1), not (i, i + rotary_dim / 2)
  RopeFrequencies usual;
  // LongRoPE (Ding et al. 2024): for sequences that may get longer than original_positions; empty elsewhere.
  RopeFrequencies longer;
  int64_t original_positions = 0;
  // The factor of q . k under YaRN in models that have mscale_all_dim (DeepSeek); 1 elsewhere.
  float attention_factor = 1;

  // Returns the frequencies of all rows of a sequence that may get this long.
  const RopeFrequencies& Of(int64_t length) const {
    return !longer.frequencies.empty() && length > original_positions ? longer : usual;
  }
  bool operator==(const Rope&) const = default;
};

struct RopeDefaults {
  int64_t dim = 0;  // dims of a whole head
  double theta = 1e4;
  double partial_factor = 1;      // the part of `dim` that rotates
  bool takes_part = false;        // a fraction of `dim` may rotate
  std::string_view scaling = {};  // JSON, used when rope_scaling and rope_parameters are absent
  int64_t max_positions = 0;
  std::string_view layer_type = {};  // key in `rope_parameters`; empty: one object for all layers
  double layer_theta = 0;            // replaces rope_theta unless 0
  bool takes_alpha = false;          // with type dynamic
};

// Reads `rope_theta`, `partial_rotary_factor` (or `rotary_dim`) and `rope_scaling`, or (newer transformers)
// `rope_parameters`. The types are default, linear, dynamic (up to max_positions; also with Hunyuan's `alpha`), yarn
// (Peng et al. 2023), longrope, llama3 and proportional, computed as in transformers. Leaves is_interleaved unchanged.
// Errors go to the reader.
void ReadRope(ConfigReader& reader, const RopeDefaults& defaults, Rope& rope);

}  // namespace penstock
