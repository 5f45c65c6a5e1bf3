// Codes in a checkpoint in place of floats, with their scales in separate tensors (quantization_config of config.json).
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/model/config_reader.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// NAME is the name of a weight as floats, BASE the same without ".weight".
struct CodedWeights {
  enum class Kind : uint8_t {
    kNone,
    kFp8,          // E4M3. NAME has the codes, NAME and `scale_suffix` the scales
    kMxfp4,        // E2M1, a power of two for each 32 inputs. NAME_blocks, NAME_scales (gpt-oss)
    kPackedMxfp4,  // the same. NAME_packed [outputs, inputs / 2], NAME_scale [outputs, groups] (compressed-tensors)
    // E2M1, a scale in E4M3 for each 16 inputs, and one scale of all scales.
    kNvfp4,        // NAME [outputs, inputs / 2], NAME_scale [outputs, groups], NAME_scale_2 (modelopt)
    kPackedNvfp4,  // NAME_packed, NAME_scale, NAME_global_scale, which divides the scales (compressed-tensors)
    // weight = (code - zero point) * scale. Codes of `format` share words of 4 bytes, the first in the lowest bits.
    // With kU4, words hold the zero points of 8 neighbouring outputs; otherwise a zero point is 8, or 128 with kQ8_0.
    kIntRows,     // NAME_packed [outputs, words], NAME_scale [outputs, groups], NAME_zero_point [words, groups]
                  // (compressed-tensors)
    kIntColumns,  // BASE.qweight [words, outputs], BASE.scales [groups, outputs], BASE.qzeros [groups, words] (GPTQ)
    kAwq,         // BASE.qweight [inputs, words of outputs], BASE.scales and BASE.qzeros as of GPTQ
  };
  Kind kind = Kind::kNone;
  WeightFormat format = WeightFormat::kFp8;  // of the blocks that codes and scales become
  std::string_view scale_suffix = {};
  int64_t block_rows = 1;         // outputs that share a scale; 0: all
  int64_t group = 0;              // inputs that share a scale; 0: all
  bool zeros_are_less_1 = false;  // the file has zero points less 1
  bool has_groups = false;        // kIntColumns: BASE.g_idx has each input's group (desc_act)

  bool is_int() const { return kind >= Kind::kIntRows; }
  // Says whether the codes are stored under the weight's own name.
  bool has_own_name() const { return kind == Kind::kFp8 || kind == Kind::kNvfp4; }
};

// Returns E4M3 with one scale for each output, or for all of them (block_rows 0), in NAME_scale.
CodedWeights Fp8InRows(int64_t block_rows);

// Reads quantization_config. Refuses, under the field's name, codes that no kernel multiplies.
CodedWeights ReadCodedWeights(ConfigReader& reader);

// Reads hf_quant_config.json, which modelopt writes in place of quantization_config, or beside it.
inline constexpr std::string_view kModeloptFile = "hf_quant_config.json";
absl::StatusOr<CodedWeights> ParseModeloptFile(std::string_view text);

}  // namespace penstock
