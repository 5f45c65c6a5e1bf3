// Returns how much memory this process may use: the machine's, or less where a cgroup (its own or one above it) or a
// resource limit (ulimit -v, ulimit -d) says so.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

struct MachineMemory {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;  // can be allocated now without swapping
};

// `root` comes before the paths of all files (for tests).
MachineMemory ReadMachineMemory(const std::string& root = "");

}  // namespace penstock
