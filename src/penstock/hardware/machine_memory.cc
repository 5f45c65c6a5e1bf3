#include "penstock/hardware/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include <unistd.h>

namespace penstock {
namespace {

// Reads a cgroup file that holds one number of bytes, or "max".
uint64_t ReadLimit(const char* path) {
  std::ifstream file(path);
  uint64_t bytes = 0;
  return file >> bytes ? bytes : std::numeric_limits<uint64_t>::max();
}

}  // namespace

MachineMemory ReadMachineMemory() {
  MachineMemory memory;
  std::ifstream meminfo("/proc/meminfo");
  std::string field;
  uint64_t kib = 0;
  std::string unit;
  while (meminfo >> field >> kib && std::getline(meminfo, unit)) {
    if (field == "MemTotal:") memory.total_bytes = kib * 1024;
    if (field == "MemAvailable:") memory.available_bytes = kib * 1024;
  }
  if (memory.total_bytes == 0) {  // no /proc
    memory.total_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    memory.available_bytes = memory.total_bytes;
  }
  const uint64_t limit = std::min(ReadLimit("/sys/fs/cgroup/memory.max"),                     // cgroup v2
                                  ReadLimit("/sys/fs/cgroup/memory/memory.limit_in_bytes"));  // cgroup v1
  if (limit < memory.total_bytes) {
    const uint64_t used = ReadLimit("/sys/fs/cgroup/memory.current");
    memory.total_bytes = limit;
    memory.available_bytes = std::min(memory.available_bytes, used < limit ? limit - used : limit);
  }
  return memory;
}

}  // namespace penstock
