// Chooses who asks for the weights that few rows read: the kernels or the processor.
#pragma once

#include <atomic>
#include <cstdint>

#include "penstock/kernels/kernel_table.h"

namespace penstock {

// Finds the fastest way for products of one kind while they are computed: after the first calls, some try all ways by
// turns. Later calls take the way with the least median of seconds per byte of weights. Real calls find the caches, the
// pages and the other threads as they will be. On Zen 4, one row of q8_0 read 38 GB/s with kFar where the cache had
// been cleared before, and 22 where it was full of other weights. Calls may come from several threads.
//
// Examples of one row: Cascade Lake reads a tenth faster with kTwoPages, while Zen 4 reads 1.2 to 1.7 times as fast
// with kProcessor. On Zen 5, kFar is 1.9 times as fast as kProcessor for q4_k.
class PrefetchTrials {
 public:
  // Computes table.gemm(args), in which `args.prefetching` is not yet chosen.
  void Run(const kernels::KernelTable& table, kernels::GemmArgs args);

  // Tells whether the way is chosen.
  bool is_done() const { return choice_.load(std::memory_order_relaxed) != kUnknown; }

 private:
  static constexpr uint8_t kUnknown = 0xFF;
  static constexpr int kCallsThatCount = 64, kCalls = 2 * kCallsThatCount * kernels::kNumPrefetchings;

  // Returns the way of the least median.
  kernels::Prefetching Fastest();

  std::atomic<uint8_t> choice_{kUnknown};
  std::atomic<int64_t> bytes_before_{0};
  std::atomic<int> num_begun_{0}, num_done_{0};
  float seconds_per_byte_[kernels::kNumPrefetchings][kCallsThatCount] = {};
};

// Tells whether these products have a choice: few rows, which read weights from memory as they lie there.
bool HasPrefetchingChoice(kernels::RowFormat x_format, WeightFormat w_format, int64_t num_rows);

// Computes kernels.gemm(args) in the way that is fastest for its formats and its number of rows on this machine.
void RunGemm(const kernels::KernelTable& kernels, const kernels::GemmArgs& args);

}  // namespace penstock
