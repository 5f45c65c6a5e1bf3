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

// Returns how many passes a running request takes at most, with the present one.
int64_t MaxPasses(const Sequence& sequence, const PassLimits& limits) {
  int64_t num_passes = std::max<int64_t>(0, sequence.sampling().max_tokens - sequence.num_generated());
  if (sequence.in_prefill()) {  // the last pass of a prompt gives the first token
    num_passes += (sequence.num_pending() - 1) / limits.max_rows_of_sequence() + (sequence.num_to_encode() > 0 ? 1 : 0);
  }
  return num_passes;
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
  const bool is_soon = requests.running.size() < requests.num_places ||
                       std::ranges::any_of(requests.running, [&](const std::unique_ptr<Sequence>& sequence) {
                         return MaxPasses(*sequence, limits) <= 2;
                       });
  for (size_t i = 0; i < std::min(requests.waiting.size(), requests.num_places); ++i) {
    const Sequence& sequence = *requests.waiting[i];
    if (requests.shares_prefix(sequence)) continue;
    NextRows rows = RowsFrom(sequence, 0, limits);
    rows.is_soon = is_soon;
    if (!add(rows)) return all;
  }
  return all;
}

}  // namespace penstock
