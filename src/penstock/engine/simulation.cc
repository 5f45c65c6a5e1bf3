#include "penstock/engine/simulation.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/engine/lane_rates.h"
#include "penstock/engine/pass_rows.h"
#include "penstock/routing/generated_routing.h"
#include "penstock/routing/trace_routing.h"
#include "penstock/schedule/pass_simulator.h"

namespace penstock {
namespace {

constexpr int64_t kMostSteps = 100'000'000;

absl::StatusOr<std::unique_ptr<PassSimulator>> MakeSimulator(const SimulationInputs& inputs, const Hardware& hardware) {
  const ChosenPolicy& policy = inputs.plan.policy;
  const MemoryPlan& plan = policy.plan;
  PassSimulator::Args args{
      .config = inputs.config,
      .formats = inputs.plan.model_formats,
      .expert_bytes = inputs.plan.layouts.num_experts() > 0 ? inputs.plan.layouts.read_bytes(0) : 0,
      .schedule = policy.schedule,
      .eviction = policy.eviction,
      .dram = {.num_slots = plan.num_expert_slots, .num_pinned = plan.num_pinned_experts},
      .rows_at_once = kMaxLogitRows,
      .rates = {},
      .sink = inputs.sink};
  PENSTOCK_ASSIGN_OR_RETURN(args.rates, LaneRatesOf(hardware, inputs.plan, inputs.num_threads));
  if (policy.device.has_value()) {
    args.device = {.room = {.num_slots = plan.device.num_expert_slots, .num_pinned = plan.device.num_pinned_experts},
                   .staged_pages = plan.device.holds_kv_cache
                                       ? 0
                                       : NumStagedPages(plan, inputs.config, inputs.plan.model_formats.kv)};
  }
  return PassSimulator::Create(std::move(args));
}

// The recorded rows as the engine makes a pass of them. Every sequence wants logits: a chunk from the middle of a
// prompt takes a little longer here than it did.
std::vector<RowRange> BuildPass(TraceRouting& trace, const PassLimits& limits, RowBatch& batch) {
  std::vector<SequenceRows> parts;
  std::vector<size_t> first_rows;  // of parts, in the trace
  const std::span<const uint32_t> ids = trace.sequence_ids(), positions = trace.positions();
  for (size_t row = 0; row < ids.size(); ++row) {
    if (row == 0 || ids[row] != ids[row - 1]) {
      parts.push_back({.sequence_idx = parts.size(), .first_pos = positions[row]});
      first_rows.push_back(row);
    }
    ++parts.back().num_rows;
  }
  batch.Clear();
  std::vector<size_t> order;
  std::vector<RowRange> micro_batches;
  for (const auto& micro_batch : CutMicroBatches(parts, limits)) {
    const int64_t begin = batch.num_rows();
    for (const SequenceRows& part : micro_batch) {
      const size_t first = first_rows[part.sequence_idx];
      for (size_t row = first; row < first + static_cast<size_t>(part.num_rows); ++row) {
        order.push_back(row);
        batch.AddRow(0, positions[row], {}, ids[row], limits.window);
      }
      batch.logit_rows.push_back(batch.num_rows() - 1);
    }
    micro_batches.push_back({begin, batch.num_rows()});
  }
  trace.Reorder(order);
  return micro_batches;
}

PassLimits LimitsOf(const ChosenPolicy& policy) {
  return {.max_rows = policy.plan.batch_size + policy.plan.prefill_chunk,
          .micro_batch_size = policy.plan.micro_batch_size,
          .window = policy.kv_window};
}

// Requests as the engine sees them, without tokens: they wait, get a place and KV pages, are prefilled and decoded.
class SimulatedBatch {
 public:
  SimulatedBatch(const Workload& workload, const ChosenPolicy& policy, int64_t num_pages)
      : workload_(workload),
        policy_(policy),
        limits_(LimitsOf(policy)),
        num_requests_(workload.num_requests > 0 ? workload.num_requests : policy.plan.batch_size),
        free_pages_(num_pages) {}

  int64_t num_requests() const { return num_requests_; }
  bool idle() const { return running_.empty() && num_admitted_ == num_requests_; }

  void Admit() {
    while (num_admitted_ < num_requests_ && std::ssize(running_) < policy_.plan.batch_size) {
      const int64_t num_prompt = workload_.PromptTokens(num_admitted_);
      const int64_t num_pages = policy_.kv_window.NumPages(num_prompt + workload_.new_tokens);
      if (num_pages > free_pages_) return;
      free_pages_ -= num_pages;
      running_.push_back({.id = static_cast<uint32_t>(num_admitted_++),
                          .num_prompt = num_prompt,
                          .num_pages = num_pages,
                          .state = {.num_pending = num_prompt, .in_prefill = true}});
    }
  }

