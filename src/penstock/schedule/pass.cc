#include "penstock/schedule/pass.h"

#include <algorithm>
#include <utility>

#include "penstock/base/status.h"

namespace penstock {

Pass::Pass(PassArgs args)
    : args_(std::move(args)),
      encodes_(Encodes(args_.config, args_.batch)),
      layers_(LayersOf(args_.config, encodes_)),
      attention_(args_, tasks_),
      ffn_(args_, tasks_),
      tasks_(args_) {
  args_.row_status.assign(args_.batch.num_rows(), absl::OkStatus());
}

Event Pass::IssueWork(LaneIdx lane, ExpertPredictor::Work work) {
  Task task = {.lane = lane, .label = {.name = "predict"}, .cost = {.flops = work.flops}};
  if (args_.is_simulated()) {
    work.run();  // predictors are the same in a simulation, which skips the bodies of tasks
  } else {
    task.body = [run = std::move(work.run)] {
      run();
      return absl::OkStatus();
    };
  }
  return runtime().Issue(std::move(task));
}

Event Pass::IssueLogits(std::span<const int64_t> rows, size_t num_logits, size_t num_best) {
  const Event computed = tasks_.Issue(args_.compute(), {.name = "logits"}, args_.cost.Logits(std::ssize(rows)), {},
                                      [rows, num_best](Operations& operations) {
                                        operations.Logits(rows);
                                        if (num_best > 0) operations.PickBest(static_cast<int64_t>(num_best));
                                      });
  if (!has_device()) return computed;
  return tasks_.Copy(CopyDirection::kToHost, {.name = "offload logits"}, 4 * (num_logits + num_best), {computed},
                     [=](Activations& host, Activations& device, ByteCopies& copies) {
                       AddRows(copies, device.logits, host.logits, {0, static_cast<int64_t>(num_logits)}, 1);
                       AddRows(copies, device.best, host.best, {0, static_cast<int64_t>(num_best)}, 1);
                     });
}

absl::Status Pass::Finish(LogitsSink sink) {
  if (encodes_) {
    for (const RowRange& rows : args_.micro_batches) attention_.StoreEncoded(rows);
  }
  const std::span<const int64_t> wanted = args_.batch.logit_rows;
  const size_t rows_at_once = args_.rows_at_once;
  const size_t vocab_size = args_.config.vocab_size;
  const bool picks_best =
      args_.batch.wants_best_only && has_device() && !args_.is_simulated() && args_.compute().operations->picks_best();
  for (size_t begin = 0; begin < wanted.size(); begin += rows_at_once) {
    const auto rows = wanted.subspan(begin, std::min(rows_at_once, wanted.size() - begin));
    const size_t num_logits = picks_best ? 0 : rows.size() * vocab_size, num_best = picks_best ? rows.size() : 0;
    const Event on_host = IssueLogits(rows, num_logits, num_best);
    const bool draws = args_.is_simulated() && args_.batch.draws_tokens;
    const OperationCost drawn = draws ? args_.cost.Draw(std::ssize(rows)) : OperationCost();
    Task sample{.lane = args_.host.lane,
                .label = {.name = "sample"},
                .cost = {.drawn_rows = drawn.drawn_rows, .drawn_entries = drawn.drawn_entries},
                .after = {on_host}};
    if (!args_.is_simulated()) {
      sample.body = [this, rows, sink, num_logits, num_best] {
        const Activations& a = args_.host.operations->activations();
        sink({.rows = rows, .logits = a.logits.first(num_logits), .best = a.best.first(num_best)});
        return absl::OkStatus();
      };
    }
    PENSTOCK_RETURN_IF_ERROR(args_.runtime.Wait(tasks_.IssueInOrder(std::move(sample))));
  }
  return tasks_.WaitForAll();
}

}  // namespace penstock
