#include "penstock/schedule/micro_batches.h"

#include <algorithm>
#include <numeric>

#include "penstock/base/check.h"

namespace penstock {

std::vector<std::vector<size_t>> BalanceMicroBatches(std::span<const int64_t> tokens, int64_t max) {
  PENSTOCK_CHECK(max >= 1);
  const size_t room = max;
  std::vector<std::vector<size_t>> micro_batches((tokens.size() + room - 1) / room);
  std::vector<int64_t> sums(micro_batches.size());
  std::vector<size_t> longest_first(tokens.size());
  std::iota(longest_first.begin(), longest_first.end(), size_t{0});
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](size_t a, size_t b) { return tokens[a] > tokens[b]; });
  for (const size_t sequence : longest_first) {
    size_t best = micro_batches.size();
    for (size_t i = 0; i < micro_batches.size(); ++i) {
      if (micro_batches[i].size() < room && (best == micro_batches.size() || sums[i] < sums[best])) best = i;
    }
    micro_batches[best].push_back(sequence);
    sums[best] += tokens[sequence];
  }
  for (auto& micro_batch : micro_batches) std::sort(micro_batch.begin(), micro_batch.end());
  return micro_batches;
}

}  // namespace penstock
