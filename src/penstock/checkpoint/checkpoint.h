// A catalogue of the named tensors of a model folder: one or many safetensors shards, a packed store, or GGUF.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/gguf.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

struct ShardIndex;

class Checkpoint {
 public:
  enum class Format { kSafetensors, kPacked, kGguf };

  // Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names, or a packed store, and
  // validates all their headers against each other and the index. Reads no tensor. What is wrong with the files is
  // kModel and names file and tensor; kUsage when the folder holds two formats; kIo and kResources when the system
  // cannot read or hold them.
  static absl::StatusOr<Checkpoint> Open(const ModelFolder& folder);
  static absl::StatusOr<Checkpoint> FromGguf(Gguf gguf);

  // nullptr when there is no such tensor.
  const TensorInfo* Find(std::string_view name) const;

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::vector<OpenedFile>& files() const { return files_; }
  // Of all tensors.
  uint64_t total_bytes() const;
  // Memory that the catalogue itself takes.
  uint64_t memory_bytes() const;

  Format format() const { return format_; }
  // How a packed store was quantised ("none", "int8", ...); empty for others.
  const std::string& quantize() const { return quantize_; }

  // Digest of config-independent content: names, dtypes, shapes, extents, file sizes, and the checksums of all tensors
  // or, where there are none, values from the middle of up to 4,096 of them (xxh3-128, hex): enough to tell a model
  // from its fine-tune in at most 16 MiB of reads.
  absl::StatusOr<std::string> Fingerprint() const;

 private:
  static absl::StatusOr<Checkpoint> OpenPacked(const ModelFolder& folder);
  absl::Status SortNames();                                // refuses a name in two shards
  absl::Status CheckIndex(const ShardIndex& index) const;  // index and shards must agree

  Format format_ = Format::kSafetensors;
  std::string quantize_;
  std::vector<TensorInfo> tensors_;
  std::vector<OpenedFile> files_;
  std::vector<int>
      by_name_;  // indices into tensors_, sorted by name: four bytes per tensor where a map takes a hundred
};

}  // namespace penstock
