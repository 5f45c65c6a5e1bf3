// Codes in a checkpoint in place of floats, with their scales in separate tensors (quantization_config of config.json).
#pragma once

#include <cstdint>
#include <string_view>

#include "penstock/model/config_reader.h"

namespace penstock {

struct CodedWeights {
  enum class Kind : uint8_t {
    kNone,
    kFp8,    // E4M3. NAME has the codes, NAME and `scale_suffix` the scales
    kMxfp4,  // E2M1, a power of two for each 32 inputs. NAME_blocks, NAME_scales (gpt-oss)
    // Codes of four bits: weight = (code - 8) * scale. The codes of 8 inputs share 4 bytes, the first in the lowest
    // bits.
    kInt4Rows,     // BASE.weight_packed [outputs, inputs / 8], BASE.weight_scale [outputs, groups] (compressed-tensors)
    kInt4Columns,  // BASE.qweight [inputs / 8, outputs], BASE.scales [groups, outputs] (GPTQ, AutoRound)
  };
  Kind kind = Kind::kNone;
  std::string_view scale_suffix = {};
  int64_t block_rows = 1;  // outputs that share a scale; 0: all
  int64_t group = 0;       // inputs that share a scale; 0: all

  bool is_int4() const { return kind == Kind::kInt4Rows || kind == Kind::kInt4Columns; }
};

// Reads quantization_config. Refuses, under the field's name, codes that no kernel multiplies.
CodedWeights ReadCodedWeights(ConfigReader& reader);

}  // namespace penstock
