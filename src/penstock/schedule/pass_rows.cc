#include "penstock/schedule/pass_rows.h"

#include <algorithm>

#include "penstock/schedule/micro_batches.h"

namespace penstock {

namespace {

// Chooses prompts for the encoder, as many of the first ones as fit.
std::vector<SequenceRows> ChooseToEncode(std::span<const SequenceState> sequences, int64_t room) {
  std::vector<SequenceRows> parts;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t num_rows = sequences[i].num_to_encode;
    if (num_rows == 0) continue;
    if (num_rows > room) break;
    parts.push_back({i, sequences[i].num_computed, num_rows});
    room -= num_rows;
  }
  return parts;
}

}  // namespace

bool IsToEncode(std::span<const SequenceState> sequences, std::span<const SequenceRows> chosen) {
  const auto num_to_encode = std::ranges::count_if(sequences, [](const auto& s) { return s.num_to_encode > 0; });
  const auto num_chosen =
      std::ranges::count_if(chosen, [&](const auto& part) { return sequences[part.sequence_idx].num_to_encode > 0; });
  return num_to_encode > num_chosen;
}

std::vector<SequenceRows> ChooseRows(std::span<const SequenceState> sequences, const PassLimits& limits) {
  std::vector<SequenceRows> parts = ChooseToEncode(sequences, limits.max_rows);
  if (!parts.empty()) return parts;
  int64_t room = limits.max_rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].in_prefill) continue;
    parts.push_back({i, sequences[i].num_computed, sequences[i].num_pending + sequences[i].num_drafts});
    room -= parts.back().num_rows;
  }
  for (size_t i = 0; i < sequences.size() && room > 0; ++i) {
    if (!sequences[i].in_prefill || sequences[i].waits) continue;
    const int64_t num_rows = std::min({room, limits.max_rows_of_sequence(), sequences[i].num_pending});
    parts.push_back({i, sequences[i].num_computed, num_rows});
    room -= num_rows;
  }
  return parts;
}

std::vector<std::vector<SequenceRows>> CutMicroBatches(std::span<const SequenceRows> parts, const PassLimits& limits) {
  std::vector<int64_t> tokens;
  for (const SequenceRows& part : parts) {
    // Row i of a part sees i positions more than row 0.
    const int64_t first = limits.window.KvPosition(part.first_pos) + 1;
    tokens.push_back(part.num_rows * first + part.num_rows * (part.num_rows - 1) / 2);
  }
  const int64_t max = limits.micro_batch_size > 0 ? limits.micro_batch_size : std::max<int64_t>(1, std::ssize(parts));
  std::vector<std::vector<SequenceRows>> micro_batches;
  for (const std::vector<size_t>& members : BalanceMicroBatches(tokens, max)) {
    micro_batches.emplace_back();
    for (const size_t member : members) micro_batches.back().push_back(parts[member]);
    if (!limits.prompts_last) continue;
    std::vector<SequenceRows>& all = micro_batches.back();
    std::stable_partition(all.begin(), all.end(), [](const SequenceRows& part) { return part.num_rows == 1; });
  }
  return micro_batches;
}

}  // namespace penstock
