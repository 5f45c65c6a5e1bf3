// Returns how much memory this process may use: the machine's, or its cgroup's limit where that is less.
#pragma once

#include <cstdint>

namespace penstock {

struct MachineMemory {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;  // can be allocated now without swapping
};

MachineMemory ReadMachineMemory();

}  // namespace penstock
