// Proves that pages are touched ahead of those that are wanted, no further than asked, and that their bytes stay.
#include "penstock/runtime/page_toucher.h"

#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <sys/mman.h>

#include "penstock/memory/arena.h"

namespace penstock {
namespace {

std::span<std::byte> BytesOf(const Arena& arena) { return {arena.data(), arena.size_bytes()}; }

// Returns the number of resident pages of each 2 MiB.
std::vector<int64_t> ResidentPages(const Arena& arena) {
  std::vector<unsigned char> pages(arena.size_bytes() / kPageBytes);
  EXPECT_EQ(::mincore(arena.data(), arena.size_bytes(), pages.data()), 0);
  std::vector<int64_t> counts;
  constexpr int64_t kPages = 2 * kMiB / kPageBytes;
  for (auto at = pages.begin(); at < pages.end(); at += kPages) {
    counts.push_back(std::count_if(at, at + kPages, [](unsigned char page) { return (page & 1) != 0; }));
  }
  return counts;
}

// Kernels before 5.14 cannot touch pages in this way, and leave them to their users.
bool CanTouch() {
  const Arena arena = HostMemory().Map(2 * kMiB).value();
  return ::madvise(arena.data(), kPageBytes, MADV_POPULATE_WRITE) == 0;
}

TEST(PageToucher, TouchesWhatIsWantedNext) {
  const int64_t kAll = CanTouch() ? 2 * kMiB / kPageBytes : 0;
  for (const int num_threads : {1, 3}) {
    const Arena arena = HostMemory().Map(16 * kMiB).value();
    PageToucher toucher(BytesOf(arena), num_threads, /*ahead_bytes=*/4 * kMiB);
    EXPECT_THAT(ResidentPages(arena), testing::Each(0)) << "before anything is wanted";
    toucher.OnWanted(2 * kMiB);
    toucher.Wait();
    EXPECT_THAT(ResidentPages(arena), testing::ElementsAre(0, kAll, kAll, 0, 0, 0, 0, 0));
    toucher.OnWanted(7 * kMiB + kPageBytes);
    toucher.Wait();
    EXPECT_THAT(ResidentPages(arena), testing::ElementsAre(0, kAll, kAll, kAll, kAll, kAll, 0, 0));
    toucher.OnWanted(16 * kMiB);
    toucher.Wait();
    EXPECT_THAT(ResidentPages(arena), testing::ElementsAre(0, kAll, kAll, kAll, kAll, kAll, kAll, kAll));
  }
}

TEST(PageToucher, KeepsBytesThatOthersWrite) {
  const Arena arena = HostMemory().Map(16 * kMiB).value();
  PageToucher toucher(BytesOf(arena), 2, /*ahead_bytes=*/16 * kMiB);
  toucher.OnWanted(kPageBytes);
  std::ranges::fill(BytesOf(arena), std::byte{7});
  toucher.Wait();
  EXPECT_TRUE(std::ranges::all_of(BytesOf(arena), [](std::byte byte) { return byte == std::byte{7}; }));
}

TEST(PageToucher, EndsWhileItTouches) {
  for (int i = 0; i < 20; ++i) {
    const Arena arena = HostMemory().Map(64 * kMiB).value();
    PageToucher toucher(BytesOf(arena), i % 3, /*ahead_bytes=*/64 * kMiB);
    toucher.OnWanted(kPageBytes);
  }
}

}  // namespace
}  // namespace penstock
