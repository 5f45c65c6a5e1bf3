#include "penstock/schedule/pass_tasks.h"

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

// Adds up what rows see. Rows of one sequence share what they read; its last row sees the most.
ModelCost::Context SumOf(const RowBatch& batch, RowRange rows, absl::FunctionRef<int64_t(int64_t row_idx)> seen_by) {
  ModelCost::Context context;
  for (int64_t row_idx = rows.begin; row_idx < rows.end; ++row_idx) {
    const int64_t seen = seen_by(row_idx);
    context.seen_tokens += seen;
    const bool is_last = row_idx + 1 == rows.end || batch.sequence_ids[row_idx + 1] != batch.sequence_ids[row_idx];
    if (is_last) context.read_tokens += seen;
  }
  return context;
}

// Rows read the entries of their own choices; the rows of a sequence share the index keys that they scan.
ModelCost::Context SelectedContextOf(const ModelConfig& config, const RowBatch& batch, RowRange rows,
                                     int64_t layer_idx) {
  const int64_t num_topk = config.indexer.num_topk;
  ModelCost::Context context{.has_indexer = config.has_indexer(layer_idx)};
  if (context.has_indexer) {
    const ModelCost::Context all = SumOf(batch, rows, [&](int64_t row_idx) {
      const int64_t seen = batch.kv_positions[row_idx] + 1;
      return seen > num_topk ? seen : 0;
    });
    context.scored_tokens = all.seen_tokens;
    context.scanned_tokens = all.read_tokens;
  }
  for (int64_t row_idx = rows.begin; row_idx < rows.end; ++row_idx) {
    context.seen_tokens += std::min(batch.kv_positions[row_idx] + 1, num_topk);
  }
  context.read_tokens = context.seen_tokens;
  return context;
}

}  // namespace

ModelCost::Context ContextOf(const RowBatch& batch, RowRange rows, int64_t window) {
  return SumOf(batch, rows, [&](int64_t row_idx) {
    const int64_t seen = batch.kv_positions[row_idx] + 1;
    return window > 0 ? std::min(seen, window) : seen;
  });
}

ModelCost::Context ContextOf(const ModelConfig& config, const RowBatch& batch, RowRange rows, int64_t layer_idx) {
  if (config.is_recurrent(layer_idx)) {
    int64_t num_sequences = 1;
    for (int64_t row = rows.begin + 1; row < rows.end; ++row) {
      num_sequences += batch.sequence_ids[row] != batch.sequence_ids[row - 1];
    }
    return {.recurrent_rows = rows.size(), .num_states = num_sequences};
  }
  if (config.windows_are_chunks) {
    return SumOf(batch, rows, [&](int64_t row_idx) {
      return batch.kv_positions[row_idx] + 1 - config.first_of_chunk(layer_idx, batch.positions[row_idx]);
    });
  }
  if (config.indexer.is_on()) return SelectedContextOf(config, batch, rows, layer_idx);
  if (!config.encoder.is_on()) return ContextOf(batch, rows, config.window_of(layer_idx));
  if (config.is_of_encoder(layer_idx)) return CrossContextOf(batch, rows);
  return SumOf(batch, rows,
               [&](int64_t row_idx) { return batch.kv_positions[row_idx] + 1 - batch.sequence_lengths[row_idx]; });
}

ModelCost::Context CrossContextOf(const RowBatch& batch, RowRange rows) {
  return SumOf(batch, rows, [&](int64_t row_idx) { return batch.sequence_lengths[row_idx]; });
}

TaskLabel PassTasks::LabelOf(std::string_view name, RowRange rows, int64_t layer_idx) const {
  TaskLabel label{.name = name, .layer_idx = layer_idx};
  const std::vector<RowRange>& all = args_.micro_batches;
  const auto found = std::find(all.begin(), all.end(), rows);
  if (all.size() > 1 && found != all.end()) label.micro_batch_idx = found - all.begin();
  return label;
}

Event PassTasks::IssueInOrder(Task task) {
  Event& last = last_[task.lane];
  task.after.push_back(last);
  last = args_.runtime.Issue(std::move(task));
  return last;
}

Event PassTasks::Issue(const PassProcessor& processor, TaskLabel label, const OperationCost& cost, Events after,
                       Body body) {
  Task task{.lane = processor.lane,
            .label = label,
            .cost = {.flops = cost.flops,
                     .memory_bytes = cost.bytes,
                     .kv_bytes = cost.kv_bytes,
                     .kv_flops = cost.kv_flops,
                     .packed_bytes = cost.packed_bytes,
                     .decoded_bytes = cost.decoded_bytes,
                     .begins_pass = cost.begins_pass,
                     .drawn_rows = cost.drawn_rows,
                     .ready_experts = cost.ready_experts,
                     .embedded_rows = cost.embedded_rows,
                     .attention_rows = cost.attention_rows,
                     .routed_rows = cost.routed_rows,
                     .drawn_entries = cost.drawn_entries},
            .after = std::move(after)};
  if (processor.operations != nullptr) {
    task.body = [operations = processor.operations, run = std::move(body)] {
      run(*operations);
      return absl::OkStatus();
    };
  }
  return IssueInOrder(std::move(task));
}

Event PassTasks::Copy(CopyDirection direction, TaskLabel label, uint64_t link_bytes, Events after, CopyLister list) {
  const PassDevice& device = *args_.device;
  const bool to_device = direction == CopyDirection::kToDevice;
  Task task{.lane = to_device ? device.dram_to_device_lane : device.device_to_dram_lane,
            .label = label,
            .cost = {.link_bytes = link_bytes},
            .after = std::move(after)};
  if (!args_.is_simulated()) {
    ByteCopies copies;
    list(args_.host.operations->activations(), device.processor.operations->activations(), copies);
    task.body = [copies = std::move(copies), copier = to_device ? device.to_device : device.to_host] {
      return copier->Copy(copies);
    };
  }
  return IssueInOrder(std::move(task));
}

Event PassTasks::Transfer(LaneIdx lane, TaskLabel label, uint64_t link_bytes, Events after,
                          std::function<absl::Status()> body) {
  return IssueInOrder({.lane = lane,
                       .label = label,
                       .cost = {.link_bytes = link_bytes},
                       .after = std::move(after),
                       .body = args_.is_simulated() ? nullptr : std::move(body)});
}

Event PassTasks::Arrive(TaskLabel label, uint64_t link_bytes, const SimulatedRuntime::Times& sent) {
  const LaneIdx lane = args_.ranks->from_ranks_lane;
  Event& last = last_[lane];
  last = args_.ranks->clock->IssueArrival(
      {.lane = lane, .label = label, .cost = {.link_bytes = link_bytes}, .after = {last}}, sent);
  return last;
}

absl::Status PassTasks::WaitForAll() {
  absl::Status status;
  for (const auto& [lane, event] : last_) status.Update(args_.runtime.Wait(event));
  return status;
}

}  // namespace penstock
