// The limits of the control groups (cgroups) of this process: its own group and all groups above it, v1 and v2.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace penstock {

struct CgroupLimits {
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

  // The smallest limit of a group, and the least that a group leaves free. Page cache counts as free.
  uint64_t memory_bytes = kNone;
  uint64_t free_memory_bytes = kNone;
  double num_cpus = std::numeric_limits<double>::infinity();  // the smallest quota, in CPUs
};

// Reads the limits. Groups and limits that cannot be read count as none. `root` comes before all paths (for tests).
CgroupLimits ReadCgroupLimits(const std::string& root = "");

}  // namespace penstock
