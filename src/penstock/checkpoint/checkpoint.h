// A catalogue of the named tensors of a model folder: one or many safetensors shards.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

struct ShardIndex;

class Checkpoint {
 public:
  // Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names, and validates all
  // their headers against each other and the index. Reads no tensor. What is wrong with the files is kModel
  // and names file and tensor; kUsage when the folder holds two formats; kIo and kResources when the system
  // cannot read or hold them.
  static absl::StatusOr<Checkpoint> Open(const ModelFolder& folder);

  // nullptr when there is no such tensor.
  const TensorInfo* Find(std::string_view name) const;

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::vector<OpenedFile>& files() const { return files_; }
  // Of all tensors.
  uint64_t total_bytes() const;
  // Memory that the catalogue itself takes.
  uint64_t memory_bytes() const;

  // Digest of config-independent content: names, dtypes, shapes, extents, file sizes, and values from the middle of up
  // to 4,096 tensors (xxh3-128, hex). Tells a model from its fine-tune in at most 16 MiB of reads; it is no checksum.
  absl::StatusOr<std::string> Fingerprint() const;

 private:
  absl::Status SortNames();                                // refuses a name in two shards
  absl::Status CheckIndex(const ShardIndex& index) const;  // index and shards must agree

  std::vector<TensorInfo> tensors_;
  std::vector<OpenedFile> files_;
  std::vector<int>
      by_name_;  // indices into tensors_, sorted by name: four bytes per tensor where a map takes a hundred
};

}  // namespace penstock
