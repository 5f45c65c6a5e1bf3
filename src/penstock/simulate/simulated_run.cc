#include "penstock/simulate/simulated_run.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/routing/trace_routing.h"
#include "penstock/schedule/pass_rows.h"
#include "penstock/simulate/hardware_rates.h"
#include "penstock/simulate/simulated_batch.h"

namespace penstock {
namespace {

constexpr int64_t kMaxSteps = 100'000'000;

// Makes a pass of the recorded rows as the engine does. Returns its micro-batches. Every sequence gets logits, so a
// chunk from the middle of a prompt takes a little longer than in the recorded run.
std::vector<RowRange> BuildPass(TraceRouting& trace, const PassLimits& limits, RowBatch& batch) {
  std::vector<SequenceRows> parts;
  std::vector<size_t> first_rows;  // [parts.size()]: first row of each part in the trace
  const std::span<const uint32_t> ids = trace.sequence_ids(), positions = trace.positions();
  const std::span<const TokenId> tokens = trace.token_ids();
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
        batch.AddRow(tokens.empty() ? 0 : tokens[row], positions[row], {}, ids[row], limits.window);
      }
      batch.logit_rows.push_back(batch.num_rows() - 1);
    }
    micro_batches.push_back({begin, batch.num_rows()});
  }
  trace.Reorder(order);
  return micro_batches;
}

// One rank of a simulated run: its share of the requests.
struct SimulatedRank {
  SimulatedRank(const SimulationInputs& inputs, const Workload& own, int rank, DrawnChoices* drawn)
      : workload(own),
        choices(std::max<int64_t>(1, inputs.config.num_experts), std::max<int64_t>(1, inputs.config.num_topk),
                OfRank(own.routing, rank), inputs.config.moe_layers(), drawn),
        requests(workload, inputs.plan.policy, NumKvPages(inputs.plan.policy.plan),
                 RecurrentState::NumPages(inputs.config, inputs.plan.policy.plan.kv_page_bytes),
                 inputs.config.encoder.is_on()) {}

  static RoutingSpec OfRank(RoutingSpec routing, int rank) {
    constexpr int64_t kRowsOfRank = 1 << 24;
    routing.first_row = rank * kRowsOfRank;
    return routing;
  }

  Workload workload;
  GeneratedRouting choices;
  SimulatedBatch requests;
  RowBatch batch;
};

// Returns the requests of a rank. The first ranks have the most.
int64_t RequestsOf(int64_t rank, int64_t num_ranks, int64_t total) {
  return (total + num_ranks - 1 - rank) / num_ranks;
}

// Adds empty micro-batches, so that all ranks have equally many.
void FillUp(std::vector<RankPass>& passes) {
  size_t max = 0;
  for (const RankPass& pass : passes) max = std::max(max, pass.micro_batches.size());
  for (RankPass& pass : passes) {
    const int64_t end = pass.batch.num_rows();
    pass.micro_batches.resize(max, {end, end});
  }
}

}  // namespace

void RunTotals::Add(const StepSize& size, double seconds) {
  const double prompt_share =
      static_cast<double>(size.num_prompt_rows) / static_cast<double>(size.num_prompt_rows + size.num_decoding);
  prompt_tokens += size.num_prompt_rows;
  computed_prompt_tokens += size.num_prompt_rows;
  prefill_s += seconds * prompt_share;
  decode_s += seconds * (1 - prompt_share);
}

