#include "penstock/ops/prefetching.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "penstock/base/clock.h"
#include "penstock/kernels/kernels.h"

namespace penstock {
namespace {

using kernels::GemmArgs;
using kernels::kNumPrefetchings;
using kernels::Prefetching;

// More rows than one tile has at most; they read weights from the cache.
constexpr int64_t kManyRows = 16;
constexpr int64_t kMinBytes = 16 * 1024;  // smaller calls take as long as a look at the clock
constexpr int kCallsInTurn = 16;          // the last half counts: the caches keep what the turn before left there
constexpr float kMinGain = 1.05F;         // less may be noise
// The weights that are read before the first trial. Right after weights were written, kFar is half as fast again on
// Zen 4.
constexpr int64_t kBytesBefore = int64_t{512} << 20;

}  // namespace

Prefetching PrefetchTrials::Fastest() {
  float medians[kNumPrefetchings];
  for (int way = 0; way < kNumPrefetchings; ++way) {
    float* const calls = seconds_per_byte_[way];
    std::nth_element(calls, calls + kCallsThatCount / 2, calls + kCallsThatCount);
    medians[way] = calls[kCallsThatCount / 2];
  }
  medians[static_cast<int>(Prefetching::kProcessor)] /= kMinGain;
  return static_cast<Prefetching>(std::min_element(std::begin(medians), std::end(medians)) - std::begin(medians));
}

void PrefetchTrials::Run(const kernels::KernelTable& table, GemmArgs args) {
  const uint8_t choice = choice_.load(std::memory_order_relaxed);
  if (choice != kUnknown) {
    args.prefetching = static_cast<Prefetching>(choice);
    return table.gemm(args);
  }
  const int64_t num_panels = (args.num_cols + kPanelCols - 1) / kPanelCols, bytes = num_panels * args.panel_bytes;
  if (bytes < kMinBytes || bytes_before_.load(std::memory_order_relaxed) < kBytesBefore) {
    bytes_before_.fetch_add(bytes, std::memory_order_relaxed);
    return table.gemm(args);
  }
  const int call = num_begun_.fetch_add(1, std::memory_order_relaxed);
  if (call >= kCalls) return table.gemm(args);  // other threads still compute the last trials
  const int turn = call / kCallsInTurn, way = turn % kNumPrefetchings;
  args.prefetching = static_cast<Prefetching>(way);
  const auto begin = Clock::now();
  table.gemm(args);
  const int place = call % kCallsInTurn - kCallsInTurn / 2;
  if (place >= 0) {
    seconds_per_byte_[way][turn / kNumPrefetchings * kCallsInTurn / 2 + place] =
        static_cast<float>(SecondsSince(begin) / static_cast<double>(bytes));
  }
  if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == kCalls) {
    choice_.store(static_cast<uint8_t>(Fastest()), std::memory_order_relaxed);
  }
}

bool HasPrefetchingChoice(kernels::RowFormat x_format, WeightFormat w_format, int64_t num_rows) {
  // Rows of floats multiply codes that were unpacked into a cache.
  const bool reads_codes = x_format == kernels::RowFormat::kInt8 || TraitsOf(w_format).kind == WeightKind::kFloat;
  return num_rows > 0 && num_rows < kManyRows && reads_codes;
}

void RunGemm(const kernels::KernelTable& kernels, const GemmArgs& args) {
  if (!HasPrefetchingChoice(args.x_format, args.w_format, args.num_rows)) return kernels.gemm(args);
  constexpr int kRowClasses = std::bit_width(static_cast<uint64_t>(kManyRows)) - 1;
  static PrefetchTrials trials[std::size(kWeightFormats)][3][kRowClasses];
  const int row_class = std::bit_width(static_cast<uint64_t>(args.num_rows)) - 1;
  trials[static_cast<size_t>(args.w_format)][static_cast<size_t>(args.x_format)][row_class].Run(kernels, args);
}

}  // namespace penstock
