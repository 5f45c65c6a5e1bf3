// Proves that limits are found in the process's own cgroup and in all cgroups above it, for v1, v2 and both together,
// and in containers, whose mounts show only a part of the hierarchy.
#include "penstock/base/cgroup.h"

#include <gtest/gtest.h>

#include "tests/fake_root.h"

namespace penstock {
namespace {

constexpr uint64_t kMib = 1 << 20;
constexpr char kV2Mount[] = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

std::string Mib(uint64_t count) { return std::to_string(count * kMib) + "\n"; }

TEST(Cgroup, WithoutFilesNothingIsLimited) {
  const FakeRoot root;
  const CgroupLimits limits = ReadCgroupLimits(root.path());
  EXPECT_EQ(limits.memory_bytes, CgroupLimits::kNone);
  EXPECT_EQ(limits.free_memory_bytes, CgroupLimits::kNone);
  EXPECT_GT(limits.num_cpus, 1e9);
}

TEST(Cgroup, TheSmallestLimitOfTheChainCounts) {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "0::/batch/job/step\n");
  root.Write("/proc/self/mountinfo", kV2Mount);
  root.Write("/sys/fs/cgroup/batch/memory.max", Mib(900));
  root.Write("/sys/fs/cgroup/batch/memory.current", Mib(850));
  root.Write("/sys/fs/cgroup/batch/cpu.max", "150000 100000\n");
  root.Write("/sys/fs/cgroup/batch/job/memory.max", Mib(300));
  root.Write("/sys/fs/cgroup/batch/job/memory.current", Mib(60));
  root.Write("/sys/fs/cgroup/batch/job/cpu.max", "max 100000\n");
  root.Write("/sys/fs/cgroup/batch/job/step/memory.max", "max\n");
  const CgroupLimits limits = ReadCgroupLimits(root.path());
  EXPECT_EQ(limits.memory_bytes, 300 * kMib);
  EXPECT_EQ(limits.free_memory_bytes, 50 * kMib);  // of the group above, which others use, too
  EXPECT_DOUBLE_EQ(limits.num_cpus, 1.5);
}

TEST(Cgroup, PageCacheIsFree) {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "0::/a\n");
  root.Write("/proc/self/mountinfo", kV2Mount);
  root.Write("/sys/fs/cgroup/a/memory.max", Mib(100));
  root.Write("/sys/fs/cgroup/a/memory.current", Mib(90));
  root.Write("/sys/fs/cgroup/a/memory.stat",
             "anon 5\ninactive_anon 7\ninactive_file " + Mib(50) + "active_file " + Mib(20));
  EXPECT_EQ(ReadCgroupLimits(root.path()).free_memory_bytes, 80 * kMib);
}

TEST(Cgroup, VersionOneHasAHierarchyForEachController) {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "5:cpu,cpuacct:/c\n4:memory:/slurm/job\n1:name=systemd:/x\n0::/\n");
  root.Write("/proc/self/mountinfo",
             "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
             "32 23 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", Mib(64));
  root.Write("/sys/fs/cgroup/memory/slurm/memory.usage_in_bytes", Mib(30));
  root.Write("/sys/fs/cgroup/memory/slurm/memory.stat", "inactive_file 7\ntotal_inactive_file " + Mib(10));
  root.Write("/sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", Mib(128));
  root.Write("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "50000\n");
  root.Write("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
  root.Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  root.Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const CgroupLimits limits = ReadCgroupLimits(root.path());
  EXPECT_EQ(limits.memory_bytes, 64 * kMib);
  EXPECT_EQ(limits.free_memory_bytes, 44 * kMib);
  EXPECT_DOUBLE_EQ(limits.num_cpus, 0.5);
}

TEST(Cgroup, AContainersMountShowsItsOwnPart) {
  for (const std::string group : {"/docker/abc/inner", "/docker/abcdef/x", "/../other", "/"}) {
    const FakeRoot root;
    root.Write("/proc/self/cgroup", "0::" + group + "\n");
    root.Write("/proc/self/mountinfo", "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    root.Write("/sys/fs/cgroup/memory.max", Mib(70));
    root.Write("/sys/fs/cgroup/inner/memory.max", Mib(20));
    EXPECT_EQ(ReadCgroupLimits(root.path()).memory_bytes, (group.ends_with("inner") ? 20 : 70) * kMib) << group;
  }
}

TEST(Cgroup, DamagedFilesCountAsNone) {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "\n::\n0:\n0::/a\n");
  root.Write("/proc/self/mountinfo", "x - \n1 2 3 - cgroup2\n" + std::string(kV2Mount));
  root.Write("/sys/fs/cgroup/a/memory.max", "-5\n");
  root.Write("/sys/fs/cgroup/a/cpu.max", "100000 0\n");
  root.Write("/sys/fs/cgroup/memory.max", "12x\n");
  const CgroupLimits limits = ReadCgroupLimits(root.path());
  EXPECT_EQ(limits.memory_bytes, CgroupLimits::kNone);
  EXPECT_GT(limits.num_cpus, 1e9);
}

}  // namespace
}  // namespace penstock
