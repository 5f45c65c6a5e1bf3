// The folder in which a packed store grows. It gets its final name when the store is complete.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/base/file.h"

namespace penstock {

// Removes what it wrote unless Commit() succeeded. Move-only.
class PackOutput {
 public:
  // Makes the empty folder `path`.partial. kIo when `path` exists and is not an empty folder, when another process
  // packs to the same place, or when the system refuses.
  static absl::StatusOr<PackOutput> Create(const std::string& path);
  PackOutput(PackOutput&&) = default;
  ~PackOutput();

  // Creates a file for writing. The caller syncs it before Commit().
  absl::StatusOr<UniqueFd> NewFile(std::string_view name) const;
  // Appends bytes to the weights.
  absl::Status Append(std::span<const std::byte> bytes);
  // Appends zeros up to a multiple of `alignment`.
  absl::Status Align(uint64_t alignment);
  uint64_t weights_bytes() const { return weights_bytes_; }

  absl::Status WriteFile(std::string_view name, std::string_view content) const;
  // Syncs everything to disk and gives the folder its final name.
  absl::Status Commit();

 private:
  PackOutput() = default;
  std::string PartialPath(std::string_view name) const;

  std::string path_;
  std::string partial_;
  UniqueFd folder_;   // locked against other processes
  UniqueFd weights_;  // from the first Append() on
  uint64_t weights_bytes_ = 0;
  bool is_committed_ = false;
};

}  // namespace penstock
