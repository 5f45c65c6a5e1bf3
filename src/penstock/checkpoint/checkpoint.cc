#include "penstock/checkpoint/checkpoint.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/checkpoint/shard_index.h"

namespace penstock {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

// Returns the first entry whose name ends in one of `suffixes`; empty when there is none.
std::string FirstWithSuffix(const std::vector<std::string>& entries, std::initializer_list<std::string_view> suffixes) {
  for (const std::string& entry : entries) {
    for (const std::string_view suffix : suffixes) {
      if (entry.ends_with(suffix)) return entry;
    }
  }
  return "";
}

// Explains a folder without model.safetensors and without an index: what it has instead, and what to do.
absl::Status NoWeights(const ModelFolder& folder, const std::vector<std::string>& entries) {
  const std::string what = fmt::format("{}: no weights: expected {} or {}", folder.path(), kSingleFile, kIndexFile);
  if (const std::string shard = FirstWithSuffix(entries, {".safetensors"}); !shard.empty()) {
    return ModelError("{}; found '{}', but no index that says what it holds: download {} too", what, shard, kIndexFile);
  }
  if (folder.Has(kPackedWeightsFile)) {
    return ModelError("{}: a packed store without its index {}: copy it again or pack the model again", folder.path(),
                      kPackedIndexFile);
  }
  if (const std::string pickle = FirstWithSuffix(entries, {".bin", ".pt", ".pth", ".ckpt"}); !pickle.empty()) {
    return ModelError(
        "{}; found '{}', but pickle is not read, as it can run code; convert it to safetensors "
        "(transformers: "
        "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR))",
        what, pickle);
  }
  if (const std::string part = FirstWithSuffix(entries, {".incomplete", ".part", ".crdownload"}); !part.empty()) {
    return ModelError("{}; found '{}': the download did not finish, resume it", what, part);
  }
  if (folder.Has("snapshots") && folder.Has("blobs")) {
    return ModelError("{}; this is a Hugging Face cache: use one of the folders in its 'snapshots'", what);
  }
  return ModelError("{}", what);
}

absl::StatusOr<ShardIndex> ReadIndex(const ModelFolder& folder) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, folder.Read(kIndexFile, kMaxIndexBytes));
  const std::string path = folder.path() + "/" + kIndexFile;
  if (text.substr(0, 8) == "version ") {
    return ModelError("{}: this is a Git LFS pointer, not the index: run git lfs pull", path);
  }
  absl::StatusOr<ShardIndex> index = ParseShardIndex(text);
  if (!index.ok()) return Annotate(index.status(), path);
  return index;
}

absl::StatusOr<OpenedFile> OpenShard(const ModelFolder& folder, const std::string& shard, bool is_listed) {
  if (!is_listed || folder.Has(shard)) return folder.OpenFile(shard);
  const bool started = folder.Has(shard + ".incomplete");
  return ModelError("{}: shard '{}' is listed in {} but missing: {}", folder.path(), shard, kIndexFile,
                    started ? "its download did not finish, resume it" : "download it");
}

absl::StatusOr<std::vector<TensorInfo>> ReadSafetensorsHeaderOf(const OpenedFile& file) {
  std::string prefix(std::min<uint64_t>(8, file.size_bytes), '\0');
  PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), std::as_writable_bytes(std::span(prefix)), 0, file.path));
  const absl::StatusOr<uint64_t> header_bytes = SafetensorsHeaderBytes(prefix, file.size_bytes);
  if (!header_bytes.ok()) return Annotate(header_bytes.status(), file.path);
  std::string header(*header_bytes, '\0');
  PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), std::as_writable_bytes(std::span(header)), 8, file.path));
  absl::StatusOr<std::vector<TensorInfo>> tensors = ParseSafetensorsHeader(header, file.size_bytes);
  if (!tensors.ok()) return Annotate(tensors.status(), file.path);
  return tensors;
}

