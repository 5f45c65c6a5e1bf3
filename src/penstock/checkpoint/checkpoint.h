// A catalogue of the named tensors of a model folder: one or many safetensors shards.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

class Checkpoint {
 public:
  // Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names, and validates all their headers
  // against each other and the index. Reads no tensor. Every failure is kModel and names file and tensor.
  static absl::StatusOr<Checkpoint> Open(const ModelFolder& folder);

  // nullptr when there is no such tensor.
  const TensorInfo* Find(std::string_view name) const;

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::vector<OpenedFile>& files() const { return files_; }
  uint64_t total_bytes() const;

  // Digest of config-independent content: names, dtypes, shapes, extents and file sizes (xxh3-128, hex). Tells two models
  // apart without reading their weights.
  std::string Fingerprint() const;

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<OpenedFile> files_;
  absl::flat_hash_map<std::string, int> index_by_name_;
};

}  // namespace penstock
