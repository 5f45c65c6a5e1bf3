#include "penstock/engine/next_rows.h"

#include <algorithm>

namespace penstock {
namespace {

// Returns the rows from `first_pos` on that one pass can have; none if no more tokens are known.
NextRows RowsFrom(const Sequence& sequence, int64_t first_pos, const PassLimits& limits) {
  const bool encodes = first_pos < sequence.num_encoded();
  const int64_t end = encodes ? sequence.num_encoded() : sequence.num_known();
  const int64_t num_rows = std::clamp<int64_t>(end - first_pos, 0, limits.max_rows_of_sequence());
  return {.sequence_id = static_cast<uint32_t>(sequence.id()),
          .first_pos = first_pos,
          .token_ids = num_rows == 0 ? std::span<const TokenId>() : sequence.token_ids().subspan(first_pos, num_rows),
          .encodes = encodes};
}

}  // namespace

std::vector<NextRows> NextRowsOf(const KnownRequests& requests, const PassLimits& limits) {
  std::vector<NextRows> all;
  int64_t num_rows_left = limits.max_rows;
  // Returns whether there is room for more.
  const auto add = [&](const NextRows& rows) {
    num_rows_left -= std::ssize(rows.token_ids);
    if (num_rows_left >= 0 && !rows.token_ids.empty()) all.push_back(rows);
    return num_rows_left > 0;
  };
  for (size_t i = 0; i < requests.running.size(); ++i) {
    const auto part = std::ranges::find(requests.chosen, i, &SequenceRows::sequence_idx);
    const int64_t num_chosen = part == requests.chosen.end() ? 0 : part->num_rows;
    const Sequence& sequence = *requests.running[i];
    if (!add(RowsFrom(sequence, sequence.num_computed() + num_chosen, limits))) return all;
  }
  for (size_t i = 0; i < std::min(requests.waiting.size(), requests.num_places); ++i) {
    const Sequence& sequence = *requests.waiting[i];
    if (!requests.shares_prefix(sequence) && !add(RowsFrom(sequence, 0, limits))) return all;
  }
  return all;
}

}  // namespace penstock
