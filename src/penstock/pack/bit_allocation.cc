#include "penstock/pack/bit_allocation.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>

#include "penstock/base/check.h"

namespace penstock {
namespace {

// Returns the formats of a matrix that are worth their bytes, from the smallest on: each saves less error for each byte
// than the one before it (the lower convex hull).
std::vector<size_t> WorthyFormats(const std::vector<FormatCost>& formats) {
  std::vector<size_t> order(formats.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return std::tie(formats[a].bytes, formats[a].error, a) < std::tie(formats[b].bytes, formats[b].error, b);
  });
  const auto gain = [&](size_t from, size_t to) {
    return (formats[from].error - formats[to].error) / static_cast<double>(formats[to].bytes - formats[from].bytes);
  };
  std::vector<size_t> worthy;
  for (const size_t next : order) {
    if (!worthy.empty() &&
        (formats[next].error >= formats[worthy.back()].error || formats[next].bytes == formats[worthy.back()].bytes)) {
      continue;
    }
    while (worthy.size() > 1 && gain(worthy[worthy.size() - 2], worthy.back()) <= gain(worthy.back(), next)) {
      worthy.pop_back();
    }
    worthy.push_back(next);
  }
  return worthy;
}

}  // namespace

std::optional<std::vector<size_t>> AllocateBits(std::span<const MatrixChoice> matrices, uint64_t budget_bytes,
                                                uint64_t max_group_bytes) {
  // A step of a matrix to its next format.
  struct Step {
    double gain;
    size_t matrix;
    bool operator<(const Step& other) const { return gain != other.gain ? gain < other.gain : matrix > other.matrix; }
  };
  std::vector<std::vector<size_t>> worthy;
  std::vector<size_t> level(matrices.size());
  std::priority_queue<Step> steps;
  uint64_t bytes = 0;
  std::map<int64_t, uint64_t> group_bytes;
  const auto cost_of = [&](size_t matrix, size_t at) -> const FormatCost& {
    return matrices[matrix].formats[worthy[matrix][at]];
  };
  const auto offer = [&](size_t matrix) {
    const size_t at = level[matrix];
    if (at + 1 == worthy[matrix].size()) return;
    const FormatCost& now = cost_of(matrix, at);
    const FormatCost& next = cost_of(matrix, at + 1);
    steps.push({(now.error - next.error) / static_cast<double>(next.bytes - now.bytes), matrix});
  };
  for (size_t matrix = 0; matrix < matrices.size(); ++matrix) {
    PENSTOCK_CHECK(!matrices[matrix].formats.empty());
    worthy.push_back(WorthyFormats(matrices[matrix].formats));
    bytes += cost_of(matrix, 0).bytes;
    group_bytes[matrices[matrix].group] += cost_of(matrix, 0).bytes;
    offer(matrix);
  }
  if (bytes > budget_bytes) return std::nullopt;
  while (!steps.empty()) {
    const size_t matrix = steps.top().matrix;
    steps.pop();
    const uint64_t more = cost_of(matrix, level[matrix] + 1).bytes - cost_of(matrix, level[matrix]).bytes;
    const int64_t group = matrices[matrix].group;
    if (bytes + more > budget_bytes || (group >= 0 && group_bytes[group] + more > max_group_bytes)) continue;
    bytes += more;
    group_bytes[group] += more;
    ++level[matrix];
    offer(matrix);
  }
  std::vector<size_t> chosen;
  for (size_t matrix = 0; matrix < matrices.size(); ++matrix) chosen.push_back(worthy[matrix][level[matrix]]);
  return chosen;
}

}  // namespace penstock
