#include "penstock/memory/belady.h"

#include <limits>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace penstock {

int64_t BeladyHits(std::span<const ExpertKey> wanted, int64_t num_slots) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> next(wanted.size(), kNever);  // index where the same key is wanted again
  absl::flat_hash_map<ExpertKey, int64_t> last;
  for (int64_t i = std::ssize(wanted) - 1; i >= 0; --i) {
    const auto [found, is_new] = last.try_emplace(wanted[i], i);
    if (!is_new) next[i] = std::exchange(found->second, i);
  }
  int64_t num_hits = 0;
  // The held keys, each by its next index in `wanted`. Keys that are never wanted again need no slot.
  std::set<int64_t> held;
  for (int64_t i = 0; i < std::ssize(wanted); ++i) {
    num_hits += static_cast<int64_t>(held.erase(i));
    const int64_t again = next[i];
    if (again == kNever) continue;
    held.insert(again);
    if (std::ssize(held) > num_slots) held.erase(std::prev(held.end()));
  }
  return num_hits;
}

}  // namespace penstock