absl::StatusOr<SimulatedTrace> SimulateTrace(const SimulationInputs& inputs, const Hardware& hardware,
                                             const std::string& trace_path) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<SimulatedRanks> simulator, MakeSimulator(inputs, hardware));
  if (simulator->num_ranks() > 1) return UsageError("a recorded run is one rank's: simulate it on one rank");
  if (inputs.config.encoder.is_on()) {
    return UsageError("a recorded run of an encoder-decoder model cannot be simulated, so far: give a workload");
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<TraceRouting> trace, TraceRouting::Open(trace_path, inputs.config));
  PENSTOCK_RETURN_IF_ERROR(CheckReplays(inputs.plan.policy.schedule, trace->header(), trace_path));
  SimulatedTrace run;
  std::vector<double>& seconds = run.step_s;
  RowBatch batch;
  for (;;) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, trace->NextStep());
    if (!found) break;
    if (trace->step_idx() >= kMaxSteps) {
      return InputError("{}: step {} is beyond the {} that can be simulated", Printable(trace_path), trace->step_idx(),
                        kMaxSteps);
    }
    seconds.resize(static_cast<size_t>(trace->step_idx()) + 1);
    std::vector<RowRange> micro_batches = BuildPass(*trace, inputs.plan.policy.pass_limits(), batch);
    std::vector<RankPass> passes;
    passes.push_back({batch, std::move(micro_batches), *trace});
    seconds.back() = simulator->Run(std::move(passes));
  }
  if (inputs.config.num_moe_layers() > 0) run.experts = simulator->counters();
  return run;
}

absl::Status CheckFits(const Workload& workload, const MemoryPlan& plan) {
  if (workload.max_positions() <= plan.context_length) return absl::OkStatus();
  return ResourceError("the workload's longest request has {} tokens, and the context length is {}",
                       workload.max_positions(), plan.context_length);
}

absl::StatusOr<SimulatedRun> SimulateWorkload(const SimulationInputs& inputs, const Hardware& hardware,
                                              const Workload& workload, DrawnChoices* drawn) {
  const ModelConfig& config = inputs.config;
  const ChosenPolicy& policy = inputs.plan.policy;
  PENSTOCK_RETURN_IF_ERROR(CheckFits(workload, policy.plan));
  PENSTOCK_RETURN_IF_ERROR(CheckNeedsNoTokens(policy.schedule));
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<SimulatedRanks> simulator, MakeSimulator(inputs, hardware));
  std::deque<SimulatedRank> ranks;
  for (int rank = 0; rank < simulator->num_ranks(); ++rank) {
    Workload own = workload;
    own.num_requests = RequestsOf(rank, simulator->num_ranks(), workload.num_requests);
    if (own.num_requests == 0 && workload.num_requests > 0) break;  // fewer requests than ranks
    ranks.emplace_back(inputs, own, rank, drawn);
  }
  SimulatedRun run;
  for (const SimulatedRank& rank : ranks) run.num_requests += rank.requests.num_requests();
  RowBatch empty;
  GeneratedRouting nothing(1, 1, {});
  while (std::ranges::any_of(ranks, [](const SimulatedRank& rank) { return !rank.requests.idle(); })) {
    std::vector<RankPass> passes;
    StepSize size;
    for (SimulatedRank& rank : ranks) {
      rank.requests.Admit();
      const StepSize own = rank.requests.ChooseRows();
      size.num_decoding += own.num_decoding;
      size.num_prompt_rows += own.num_prompt_rows;
      std::vector<RowRange> micro_batches = rank.requests.Fill(rank.batch);
      passes.push_back({rank.batch, std::move(micro_batches), rank.choices});
    }
    while (std::ssize(passes) < simulator->num_ranks()) passes.push_back({empty, {}, nothing});
    FillUp(passes);
    const double first_use_s = run.step_s.empty() ? FirstUseSeconds(hardware, inputs.plan) : 0;
    run.step_s.push_back(first_use_s + simulator->Run(std::move(passes)));
    run.Add(size, run.step_s.back());
    for (SimulatedRank& rank : ranks) {
      rank.choices.NextStep();
      run.generated_tokens += rank.requests.Advance();
    }
  }
  for (const SimulatedRank& rank : ranks) run.prompt_tokens += rank.requests.num_skipped_tokens();
  run.lanes = simulator->Usage();
  if (config.num_moe_layers() > 0) {
    run.expert_hits = simulator->counters().hits;
    run.expert_misses = simulator->counters().misses;
  }
  return run;
}

}  // namespace penstock
