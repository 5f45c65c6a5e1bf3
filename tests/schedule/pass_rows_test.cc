// Proves that a pass takes one row of each sequence that decodes, and that prompts get the rows that are left, first
// come first served. Cutting a pass into micro-batches loses no row.
#include "penstock/schedule/pass_rows.h"

#include <algorithm>

#include <rapidcheck/gtest.h>

namespace penstock {
namespace {

std::vector<SequenceState> AnySequences() {
  return *rc::gen::container<std::vector<SequenceState>>(rc::gen::map(
      rc::gen::tuple(rc::gen::inRange<int64_t>(0, 500), rc::gen::inRange<int64_t>(1, 100), rc::gen::arbitrary<bool>()),
      [](const std::tuple<int64_t, int64_t, bool>& of) {
        const auto [num_computed, num_pending, in_prefill] = of;
        return SequenceState{num_computed, in_prefill ? num_pending : 1, in_prefill};
      }));
}

RC_GTEST_PROP(PassRows, DecodingSequencesComeFirstAndPromptsFillTheRest, ()) {
  const auto sequences = AnySequences();
  const PassLimits limits{.max_rows = std::ssize(sequences) + *rc::gen::inRange<int64_t>(0, 200)};
  const auto parts = ChooseRows(sequences, limits);

  std::vector<int64_t> num_rows(sequences.size());
  int64_t room = limits.max_rows;
  for (const SequenceRows& part : parts) {
    RC_ASSERT(part.first_pos == sequences[part.sequence_idx].num_computed);
    RC_ASSERT(num_rows[part.sequence_idx] == 0);
    num_rows[part.sequence_idx] = part.num_rows;
    room -= part.num_rows;
  }
  RC_ASSERT(room >= 0);
  bool full = false;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (!sequences[i].in_prefill) {
      RC_ASSERT(num_rows[i] == 1);
      continue;
    }
    RC_ASSERT(num_rows[i] == 0 || !full);  // a prompt gets nothing once one before it had to wait
    RC_ASSERT(num_rows[i] <= sequences[i].num_pending);
    full = full || num_rows[i] < sequences[i].num_pending;
  }
  RC_ASSERT(!full || room == 0);
}

RC_GTEST_PROP(PassRows, EncodersReadWholePromptsBeforeAnythingElse, ()) {
  auto sequences = AnySequences();
  int64_t longest = 0, num_to_encode = 0;
  for (SequenceState& sequence : sequences) {
    if (!sequence.in_prefill || *rc::gen::arbitrary<bool>()) continue;
    sequence.num_to_encode = *rc::gen::inRange<int64_t>(1, 100);
    sequence.num_pending = sequence.num_to_encode + 1;
    longest = std::max(longest, sequence.num_to_encode);
    ++num_to_encode;
  }
  const PassLimits limits{.max_rows = std::ssize(sequences) + longest + *rc::gen::inRange<int64_t>(0, 200)};
  const auto parts = ChooseRows(sequences, limits);
  if (num_to_encode == 0) {
    RC_ASSERT(!IsToEncode(sequences, parts));
    return;
  }
  RC_ASSERT(!parts.empty());
  int64_t num_rows = 0;
  for (const SequenceRows& part : parts) {
    RC_ASSERT(part.num_rows == sequences[part.sequence_idx].num_to_encode);
    num_rows += part.num_rows;
  }
  RC_ASSERT(num_rows <= limits.max_rows);
  RC_ASSERT(IsToEncode(sequences, parts) == (std::ssize(parts) < num_to_encode));
}

RC_GTEST_PROP(PassRows, MicroBatchesKeepEveryPartOnce, ()) {
  const auto sequences = AnySequences();
  const PassLimits limits{.max_rows = std::ssize(sequences) + *rc::gen::inRange<int64_t>(0, 200),
                          .micro_batch_size = *rc::gen::inRange<int64_t>(0, 6),
                          .prompts_last = *rc::gen::arbitrary<bool>()};
  const auto parts = ChooseRows(sequences, limits);
  std::vector<size_t> cut;
  for (const auto& micro_batch : CutMicroBatches(parts, limits)) {
    RC_ASSERT(limits.micro_batch_size == 0 || std::ssize(micro_batch) <= limits.micro_batch_size);
    for (const SequenceRows& part : micro_batch) cut.push_back(part.sequence_idx);
    if (!limits.prompts_last) continue;
    RC_ASSERT(std::ranges::is_partitioned(micro_batch, [](const SequenceRows& part) { return part.num_rows == 1; }));
  }
  std::vector<size_t> expected;
  for (const SequenceRows& part : parts) expected.push_back(part.sequence_idx);
  std::sort(cut.begin(), cut.end());
  std::sort(expected.begin(), expected.end());
  RC_ASSERT(cut == expected);
}

}  // namespace
}  // namespace penstock
