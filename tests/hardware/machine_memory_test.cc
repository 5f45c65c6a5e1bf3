// Proves that the detected memory is at most the kernel's.
#include "penstock/hardware/machine_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

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

}  // namespace
}  // namespace penstock