  // The rows of the next pass, and how many of them are of prompts.
  std::vector<RowRange> Build(RowBatch& batch, int64_t& num_prompt_rows) {
    std::vector<SequenceState> states;
    for (const Running& running : running_) states.push_back(running.state);
    batch.Clear();
    parts_ = ChooseRows(states, limits_);
    num_prompt_rows = 0;
    std::vector<RowRange> micro_batches;
    for (const auto& micro_batch : CutMicroBatches(parts_, limits_)) {
      const int64_t begin = batch.num_rows();
      for (const SequenceRows& part : micro_batch) {
        const Running& running = running_[part.sequence_idx];
        for (int64_t i = 0; i < part.num_rows; ++i) {
          batch.AddRow(0, part.first_pos + i, {}, running.id, limits_.window);
        }
        if (part.num_rows == running.state.num_pending) batch.logit_rows.push_back(batch.num_rows() - 1);
        if (running.state.in_prefill) num_prompt_rows += part.num_rows;
      }
      micro_batches.push_back({begin, batch.num_rows()});
    }
    return micro_batches;
  }

  // The pass is done; returns the tokens that it generated.
  int64_t Advance() {
    int64_t num_generated = 0;
    for (const SequenceRows& part : parts_) {
      Running& running = running_[part.sequence_idx];
      SequenceState& state = running.state;
      state.num_computed += part.num_rows;
      state.num_pending -= part.num_rows;
      state.in_prefill = state.num_computed < running.num_prompt;
      if (state.num_pending > 0) continue;
      ++num_generated;
      ++running.num_generated;
      state.num_pending = 1;
    }
    std::erase_if(running_, [&](const Running& running) {
      if (running.num_generated < workload_.new_tokens) return false;
      free_pages_ += running.num_pages;
      return true;
    });
    return num_generated;
  }

 private:
  struct Running {
    uint32_t id = 0;
    int64_t num_prompt = 0;
    int64_t num_pages = 0;
    int64_t num_generated = 0;
    SequenceState state = {};
  };

  const Workload& workload_;
  const ChosenPolicy& policy_;
  const PassLimits limits_;
  const int64_t num_requests_;
  int64_t num_admitted_ = 0;
  int64_t free_pages_;
  std::vector<Running> running_;
  std::vector<SequenceRows> parts_;  // of the pass that was built
};

}  // namespace

absl::StatusOr<std::vector<double>> SimulateTrace(const SimulationInputs& inputs, const Hardware& hardware,
                                                  const std::string& trace_path) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PassSimulator> simulator, MakeSimulator(inputs, hardware));
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
    std::vector<RowRange> micro_batches = BuildPass(*trace, LimitsOf(inputs.plan.policy), batch);
    seconds.back() = simulator->Run(batch, std::move(micro_batches), *trace);
  }
}

absl::StatusOr<SimulatedRun> SimulateWorkload(const SimulationInputs& inputs, const Hardware& hardware,
                                              const Workload& workload, const RoutingSpec& routing) {
  const ModelConfig& config = inputs.config;
  const ChosenPolicy& policy = inputs.plan.policy;
  if (workload.max_positions() > policy.plan.context_length) {
    return ResourceError("the workload's longest request has {} tokens, and the context length is {}",
                         workload.max_positions(), policy.plan.context_length);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<PassSimulator> simulator, MakeSimulator(inputs, hardware));
  GeneratedRouting choices(std::max<int64_t>(1, config.num_experts), std::max<int64_t>(1, config.num_topk),
                           routing.skew, routing.seed);
  SimulatedBatch requests(workload, policy, NumKvPages(policy.plan, config, inputs.plan.model_formats.kv));
  SimulatedRun run{.num_requests = requests.num_requests()};
  RowBatch batch;
  while (!requests.idle()) {
    requests.Admit();
    int64_t num_prompt_rows = 0;
    std::vector<RowRange> micro_batches = requests.Build(batch, num_prompt_rows);
    run.step_s.push_back(simulator->Run(batch, std::move(micro_batches), choices));
    choices.NextStep();
    const double prompt_share = static_cast<double>(num_prompt_rows) / static_cast<double>(batch.num_rows());
    run.prompt_tokens += num_prompt_rows;
    run.prefill_s += run.step_s.back() * prompt_share;
    run.decode_s += run.step_s.back() * (1 - prompt_share);
    run.generated_tokens += requests.Advance();
  }
  run.lanes = simulator->Usage();
  if (config.num_moe_layers() > 0) {
    run.expert_hits = simulator->counters().hits;
    run.expert_misses = simulator->counters().misses;
  }
  return run;
}

}  // namespace penstock
