// Proves that the detected features are those that the kernel lists, and that larger ones imply smaller ones.
#include "penstock/hardware/cpu_features.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace penstock {
namespace {

// Returns the words of the first line of /proc/cpuinfo that begins with "flags"; empty when there is none.
std::set<std::string> KernelFlags() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

TEST(CpuFeatures, AreThoseOfTheKernel) {
  const std::set<std::string> flags = KernelFlags();
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags here";
  const auto has = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (!flags.contains(name)) return false;
    }
    return true;
  };
  const CpuFeatures& cpu = MachineCpuFeatures();
  EXPECT_EQ(cpu.avx2, has({"avx2", "fma", "f16c"}));
  EXPECT_EQ(cpu.avx512, cpu.avx2 && has({"avx512f", "avx512bw", "avx512dq", "avx512vl"}));
  EXPECT_EQ(cpu.avx512_vnni, cpu.avx512 && has({"avx512_vnni"}));
  EXPECT_EQ(cpu.avx512_vbmi, cpu.avx512 && has({"avx512vbmi"}));
  // Kernels older than 5.12 do not list these two.
  EXPECT_TRUE(!has({"avx_vnni"}) || cpu.avx_vnni == cpu.avx2);
  EXPECT_TRUE(!has({"avx512_bf16"}) || cpu.avx512_bf16 == cpu.avx512);
}

TEST(CpuFeatures, BiggerOnesImplySmallerOnes) {
  const CpuFeatures& cpu = MachineCpuFeatures();
  EXPECT_TRUE(!cpu.avx512 || cpu.avx2);
  EXPECT_TRUE(!cpu.avx_vnni || cpu.avx2);
  EXPECT_TRUE(!cpu.avx512_vnni || cpu.avx512);
  EXPECT_TRUE(!cpu.avx512_vbmi || cpu.avx512);
  EXPECT_TRUE(!cpu.avx512_bf16 || cpu.avx512);
}

}  // namespace
}  // namespace penstock
