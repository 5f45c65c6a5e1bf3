// The index of a packed store: a model folder whose weights lie in one file as they are computed.
//
//   penstock.json   this index
//   penstock.bin    for each layer a blob of its dense weights and one for each expert (gate, up, down together), each
//   at
//                   a multiple of 4 KiB; panels (tensor/packed_matrix.h) at multiples of 64 bytes
//   config.json, tokenizer files ...   as in the model folder that was packed
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

inline constexpr std::string_view kPackedIndexFile = "penstock.json";
inline constexpr std::string_view kPackedWeightsFile = "penstock.bin";
inline constexpr int64_t kPackedStoreVersion = 2;  // 1 had weights under the names of their family

struct PackedIndex {
  std::string quantize;  // "none", "int8", "hqq4" or "hqq3"
  std::string source;    // fingerprint of the model that was packed
  uint64_t weights_bytes = 0;
  std::vector<TensorInfo> tensors;  // in the order of their offsets; each has its checksum
};

std::string SerializePackedIndex(const PackedIndex& index);

// Refuses (kModel): another version, unknown formats, shapes and sizes that disagree, tensors that overlap, reach
// beyond weights_bytes or are not aligned, duplicate names. Names and shapes are for the weight map to judge.
absl::StatusOr<PackedIndex> ParsePackedIndex(std::string_view text);

// kModel when the bytes are not those that were packed.
absl::Status CheckSum(const TensorInfo& tensor, uint64_t found);

}  // namespace penstock
