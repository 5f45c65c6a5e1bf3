// Proves the defaults of threads and memory that depend on the machine, and that asking for more memory than it has is
// refused.
#include <gmock/gmock.h>

#include "penstock/base/thread_pool.h"
#include "penstock/hardware/machine_memory.h"
#include "penstock/plan/engine_plan.h"

namespace penstock {
namespace {

TEST(EngineRoom, DefaultsAreAllUsableCpusAndThreeQuartersOfFreeMemory) {
  const EngineRoom room = RoomOf({.device = "cpu"}).value();
  EXPECT_EQ(room.num_threads, NumUsableCpus());
  EXPECT_FALSE(room.device.has_value());
  EXPECT_GT(room.budget_bytes, 0);
  EXPECT_LE(room.budget_bytes, ReadMachineMemory().total_bytes / 4 * 3);
}

TEST(EngineRoom, AnEmulatedDeviceTakesItsThreadAndItsMemoryFromTheHost) {
  const EngineRoom room = RoomOf({.device = "emulated"}).value();
  EXPECT_EQ(room.num_threads, std::max(1, NumUsableCpus() - room.device->num_threads));
  const uint64_t total = ReadMachineMemory().total_bytes;
  EXPECT_EQ(ChooseBudget({.memory_bytes = total / 2}, total / 4).value(), total / 2);
  EXPECT_THAT(std::string(ChooseBudget({.memory_bytes = total / 2}, total / 4 * 3).status().message()),
              testing::HasSubstr("beside the emulated device"));
}

TEST(EngineRoom, AShareIsOfTheFreeMemory) {
  const auto budget = [](double share) {
    return static_cast<double>(ChooseBudget({.memory_share = share}, /*emulated_bytes=*/0).value());
  };
  EXPECT_NEAR(budget(0.2) / budget(0.4), 0.5, 0.1);  // other processes take and give memory meanwhile
  EXPECT_EQ(ShareOf(1000, 0.25, 0.9), 250);
  EXPECT_EQ(ShareOf(1000, 0, 0.9), 900);
}

TEST(EngineRoom, AnOptionReplacesEachDefault) {
  const EngineRoom room = RoomOf({.memory_bytes = 1 << 20, .device = "cpu", .threads = 3}).value();
  EXPECT_EQ(room.num_threads, 3);
  EXPECT_EQ(room.budget_bytes, 1 << 20);
  EXPECT_THAT(std::string(RoomOf({.memory_bytes = UINT64_MAX, .device = "cpu"}).status().message()),
              testing::HasSubstr("more than this machine"));
}

}  // namespace
}  // namespace penstock
