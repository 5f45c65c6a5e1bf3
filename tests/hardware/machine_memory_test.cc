// Proves that the detected memory is at most the kernel's, a cgroup's and a resource limit's.
#include "penstock/hardware/machine_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/fake_root.h"

namespace penstock {
namespace {

TEST(MachineMemory, IsNoMoreThanTheKernelSays) {
  const MachineMemory memory = ReadMachineMemory();
  EXPECT_GT(memory.total_bytes, 0);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
  std::ifstream meminfo("/proc/meminfo");
  std::string field;
  uint64_t kib = 0;
  if (!(meminfo >> field >> kib) || field != "MemTotal:") GTEST_SKIP() << "no /proc/meminfo here";
  EXPECT_LE(memory.total_bytes, kib * 1024);
}

TEST(MachineMemory, IsNoMoreThanTheCgroupAllows) {
  const FakeRoot root;
  root.Write("/proc/meminfo", "MemTotal: 2000000 kB\nMemFree: 1 kB\nMemAvailable: 1500000 kB\n");
  EXPECT_EQ(ReadMachineMemory(root.path()).total_bytes, 2'000'000u << 10);
  EXPECT_EQ(ReadMachineMemory(root.path()).available_bytes, 1'500'000u << 10);
  root.Write("/proc/self/cgroup", "0::/job\n");
  root.Write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  root.Write("/sys/fs/cgroup/job/memory.max", "67108864\n");
  root.Write("/sys/fs/cgroup/job/memory.current", "7108864\n");
  EXPECT_EQ(ReadMachineMemory(root.path()).total_bytes, 64u << 20);
  EXPECT_EQ(ReadMachineMemory(root.path()).available_bytes, 60'000'000u);
}

#ifndef __SANITIZE_ADDRESS__  // whose shadow is larger than the limit
TEST(MachineMemory, IsNoMoreThanTheResourceLimitLeaves) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{1ull << 30, 1ull << 30};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(2);
    const MachineMemory memory = ReadMachineMemory();
    const bool is_right = memory.total_bytes <= limit.rlim_cur && memory.available_bytes < limit.rlim_cur;
    ::_exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}
#endif

}  // namespace
}  // namespace penstock
