#include "penstock/ops/prefetching.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/clock.h"
#include "penstock/kernels/kernels.h"

namespace penstock {
namespace {

using kernels::GemmArgs;
using kernels::KernelTable;
using kernels::Prefetching;

// A product that takes 40 us, and 2 us if it is asked to prefetch as `kFast`. It writes the way to `y`.
template <Prefetching kFast>
void Multiply(const GemmArgs& args) {
  const double seconds = args.prefetching == kFast ? 2e-6 : 40e-6;
  const auto begin = Clock::now();
  while (SecondsSince(begin) < seconds) {
  }
  *args.y = static_cast<float>(args.prefetching);
}

template <Prefetching kFast>
KernelTable TableWith() {
  KernelTable table = kernels::KernelsFor(kernels::Isa::kScalar);
  table.gemm = Multiply<kFast>;
  return table;
}

// `y` gets the way.
GemmArgs CallOf(int64_t panel_bytes, float* y) {
  GemmArgs args{};
  args.num_rows = 1;
  args.num_cols = 64 * kPanelCols;
  args.panel_bytes = panel_bytes;
  args.y = y;
  return args;
}

template <Prefetching kFast>
void FindsFastest() {
  const KernelTable table = TableWith<kFast>();
  PrefetchTrials trials;
  float way = 0;
  trials.Run(table, CallOf(1 << 20, &way));
  EXPECT_EQ(static_cast<Prefetching>(way), Prefetching::kProcessor) << "before the first trial";
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      float own = 0;
      for (int call = 0; call < 10'000 && !trials.is_done(); ++call) trials.Run(table, CallOf(1 << 20, &own));
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(trials.is_done());
  trials.Run(table, CallOf(1 << 20, &way));
  EXPECT_EQ(static_cast<Prefetching>(way), kFast);
}

TEST(PrefetchingTest, TheFastestWayIsFound) {
  FindsFastest<Prefetching::kProcessor>();
  FindsFastest<Prefetching::kTwoPages>();
  FindsFastest<Prefetching::kFar>();
}

TEST(PrefetchingTest, SmallCallsTryNothing) {
  const KernelTable table = TableWith<Prefetching::kFar>();
  PrefetchTrials trials;
  for (int call = 0; call < 1'000; ++call) {
    float way = 0;
    trials.Run(table, CallOf(64, &way));
    EXPECT_EQ(static_cast<Prefetching>(way), Prefetching::kProcessor);
  }
  EXPECT_FALSE(trials.is_done());
}

}  // namespace
}  // namespace penstock
