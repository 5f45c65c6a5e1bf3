#include "penstock/engine/step_batch.h"

#include <algorithm>
#include <utility>

namespace penstock {

int64_t StepBatch::num_drafts() const { return std::ranges::count(is_draft_, char{1}); }

int64_t StepBatch::num_prompt_rows() const {
  return std::ranges::count_if(sequence_of_row_, [](const Sequence* sequence) { return sequence->in_prefill(); });
}

void StepBatch::Clear() {
  rows_.Clear();
  sequence_of_row_.clear();
  is_draft_.clear();
  statuses_.clear();
}

void StepBatch::Add(Sequence& sequence, int64_t num_rows, std::span<const TokenId> drafts, const KvWindow& window) {
  const int64_t first = sequence.num_computed(), first_draft = first + num_rows;
  KvSequence& kv = *sequence.kv();
  kv.Open(sequence.token_ids(), first_draft);
  for (int64_t pos = first; pos < first_draft + std::ssize(drafts); ++pos) {
    const bool is_draft = pos >= first_draft;
    rows_.AddRow(is_draft ? drafts[pos - first_draft] : sequence.token_id(pos), pos, kv.pages(),
                 static_cast<uint32_t>(sequence.id()), window,
                 sequence.num_encoded() > 0 ? sequence.num_encoded() : sequence.max_length(), kv.state_pages());
    rows_.has_kv.back() = kv.has_entries(pos) ? 1 : 0;
    sequence_of_row_.push_back(&sequence);
    is_draft_.push_back(is_draft ? 1 : 0);
    // The states behind drafts may be wrong.
    std::vector<std::byte*> copy = is_draft ? std::vector<std::byte*>() : kv.KeepState(pos);
    if (!copy.empty()) rows_.state_copies.push_back({rows_.num_rows() - 1, std::move(copy)});
    if (pos + 1 == first_draft && !drafts.empty() && !kv.state_pages().empty()) {
      const std::span<std::byte* const> before = kv.StateToTakeBack();
      rows_.state_copies.push_back({rows_.num_rows() - 1, {before.begin(), before.end()}});
    }
    const bool is_last = pos + 1 >= first + sequence.num_pending() && sequence.sampling().max_tokens > 0;
    if (is_last || sequence.wants_prompt_logprobs(pos + 1)) rows_.logit_rows.push_back(rows_.num_rows() - 1);
  }
}

bool StepBatch::IsLastKnown(int64_t row) const {
  const Sequence& sequence = *sequence_of_row_[row];
  const int64_t pos = rows_.positions[row];
  if (sequence.finished() || sequence.num_known() != pos + 1) return false;
  for (; is_draft_[row] != 0; --row) {
    if (!statuses_[row].ok() || rows_.token_ids[row] != sequence.token_id(rows_.positions[row])) return false;
  }
  return true;
}

void StepBatch::AdvanceKnown() {
  for (int64_t row = 0; row < rows_.num_rows(); ++row) {
    if (is_draft_[row] == 0) sequence_of_row_[row]->AdvanceComputed(1);
  }
}

void StepBatch::FailBroken() {
  for (size_t row = 0; row < statuses_.size(); ++row) {
    if (!statuses_[row].ok() && is_draft_[row] == 0) sequence_of_row_[row]->Fail(statuses_[row]);
  }
}

int64_t StepBatch::AcceptDrafts() {
  int64_t num_accepted = 0;
  for (int64_t row = 0, end = 0; row < rows_.num_rows(); row = end) {
    Sequence& sequence = *sequence_of_row_[row];
    int64_t num_drafts = 0, num_right = 0;
    for (end = row; end < rows_.num_rows() && sequence_of_row_[end] == &sequence; ++end) {
      if (is_draft_[end] == 0) continue;
      const int64_t pos = rows_.positions[end];
      const bool is_right =
          statuses_[end].ok() && pos < sequence.num_known() && rows_.token_ids[end] == sequence.token_id(pos);
      if (is_right && num_right == num_drafts) ++num_right;
      ++num_drafts;
    }
    if (num_drafts == 0 || sequence.failed()) continue;
    num_accepted += num_right;
    if (num_right < num_drafts && !sequence.kv()->state_pages().empty()) {
      sequence.kv()->TakeBackState();
      if (num_right > 0) sequence.SetRepeatsDrafts();
    } else {
      sequence.AdvanceComputed(num_right);
    }
  }
  return num_accepted;
}

void StepBatch::KeepEntries() {
  for (int64_t row = 0, end = 0; row < rows_.num_rows(); row = end) {
    Sequence& sequence = *sequence_of_row_[row];
    int64_t num_good = 0;
    for (end = row; end < rows_.num_rows() && sequence_of_row_[end] == &sequence; ++end) {
      const bool is_good = statuses_[end].ok() && rows_.positions[end] < sequence.num_computed();
      if (num_good == end - row && is_good) ++num_good;
    }
    // Rows of an encoder see each other.
    if (num_good == 0 || (sequence.failed() && rows_.positions[row] < sequence.num_encoded())) continue;
    const int64_t first = rows_.positions[row];
    sequence.kv()->SetComputed(sequence.token_ids(), first, first + num_good);
  }
}

}  // namespace penstock
