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

  // Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names, or a packed store. Validates
  // all headers against each other and the index, and reads no tensor. Returns kModel, naming file and tensor, when the
  // files are wrong, kUsage when the folder holds two formats, and kIo or kResources when the system cannot read or
  // hold them.
  static absl::StatusOr<Checkpoint> Open(const ModelFolder& folder);
  static absl::StatusOr<Checkpoint> FromGguf(Gguf gguf);

  // Opens a mirror: a folder with copies of all or some files of `folder`, or of parts of them. Of a GGUF model it may
  // be the copy of the file. Adds its copies to files(). Compares sizes, headers and samples of the tensors. Returns
  // kModel when they are not those of the model, or when an index of extents is damaged; kUsage when it is the model
  // itself or was given before.
  absl::Status AddMirror(const std::string& path, const ModelFolder& folder);

  // Returns nullptr when there is no such tensor.
  const TensorInfo* Find(std::string_view name) const;

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::vector<OpenedFile>& files() const { return files_; }
  // Returns the bytes of all tensors.
  uint64_t total_bytes() const;
  // Returns the memory that the catalogue itself takes.
  uint64_t memory_bytes() const;

  Format format() const { return format_; }
  // Returns how a packed store was quantised ("none", "int8", ...); empty for other formats.
  const std::string& quantize() const { return quantize_; }

  // Returns a digest that does not depend on the config: names, dtypes, shapes, extents, file sizes, and the checksums
  // of all tensors (xxh3-128, hex). Without checksums it takes values from the middle of up to 4,096 tensors. This
  // tells a model from its fine-tune with at most 16 MiB of reads.
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