// Warns of unused model*.safetensors files: leftovers of another download. Files with other names are not weights.
void WarnOfUnlisted(const ModelFolder& folder, const std::vector<std::string>& entries,
                    const std::vector<std::string>& shards) {
  std::vector<std::string> unlisted;
  for (const std::string& entry : entries) {
    if (entry.compare(0, 5, "model") == 0 && entry.ends_with(".safetensors") &&
        !std::binary_search(shards.begin(), shards.end(), entry)) {
      unlisted.push_back(entry);
    }
  }
  if (unlisted.empty()) return;
  const absl::Status line = ModelError("{}: {} shard(s) are not part of the model and are ignored, first '{}'",
                                       folder.path(), unlisted.size(), unlisted[0]);
  LogWarning("{}", Message(line));
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::OpenPacked(const ModelFolder& folder) {
  PENSTOCK_ASSIGN_OR_RETURN(PackedIndex index, ReadPackedIndex(folder));
  Checkpoint checkpoint;
  PENSTOCK_ASSIGN_OR_RETURN(OpenedFile file, folder.OpenFile(kPackedWeightsFile));
  if (file.size_bytes != index.weights_bytes) {
    return ModelError("{}: {} bytes, expected {}: the file is not whole, copy it again or pack the model again",
                      file.path, file.size_bytes, index.weights_bytes);
  }
  checkpoint.files_.push_back(std::move(file));
  checkpoint.format_ = Format::kPacked;
  checkpoint.quantize_ = index.quantize;
  checkpoint.tensors_ = std::move(index.tensors);
  PENSTOCK_RETURN_IF_ERROR(checkpoint.SortNames());
  return checkpoint;
}

absl::StatusOr<Checkpoint> Checkpoint::FromGguf(Gguf gguf) {
  Checkpoint checkpoint;
  checkpoint.format_ = Format::kGguf;
  checkpoint.files_ = std::move(gguf.files);
  checkpoint.tensors_ = std::move(gguf.tensors);
  PENSTOCK_RETURN_IF_ERROR(checkpoint.SortNames());
  return checkpoint;
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const ModelFolder& folder) {
  if (folder.Has(kPackedIndexFile)) return OpenPacked(folder);
  const std::vector<std::string> entries = folder.List();
  const bool is_single = folder.Has(kSingleFile);
  if (!is_single && !folder.Has(kIndexFile)) return NoWeights(folder, entries);
  ShardIndex index;
  if (is_single) {
    index.shards = {kSingleFile};
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(index, ReadIndex(folder));
  }
  WarnOfUnlisted(folder, entries, index.shards);
  Checkpoint checkpoint;
  for (const std::string& shard : index.shards) {
    PENSTOCK_ASSIGN_OR_RETURN(OpenedFile file, OpenShard(folder, shard, !is_single));
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<TensorInfo> tensors, ReadSafetensorsHeaderOf(file));
    if (checkpoint.tensors_.size() + tensors.size() > kMaxTensors) {
      return ModelError("{}: the model has more than {} tensors", folder.path(), kMaxTensors);
    }
    for (TensorInfo& tensor : tensors) {
      tensor.file_idx = static_cast<int>(checkpoint.files_.size());
      checkpoint.tensors_.push_back(std::move(tensor));
    }
    checkpoint.files_.push_back(std::move(file));
  }
  checkpoint.tensors_.shrink_to_fit();
  PENSTOCK_RETURN_IF_ERROR(checkpoint.SortNames());
  if (!is_single) PENSTOCK_RETURN_IF_ERROR(checkpoint.CheckIndex(index));
  return checkpoint;
}

