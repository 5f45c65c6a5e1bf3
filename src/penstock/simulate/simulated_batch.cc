#include "penstock/simulate/simulated_batch.h"

#include <algorithm>

#include "penstock/base/check.h"

namespace penstock {

SimulatedBatch::SimulatedBatch(const Workload& workload, const ChosenPolicy& policy, int64_t num_kv_pages,
                               int64_t num_state_pages, bool has_encoder)
    : workload_(workload),
      policy_(policy),
      limits_(policy.pass_limits()),
      num_state_pages_(num_state_pages),
      has_encoder_(has_encoder),
      num_requests_(workload.num_requests > 0 ? workload.num_requests : policy.plan.batch_size),
      free_pages_(num_kv_pages) {
  PENSTOCK_CHECK(policy.kv_window.NumPages(workload.max_positions()) + num_state_pages <= num_kv_pages);
}

void SimulatedBatch::Admit() {
  while (num_admitted_ < num_requests_ && std::ssize(running_) < policy_.plan.batch_size) {
    const int64_t num_prompt = workload_.PromptTokens(num_admitted_) + (has_encoder_ ? 1 : 0);
    const int64_t num_shared = has_encoder_ ? 0 : workload_.SharedTokens(num_admitted_);
    // The pages of the common tokens stay when the first request ends.
    const int64_t num_kept = policy_.kv_window.on() ? 0 : num_shared / KvCache::kPageTokens;
    const int64_t num_pages =
        policy_.kv_window.NumPages(num_prompt + workload_.new_tokens) + num_state_pages_ - num_kept;
    // When nothing runs, a request gets the pages of the common tokens, too, as cached pages go when others need them.
    if (num_pages > free_pages_ && !running_.empty()) return;
    free_pages_ -= num_pages;
    running_.push_back(
        {.id = static_cast<uint32_t>(num_admitted_++),
         .num_prompt = num_prompt,
         .num_shared = num_shared,
         .num_pages = num_pages,
         .state = {.num_pending = num_prompt, .in_prefill = true, .num_to_encode = has_encoder_ ? num_prompt - 1 : 0}});
  }
}

StepSize SimulatedBatch::ChooseRows() {
  std::vector<SequenceState> states;
  bool is_computed = false;  // in this step: the next of the common tokens
  for (Running& running : running_) {
    SequenceState& state = running.state;
    const int64_t num_skipped = std::min(running.num_shared, num_shared_computed_) - state.num_computed;
    if (num_skipped > 0) {
      state.num_computed += num_skipped;
      state.num_pending -= num_skipped;
      num_skipped_tokens_ += num_skipped;
    }
    state.waits = is_computed && state.num_computed < running.num_shared;
    is_computed = is_computed || (state.in_prefill && state.num_computed < workload_.shared_tokens);
    states.push_back(state);
  }
  parts_ = penstock::ChooseRows(states, limits_);
  next_encodes_ = IsToEncode(states, parts_);
  StepSize size;
  for (const SequenceRows& part : parts_) {
    const SequenceState& state = running_[part.sequence_idx].state;
    if (has_encoder_ ? state.num_to_encode > 0 : state.in_prefill) {
      size.num_prompt_rows += part.num_rows;
    } else {
      ++size.num_decoding;
    }
  }
  return size;
}

std::vector<RowRange> SimulatedBatch::Fill(RowBatch& batch) const {
  batch.Clear();
  batch.draws_tokens = workload_.draws_tokens;
  batch.next_encodes = next_encodes_;
  std::vector<RowRange> micro_batches;
  for (const auto& micro_batch : CutMicroBatches(parts_, limits_)) {
    const int64_t begin = batch.num_rows();
    for (const SequenceRows& part : micro_batch) {
      const Running& running = running_[part.sequence_idx];
      for (int64_t i = 0; i < part.num_rows; ++i) {
        batch.AddRow(0, part.first_pos + i, {}, running.id, limits_.window,
                     running.num_prompt - (has_encoder_ ? 1 : 0));
      }
      if (part.num_rows == running.state.num_pending) batch.logit_rows.push_back(batch.num_rows() - 1);
    }
    micro_batches.push_back({begin, batch.num_rows()});
  }
  return micro_batches;
}

int64_t SimulatedBatch::Advance() {
  int64_t num_generated = 0;
  for (const SequenceRows& part : parts_) {
    Running& running = running_[part.sequence_idx];
    SequenceState& state = running.state;
    state.num_computed += part.num_rows;
    state.num_pending -= part.num_rows;
    state.num_to_encode = 0;
    state.in_prefill = state.num_computed < running.num_prompt;
    num_shared_computed_ = std::max(num_shared_computed_, std::min(state.num_computed, workload_.shared_tokens));
    if (state.num_pending > 0) continue;
    ++num_generated;
    ++running.num_generated;
    state.num_pending = 1;
  }
  std::erase_if(running_, [&](const Running& running) {
    if (running.num_generated < workload_.new_tokens) return false;
    const bool keeps_shared = running.id == 0 && !policy_.kv_window.on();
    free_pages_ += running.num_pages - (keeps_shared ? workload_.shared_tokens / KvCache::kPageTokens : 0);
    return true;
  });
  return num_generated;
}

}  // namespace penstock
