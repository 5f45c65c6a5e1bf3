// Mirrors: directories with further copies of a model's files, on other disks.
//
// A mirror may hold only some of the files. If it has an index (penstock-mirror.json, written by penstock mirror), it
// holds only the extents that the index lists; the rest of each file is a hole. Checkpoint::AddMirror() opens one.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

inline constexpr std::string_view kMirrorIndexFile = "penstock-mirror.json";

// The health of a mirror. Any thread may use it.
class Mirror {
 public:
  explicit Mirror(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // Counts a read that failed or brought wrong bytes. Warns of the first one, and when the mirror is left out.
  void CountFault(std::string_view what);
  // Returns whether nothing is read from the mirror any more, because it had too many faults.
  bool is_left_out() const { return num_faults_.load(std::memory_order_relaxed) >= kMaxFaults; }

 private:
  static constexpr int kMaxFaults = 8;

  std::string path_;
  std::atomic<int> num_faults_ = 0;
};

// Counts a fault of each mirror whose copy of the extent differs from `right`.
void CountWrongCopies(const OpenedFile& file, const FileExtent& extent, std::span<const std::byte> right);

// The extents of each file that a mirror's index lists, which are whole pages, sorted and apart from each other.
using MirrorExtents = std::map<std::string, std::vector<FileExtent>>;

std::string SerializeMirrorIndex(const MirrorExtents& files);
// Returns kModel for an index of another version, one with a wrong checksum, and extents out of order.
absl::StatusOr<MirrorExtents> ParseMirrorIndex(std::string_view text);

// Returns the bytes before the first tensor of each file: the headers, which a mirror must have in common with the
// model. A file without tensors has none.
std::vector<uint64_t> HeaderBytes(std::span<const TensorInfo> tensors, size_t num_files);

// Returns the last part of a file's path.
std::string FileNameOf(const OpenedFile& file);

}  // namespace penstock