absl::Status Checkpoint::SortNames() {
  by_name_.resize(tensors_.size());
  for (size_t i = 0; i < by_name_.size(); ++i) by_name_[i] = static_cast<int>(i);
  std::sort(by_name_.begin(), by_name_.end(), [&](int a, int b) {
    const int order = tensors_[a].name.compare(tensors_[b].name);
    return order != 0 ? order < 0 : a < b;
  });
  for (size_t i = 1; i < by_name_.size(); ++i) {
    const TensorInfo& a = tensors_[by_name_[i - 1]];
    const TensorInfo& b = tensors_[by_name_[i]];
    if (a.name == b.name) {
      return ModelError("{}: tensor '{}' is also in {}", files_[b.file_idx].path, Excerpt(a.name),
                        files_[a.file_idx].path);
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::CheckIndex(const ShardIndex& index) const {
  int64_t num_wrong = 0;
  absl::Status first;
  for (const ShardIndex::Entry& entry : index.entries) {
    const TensorInfo* tensor = Find(entry.tensor);
    if (tensor != nullptr && tensor->file_idx == entry.shard_idx) continue;
    if (++num_wrong > 1) continue;
    const std::string& path = files_[entry.shard_idx].path;
    first = tensor == nullptr ? ModelError("{}: tensor '{}' is missing, though {} lists it here", path,
                                           Excerpt(entry.tensor), kIndexFile)
                              : ModelError("{}: tensor '{}' is missing, though {} lists it here; it is in {}", path,
                                           Excerpt(entry.tensor), kIndexFile, files_[tensor->file_idx].path);
  }
  if (num_wrong > 0) {
    return ModelError("{} ({} tensor(s) wrong): index and shards come from different downloads", Message(first),
                      num_wrong);
  }
  if (index.entries.size() < tensors_.size()) {
    LogWarning("{} tensor(s) in the shards are not listed in {}", tensors_.size() - index.entries.size(), kIndexFile);
  }
  return absl::OkStatus();
}

const TensorInfo* Checkpoint::Find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](int idx, std::string_view wanted) { return tensors_[idx].name < wanted; });
  if (at == by_name_.end() || tensors_[*at].name != name) return nullptr;
  return &tensors_[*at];
}

uint64_t Checkpoint::total_bytes() const {
  uint64_t sum = 0;
  for (const TensorInfo& tensor : tensors_) sum += tensor.extent.size_bytes;
  return sum;
}

uint64_t Checkpoint::memory_bytes() const {
  uint64_t sum = sizeof(*this) + tensors_.capacity() * sizeof(TensorInfo) + by_name_.capacity() * sizeof(int);
  const size_t inline_bytes = std::string().capacity();  // longer names are allocated outside the std::string
  for (const TensorInfo& tensor : tensors_) {
    sum += tensor.shape.capacity() * sizeof(int64_t);
    if (tensor.name.capacity() > inline_bytes) sum += tensor.name.capacity() + 1;
  }
  for (const OpenedFile& file : files_) sum += sizeof(file) + file.path.capacity();
  return sum;
}

absl::StatusOr<std::string> Checkpoint::Fingerprint() const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  const auto add = [&](uint64_t value) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
    XXH3_128bits_update(state.get(), bytes, sizeof(bytes));
  };
  add(files_.size());
  for (const OpenedFile& file : files_) add(file.size_bytes);
  add(tensors_.size());
  for (const int idx : by_name_) {
    const TensorInfo& tensor = tensors_[idx];
    add(tensor.name.size());
    XXH3_128bits_update(state.get(), tensor.name.data(), tensor.name.size());
    const std::string_view dtype = tensor.packed.has_value() ? TraitsOf(*tensor.packed).name : DtypeName(tensor.dtype);
    add(dtype.size());
    XXH3_128bits_update(state.get(), dtype.data(), dtype.size());
    add(tensor.shape.size());
    for (const int64_t dim : tensor.shape) add(static_cast<uint64_t>(dim));
    add(static_cast<uint64_t>(tensor.file_idx));
    add(tensor.extent.offset_bytes);
    add(tensor.extent.size_bytes);
    if (tensor.xxh3.has_value()) add(*tensor.xxh3);
  }
  // Samples values from the middle of tensors spread over the whole model; these values differ between a model and its
  // fine-tune.
  constexpr size_t kMaxSamples = 4096;
  constexpr uint64_t kSampleBytes = 4096;
  std::vector<std::byte> sample(kSampleBytes);
  const size_t stride = (tensors_.size() + kMaxSamples - 1) / kMaxSamples;
  for (size_t i = 0; i < by_name_.size(); i += stride) {
    const TensorInfo& tensor = tensors_[by_name_[i]];
    if (tensor.xxh3.has_value()) continue;
    const uint64_t size = std::min(kSampleBytes, tensor.extent.size_bytes);
    const uint64_t offset = tensor.extent.offset_bytes + (tensor.extent.size_bytes - size) / 2;
    const OpenedFile& file = files_[tensor.file_idx];
    PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), std::span(sample).first(size), offset, file.path));
    XXH3_128bits_update(state.get(), sample.data(), size);
  }
  const XXH128_hash_t digest = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
}

}  // namespace penstock
