// How fast a disk reads, by the size of the reads and how many are under way.
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
  std::vector<int> depths = {1, 4, 32};  // reads under way; never more than kMostBytes
  double seconds = 6;                    // for all together
  double long_seconds = 2;               // and for bytes_per_s
};

// The link "disk_to_dram": the median of several rounds over each size and depth, and as bytes_per_s what the largest
// size keeps up. Reads go through the files from their beginnings to their ends. kIo when a read fails, kInput when the
// files have no bytes.
absl::StatusOr<Link> ProbeDisk(DiskReader& reader, std::span<const OpenedFile> files, const DiskProbeSpec& spec = {});

}  // namespace penstock
