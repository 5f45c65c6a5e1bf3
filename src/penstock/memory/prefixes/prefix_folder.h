// The folder of prefix files: FOLDER/<digest of the model and its formats>/<name>.kv and <name>.state.
//
// Several processes may use it at once. A file gets its name when it is complete. When the folder would hold more than
// its budget, the files go that were used longest ago, which their times of modification tell. Only files with such
// names are counted, or ever removed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/base/file.h"
#include "penstock/memory/prefixes/prefix_file.h"

namespace penstock {

class PrefixFolder {
 public:
  // Makes the folder if there is none, and removes what killed processes have left.
  static absl::StatusOr<PrefixFolder> Open(const std::string& folder, std::string_view identity, uint64_t max_bytes);

  // Returns the present time for MarkUsed() and Write(): nanoseconds since 1970.
  static uint64_t Now();

  std::string PathOf(const PrefixName& name, PrefixPart part) const;
  // Says that the file was used at a time. Returns false if there is none.
  bool MarkUsed(const std::string& path, uint64_t time_ns) const;
  // Returns an invalid descriptor if there is no such file.
  UniqueFd OpenFile(const std::string& path) const;
  // Whether there is such a file; it may be damaged.
  bool Has(const std::string& path) const;
  void Remove(const std::string& path) const;

  // Writes a file, unless another process is writing it. Files that were used longest ago make room for it. Called by
  // one thread at a time.
  absl::Status Write(const std::string& path, std::span<const std::byte> file, uint64_t time_ns);

 private:
  PrefixFolder(std::string folder, std::string own, uint64_t max_bytes)
      : folder_(std::move(folder)), own_(std::move(own)), max_bytes_(max_bytes) {}

  // Counts the files, and removes leftovers and the files that were used longest ago until `max_bytes` remain.
  absl::Status Limit(uint64_t max_bytes);

  std::string folder_;
  std::string own_;  // the folder of this model and its formats
  uint64_t max_bytes_;
  uint64_t counted_bytes_ = 0;  // at the last count, and what this process has written since
  uint64_t uncounted_bytes_ = 0;
};

}  // namespace penstock
