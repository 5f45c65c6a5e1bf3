#include "penstock/hardware/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include "penstock/base/cgroup.h"

namespace penstock {
namespace {

std::vector<uint64_t> ReadNumbers(const std::string& path) {
  std::ifstream file(path);
  return {std::istream_iterator<uint64_t>(file), {}};
}

}  // namespace

MachineMemory ReadMachineMemory(const std::string& root) {
  MachineMemory memory;
  std::ifstream meminfo(root + "/proc/meminfo");
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
  const CgroupLimits cgroup = ReadCgroupLimits(root);
  memory.total_bytes = std::min(memory.total_bytes, cgroup.memory_bytes);
  memory.available_bytes = std::min(memory.available_bytes, cgroup.free_memory_bytes);
  // The process may map no more than this; bytes that it only reserves count, too.
  const std::vector<uint64_t> pages = ReadNumbers(root + "/proc/self/statm");
  const auto add_limit = [&](int resource, uint64_t num_used_pages) {
    rlimit limit = {};
    if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    const uint64_t used = num_used_pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    memory.total_bytes = std::min<uint64_t>(memory.total_bytes, limit.rlim_cur);
    memory.available_bytes =
        std::min<uint64_t>(memory.available_bytes, limit.rlim_cur - std::min(limit.rlim_cur, used));
  };
  if (pages.size() >= 6) {
    add_limit(RLIMIT_AS, pages[0]);
    add_limit(RLIMIT_DATA, pages[5]);
  }
  return memory;
}

}  // namespace penstock
