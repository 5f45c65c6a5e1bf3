// Proves that arenas are whole pages of zeros which are given back, that their parts are aligned, and that a budgeted
// memory hands out no more than its budget.
#include "penstock/memory/arena.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

TEST(Arena, HasWholePagesOfZeros) {
  const Arena arena = HostMemory().Map(5000).value();
  EXPECT_EQ(arena.size_bytes(), 2 * kPageBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % kPageBytes, 0u);
  EXPECT_THAT(std::span(arena.data(), arena.size_bytes()), testing::Each(std::byte{0}));
  EXPECT_EQ(HostMemory().Map(0)->data(), nullptr);
}

TEST(Arena, LargeOnesEndWithAHugePage) {
  for (const uint64_t size : {2 * kMiB, 2 * kMiB + kPageBytes, 5 * kMiB}) {
    const Arena arena = HostMemory().Map(size).value();
    EXPECT_EQ(arena.size_bytes(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data() + size) % kHugePageBytes, 0u);
    arena.data()[0] = arena.data()[size - 1] = std::byte{1};
  }
}

TEST(Arena, IsWrittenClearedAndCopied) {
  Memory& memory = HostMemory();
  const Arena arena = memory.Map(100).value();
  const std::byte bytes[] = {std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_TRUE(memory.Write(arena.data() + 5, bytes).ok());
  ASSERT_TRUE(memory.Copy(arena.data() + 20, {arena.data() + 4, 5}).ok());
  EXPECT_THAT(std::span(arena.data() + 20, 5),
              testing::ElementsAre(std::byte{0}, std::byte{1}, std::byte{2}, std::byte{3}, std::byte{0}));
  ASSERT_TRUE(memory.Clear(arena.data() + 6, 1).ok());
  EXPECT_THAT(std::span(arena.data() + 5, 3), testing::ElementsAre(std::byte{1}, std::byte{0}, std::byte{3}));
}

TEST(Arena, PartsAreAlignedAndApart) {
  const Arena arena = HostMemory().Map(1000).value();
  ArenaAllocator allocator(arena);
  const std::span<float> first = allocator.Take<float>(3);
  const std::span<int64_t> second = allocator.Take<int64_t>(2);
  EXPECT_EQ(first.size(), 3u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second.data()) % 64, 0u);
  EXPECT_GE(reinterpret_cast<std::byte*>(second.data()), reinterpret_cast<std::byte*>(first.data() + first.size()));
}

TEST(BudgetedMemory, HandsOutItsBudgetAndTakesItBack) {
  BudgetedMemory memory("device", HostMemory(), 3 * kPageBytes);
  {
    const Arena arena = memory.Map(2 * kPageBytes).value();
    EXPECT_EQ(memory.used_bytes(), 2 * kPageBytes);
    EXPECT_EQ(FaultOf(memory.Map(kPageBytes + 1).status()), Fault::kResources);
    EXPECT_TRUE(memory.Map(kPageBytes).ok());
  }
  EXPECT_EQ(memory.used_bytes(), 0u);
  EXPECT_TRUE(memory.Map(3 * kPageBytes).ok());
}

TEST(JoinedMemory, PutsArenasBesideEachOther) {
  const auto memory = JoinedMemory::Create(HostMemory(), 5 * kPageBytes).value();
  const Arena first = memory->Map(kPageBytes + 1).value();
  std::byte* second_data = nullptr;
  {
    const Arena second = memory->Map(kPageBytes).value();
    second_data = second.data();
    EXPECT_EQ(second_data, first.data() + 2 * kPageBytes);
    second_data[0] = std::byte{1};
  }
  const Arena third = memory->Map(2 * kPageBytes).value();
  EXPECT_EQ(third.data(), second_data + kPageBytes) << "pages that were given back may hold bytes";
  EXPECT_THAT(std::span(third.data(), third.size_bytes()), testing::Each(std::byte{0}));
}

TEST(JoinedMemory, TakesElsewhereWhatHasNoRoom) {
  const auto memory = JoinedMemory::Create(HostMemory(), 2 * kPageBytes).value();
  const Arena first = memory->Map(kPageBytes).value();
  {
    const Arena large = memory->Map(3 * kPageBytes).value();
    EXPECT_NE(large.data(), first.data() + kPageBytes);
    large.data()[3 * kPageBytes - 1] = std::byte{1};
  }
  EXPECT_EQ(memory->Map(kPageBytes)->data(), first.data() + kPageBytes);
  const auto empty = JoinedMemory::Create(HostMemory(), 0).value();
  EXPECT_NE(empty->Map(1)->data(), nullptr);
}

}  // namespace
}  // namespace penstock
