#include "penstock/engine/simulation.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/engine/micro_batches.h"
#include "penstock/routing/trace_routing.h"
#include "penstock/schedule/pass_simulator.h"

namespace penstock {
namespace {

const KernelRates* FindKernels(const Hardware& hardware, const SimulationInputs& inputs) {
  if (hardware.processors.empty()) return nullptr;
  for (const KernelRates& rates : hardware.processors[0].kernels) {
    if (rates.num_threads == inputs.num_threads && rates.weights == WeightFormatName(inputs.formats.ffn) &&
        rates.kv == KvFormatName(inputs.formats.kv) && !rates.gemm.empty()) {
      return &rates;
    }
  }
  return nullptr;
}

double DiskRate(const Hardware& hardware) {
  for (const Link& link : hardware.links) {
    if (link.name == "disk_to_dram") return link.bytes_per_s;
  }
  return 0;
}

constexpr int64_t kMostSteps = 100'000'000;

// The recorded rows as the engine makes a pass of them, cut into balanced micro-batches. Every sequence wants logits: a
// chunk from the middle of a prompt takes a little longer here than it did.
std::vector<RowRange> BuildPass(TraceRouting& trace, int64_t micro_batch_size, const KvWindow& window,
                                RowBatch& batch) {
  std::vector<RowRange> parts;
  std::vector<int64_t> tokens;
  const std::span<const uint32_t> ids = trace.sequence_ids(), positions = trace.positions();
  for (size_t row = 0; row < ids.size(); ++row) {
    if (row == 0 || ids[row] != ids[row - 1]) {
      parts.push_back({static_cast<int64_t>(row), static_cast<int64_t>(row)});
      tokens.push_back(0);
    }
    ++parts.back().end;
    tokens.back() += window.KvPosition(positions[row]) + 1;
  }
  batch.Clear();
  std::vector<size_t> order;
  std::vector<RowRange> micro_batches;
  const int64_t most = micro_batch_size > 0 ? micro_batch_size : std::max<int64_t>(1, std::ssize(parts));
  for (const std::vector<size_t>& members : BalanceMicroBatches(tokens, most)) {
    const int64_t begin = batch.num_rows();
    for (const size_t member : members) {
      for (int64_t row = parts[member].begin; row < parts[member].end; ++row) {
        order.push_back(static_cast<size_t>(row));
        batch.AddRow(0, positions[static_cast<size_t>(row)], {}, ids[static_cast<size_t>(row)], window);
      }
      batch.logit_rows.push_back(batch.num_rows() - 1);
    }
    micro_batches.push_back({begin, batch.num_rows()});
  }
  trace.Reorder(order);
  return micro_batches;
}

}  // namespace

absl::StatusOr<std::vector<double>> SimulateTrace(const SimulationInputs& inputs, const Hardware& hardware,
                                                  const std::string& trace_path) {
  const KernelRates* kernels = FindKernels(hardware, inputs);
  const double disk_bytes_per_s = DiskRate(hardware);
  const MemoryPlan& plan = inputs.policy.plan;
  const bool streams = plan.num_expert_slots < plan.num_experts_total;
  if (kernels == nullptr || (streams && disk_bytes_per_s <= 0)) {
    return UsageError(
        "the hardware has no rates for weights in {}, KV in {} and {} threads from this disk: measure them with "
        "penstock probe --model",
        WeightFormatName(inputs.formats.ffn), KvFormatName(inputs.formats.kv), inputs.num_threads);
  }
  if (inputs.policy.device.has_value()) return UsageError("only steps without a device can be simulated");
  const auto compute = [kernels](const TaskCost& cost) {
    const double kv_s = kernels->kv_bytes_per_s > 0 ? static_cast<double>(cost.kv_bytes) / kernels->kv_bytes_per_s : 0;
    return kv_s + kernels->GemmSeconds(cost.flops, static_cast<double>(cost.memory_bytes - cost.kv_bytes));
  };
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<PassSimulator> simulator,
      PassSimulator::Create({.config = inputs.config,
                             .formats = inputs.formats,
                             .expert_bytes = inputs.expert_bytes,
                             .schedule = inputs.policy.schedule,
                             .eviction = inputs.policy.eviction,
                             .dram = {.num_slots = plan.num_expert_slots, .num_pinned = plan.num_pinned_experts},
                             .rows_at_once = kMaxLogitRows,
                             .rates = {.host_compute = compute, .disk_bytes_per_s = std::max(disk_bytes_per_s, 1.0)}}));
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<TraceRouting> trace, TraceRouting::Open(trace_path, inputs.config));
  std::vector<double> seconds;
  RowBatch batch;
  for (;;) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, trace->NextStep());
    if (!found) return seconds;
    if (trace->step_idx() >= kMostSteps) {
      return InputError("{}: step {} is beyond the {} that can be simulated", Printable(trace_path), trace->step_idx(),
                        kMostSteps);
    }
    seconds.resize(static_cast<size_t>(trace->step_idx()) + 1);
    std::vector<RowRange> micro_batches = BuildPass(*trace, plan.micro_batch_size, inputs.policy.kv_window, batch);
    seconds.back() = simulator->Run(batch, std::move(micro_batches), *trace);
  }
}

}  // namespace penstock
