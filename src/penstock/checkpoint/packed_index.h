// The index of a packed store: a model folder whose weights lie in one file, in the layout that kernels compute on.
//
//   penstock.json   this index
//   penstock.bin    for each layer one blob of its dense weights, and one blob for each expert (gate, up, down);
//                   blobs and compressed matrices lie at multiples of 4 KiB, panels (tensor/packed_matrix.h) at
//                   multiples of 64 bytes
//   config.json, tokenizer files ...   as in the model folder that was packed
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

inline constexpr std::string_view kPackedIndexFile = "penstock.json";
inline constexpr std::string_view kPackedWeightsFile = "penstock.bin";
inline constexpr int64_t kPackedStoreVersion = 2;  // version 1 stored weights under their family's names

struct PackedIndex {
  std::string quantize;  // "none", "int8", "hqq4", "hqq3", "hqq2", "ternary" or "mixed"
  std::string source;    // fingerprint of the model that was packed
  uint64_t weights_bytes = 0;
  std::vector<TensorInfo> tensors;  // in the order of their offsets; each has its checksum
  // The checksums (XXH3) of the other files on which answers depend: config, tokenizer, chat template. Stores of
  // earlier programs have none.
  std::map<std::string, uint64_t> files = {};
};

std::string SerializePackedIndex(const PackedIndex& index);

// Parses the index. Refuses (kModel): another version, unknown formats, shapes and sizes that disagree, duplicate
// names, and tensors that overlap, reach beyond weights_bytes or are not aligned. The weight map checks names, shapes,
// and which tensors are compressed.
absl::StatusOr<PackedIndex> ParsePackedIndex(std::string_view text);

// Reads the index of a packed store. Returns kModel also when one of its other files is missing or has another
// checksum.
absl::StatusOr<PackedIndex> ReadPackedIndex(const ModelFolder& folder);

// Returns kModel when the bytes are not those that were packed.
absl::Status CheckSum(const TensorInfo& tensor, uint64_t found);

// Returns kModel: the bytes have their checksum, and yet are not the compressed form of the tensor.
absl::Status CannotDecompress(const TensorInfo& tensor);

}  // namespace penstock
