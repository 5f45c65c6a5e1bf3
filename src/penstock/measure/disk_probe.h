// Measures how fast a disk reads, by the size of the reads and by how many are under way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"
#include "penstock/runtime/disk_reader.h"

namespace penstock {

struct DiskProbeSpec {
  std::vector<uint64_t> sizes = {uint64_t{128} << 10, uint64_t{1} << 20, uint64_t{8} << 20};
  std::vector<int> depths = {1, 4, 32};  // reads under way; their bytes never exceed max_bytes
  uint64_t max_bytes = uint64_t{256} << 20;
  double seconds = 0;       // for all sizes and depths together
  double long_seconds = 0;  // additional time for bytes_per_s

  // Measures this size instead of the one nearest to it, unless that is the largest one.
  void IncludeSize(uint64_t size_bytes);
};

// Measures the link "disk_to_dram". Its rate for each size and depth is the median of several rounds. Its bytes_per_s
// is what reads of the last size and depth keep up. Its cpu_s is the time of the calling thread for a read that comes
// alone. Reads jump from piece to piece, as those of experts do. Returns kIo when a read fails, and kInput when the
// files have no bytes.
absl::StatusOr<Link> ProbeDisk(DiskReader& reader, std::span<const OpenedFile> files, const DiskProbeSpec& spec);

}  // namespace penstock
