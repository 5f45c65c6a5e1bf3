#include "penstock/simulate/run_estimate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "absl/functional/function_ref.h"
#include "penstock/base/check.h"
#include "penstock/simulate/hardware_rates.h"
#include "penstock/simulate/rank_view.h"

namespace penstock {
namespace {

// Minimum number of simulated layers; times are scaled up to all layers. With fewer, the pinned share of the experts
// cannot be kept, and the experts fetched ahead at the end of a pass weigh too much.
constexpr int64_t kMinLayers = 4;
constexpr int64_t kManyExperts = 1024;
// Maximum number of full batches that are simulated. The beginning and a stretch of the middle represent a longer job.
constexpr int64_t kMaxBatches = 3;

// Returns the minimum number of layers to simulate because of one tier. A step streams `share` of the experts that are
// not pinned. These must outnumber the tier's streaming slots. With fewer layers, a pass would still find experts in
// these slots that a pass over all layers would have replaced.
int64_t LayersFor(int64_t num_slots, int64_t num_pinned, double share, const MemoryPlan& plan, int64_t num_layers) {
  const double num_streamed = share * static_cast<double>(plan.num_experts_total - num_pinned);
  if (num_slots >= plan.num_experts_total || num_streamed == 0) return kMinLayers;
  const double layers = 1.5 * static_cast<double>((num_slots - num_pinned) * num_layers) / num_streamed;
  return static_cast<int64_t>(std::ceil(std::min(layers, static_cast<double>(num_layers))));
}

// Returns the share of a layer's experts that one row does not choose.
double UnusedByRow(const ModelConfig& config) {
  return 1 - static_cast<double>(config.num_topk) / static_cast<double>(std::max<int64_t>(1, config.num_experts));
}

int64_t NumSimulatedLayers(const SimulationInputs& inputs, int64_t num_places) {
  const ChosenPolicy& policy = inputs.plan.policy;
  const MemoryPlan& plan = policy.plan;
  const int64_t num_layers = inputs.config.num_layers;
  if (inputs.config.encoder.is_on()) return num_layers;  // of two kinds
  // A cache of recently used experts keeps the same share of any number of layers. The exception is a cache that holds
  // nearly all that a step uses: a few experts decide whether it hits everything or nothing. Its simulation needs many
  // experts.
  const bool is_cache = policy.eviction != Eviction::kStatic;
  const int64_t num_slots = policy.device.has_value() ? plan.device.num_expert_slots : plan.num_expert_slots;
  int64_t min = is_cache && 2 * num_slots > plan.num_experts_total && num_slots < plan.num_experts_total
                    ? kManyExperts / std::max<int64_t>(1, inputs.config.num_experts)
                    : kMinLayers;
  min = std::max(min, kMinLayers);
  // The share of a layer's experts that the whole batch chooses.
  const double share = TraitsOf(policy.schedule.kind).is_layer_by_layer
                           ? 1
                           : 1 - std::pow(UnusedByRow(inputs.config), static_cast<double>(num_places));
  if (policy.device.has_value() || !is_cache) {
    min = std::max(min, LayersFor(plan.num_expert_slots, plan.num_pinned_experts, share, plan, num_layers));
  }
  if (policy.device.has_value() && !is_cache) {
    min =
        std::max(min, LayersFor(plan.device.num_expert_slots, plan.device.num_pinned_experts, share, plan, num_layers));
  }
  return std::min(min, num_layers);
}

}  // namespace

struct RunEstimator::Impl {
  struct Step {
    double seconds = 0;
    std::vector<LaneUsage> lanes;
  };

  Impl(const SimulationInputs& simulation_inputs, const Workload& of_workload, RepeatedRouting& routing, Layers layers)
      : inputs(simulation_inputs),
        num_ranks(simulation_inputs.plan.policy.plan.num_ranks),
        total_requests(of_workload.num_requests),
        workload(OfRank(of_workload, num_ranks)),
        limits(inputs.plan.policy.pass_limits()),
        fewer(FewerLayers(inputs.config, layers == Layers::kAll
                                             ? inputs.config.num_layers
                                             : NumSimulatedLayers(inputs, NumPlaces(inputs, workload)))),
        scale(static_cast<double>(inputs.config.num_layers) / static_cast<double>(fewer.num_layers)),
        num_places(NumPlaces(inputs, workload)),
        unused_by_row(UnusedByRow(inputs.config)),
        takes_all(TraitsOf(inputs.plan.policy.schedule.kind).is_layer_by_layer || unused_by_row <= 0 ||
                  inputs.config.num_experts == 0),
        choices(routing) {
    for (int rank = 0; rank < num_ranks; ++rank)
      views.emplace_back(routing, views_mutex, rank, inputs.config.num_layers);
  }

  // Returns the workload of the rank with the most requests.
  static Workload OfRank(Workload workload, int num_ranks) {
    workload.num_requests = (workload.num_requests + num_ranks - 1) / num_ranks;
    return workload;
  }

  // Returns the seconds of a step. Simulates steps that only decode, and steps with as many prompt rows as there is
  // room for. Interpolates all others between these two. There, prompt rows count as decoding rows until `num_places`
  // is reached.
  double Seconds(const StepSize& size) {
    const int64_t num_rows = size.num_decoding + size.num_prompt_rows;
    if (inputs.config.encoder.is_on() && size.num_prompt_rows > 0) return EncodeSeconds(size.num_prompt_rows);
    const auto decode_s = [this](int64_t n) { return At({n, 0}).seconds; };
    if (num_rows <= num_places || size.num_prompt_rows == 0) {
      return Between(std::min(num_rows, num_places), num_places, decode_s);
    }
    const double min_s = decode_s(num_places);
    // At most this many sequences decode in a step with a full chunk, because the chunk's prompts need places, too.
    const int64_t num_prompts = (FullChunk(0) + workload.own_prompt_tokens() - 1) / workload.own_prompt_tokens();
    const int64_t max = std::max<int64_t>(1, num_places - num_prompts);
    const int64_t num_decoding = std::min(size.num_decoding, max);
    const int64_t full_rows = num_decoding + FullChunk(num_decoding);
    if (full_rows <= num_places) return min_s;
    const auto full_s = [this](int64_t n) { return At({n, FullChunk(n)}).seconds; };
    const double max_s = num_decoding == 0 ? full_s(0) : Between(num_decoding, max, full_s);
    return min_s +
           (max_s - min_s) * static_cast<double>(num_rows - num_places) / static_cast<double>(full_rows - num_places);
  }

  // Returns the seconds of a step in which an encoder reads so many rows, between one prompt and as many as there is
  // room for.
  double EncodeSeconds(int64_t num_rows) {
    const int64_t full = FullChunk(0), one = std::min(full, workload.own_prompt_tokens());
    const double one_s = At({0, one}).seconds;
    if (full == one) return one_s * static_cast<double>(num_rows) / static_cast<double>(one);
    const double per_row_s = (At({0, full}).seconds - one_s) / static_cast<double>(full - one);
    return one_s + per_row_s * static_cast<double>(num_rows - one);
  }

  // Interpolates `at`, which returns the seconds for a number of sequences, between 1 and `max`. Unless the schedule
  // takes all experts, fewer sequences choose fewer experts. So it also evaluates `at` where nearly all are chosen, and
  // at max / 8. Up to the first of these, seconds grow with the chosen experts; from there on with the sequences.
  double Between(int64_t num_decoding, int64_t max, absl::FunctionRef<double(int64_t)> at) {
    std::vector<int64_t> knots = {1, max};
    int64_t saturated = 1;
    if (!takes_all) {
      constexpr double kNearlyAll = 0.05;  // are left
      saturated = std::clamp<int64_t>(std::llround(std::log(kNearlyAll) / std::log(unused_by_row)), 1, max);
      knots = {1, saturated, std::max<int64_t>(1, max / 8), max};
      std::ranges::sort(knots);
    }
    const int64_t n = std::clamp<int64_t>(num_decoding, 1, max);
    const auto above = std::ranges::lower_bound(knots, n);
    const int64_t high = *above, low = n == high ? high : *std::prev(above);
    if (low == high) return at(high);
    const auto place = [&](int64_t i) {
      const auto count = static_cast<double>(i);
      return high <= saturated ? 1 - std::pow(unused_by_row, count) : count;
    };
    const double low_s = at(low);
    return low_s + (at(high) - low_s) * (place(n) - place(low)) / (place(high) - place(low));
  }

  // Returns the maximum number of prompt rows in a step in which `num_decoding` sequences decode. Prompts need places
  // of the batch, too.
  int64_t FullChunk(int64_t num_decoding) const {
    return std::min(limits.max_rows - num_decoding, (num_places - num_decoding) * workload.own_prompt_tokens());
  }

  const Step& At(const StepSize& size) {
    const auto key = std::pair(size.num_decoding, size.num_prompt_rows);
    if (const auto found = steps.find(key); found != steps.end()) return found->second;
    const int64_t num_rows = size.num_decoding + size.num_prompt_rows;
    // A pass begins with the experts that the pass before it fetched ahead, so a step of the same size must precede.
    if (size != last_size) Run(size);
    // Small steps choose few experts, so their time is an average over several steps.
    const int64_t num_chosen = num_rows * fewer.num_layers;
    const auto num_runs = takes_all ? 1 : static_cast<int>(std::clamp<int64_t>(128 / num_chosen, 1, 16));
    simulator->ResetUsage();
    Step step;
    for (int i = 0; i < num_runs; ++i) step.seconds += Run(size) / num_runs;
    step.lanes = simulator->Usage();
    for (LaneUsage& lane : step.lanes) lane.busy_s = std::min(step.seconds, lane.busy_s * scale / num_runs);
    return steps.emplace(key, std::move(step)).first->second;
  }

  // Simulates a pass. Returns the seconds that it would take with all layers.
  double Run(const StepSize& size) {
    last_size = size;
    std::vector<SequenceRows> parts;
    const int64_t pos = workload.prompt_tokens + workload.new_tokens / 2;
    for (int64_t i = 0; i < size.num_decoding; ++i) parts.push_back({parts.size(), pos, 1});
    for (int64_t left = size.num_prompt_rows; left > 0; left -= parts.back().num_rows) {
      // A chunk lies in the middle of its prompt, so that it sees as many positions as all chunks do on average.
      const int64_t num_own = workload.own_prompt_tokens(), num_rows = std::min(left, num_own);
      parts.push_back({parts.size(), workload.prompt_tokens - num_own + (num_own - num_rows) / 2, num_rows});
    }
    batch.Clear();
    batch.draws_tokens = workload.draws_tokens;
    std::vector<RowRange> micro_batches;
    for (const auto& micro_batch : CutMicroBatches(parts, limits)) {
      const int64_t begin = batch.num_rows();
      for (const SequenceRows& part : micro_batch) {
        for (int64_t i = 0; i < part.num_rows; ++i) {
          batch.AddRow(0, part.first_pos + i, {}, static_cast<uint32_t>(part.sequence_idx), limits.window,
                       size.num_decoding > 0 ? workload.prompt_tokens : part.num_rows);
        }
      }
      micro_batches.push_back({begin, batch.num_rows()});
    }
    batch.logit_rows.resize(parts.size());  // only the number of rows matters
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), int64_t{0});
    std::vector<RankPass> passes;  // all ranks take steps of this size
    if (num_ranks == 1) passes.push_back({batch, micro_batches, choices});
    for (int rank = 0; rank < num_ranks && num_ranks > 1; ++rank) passes.push_back({batch, micro_batches, views[rank]});
    const double layers_s = simulator->Run(passes);
    choices.NextStep();
    return (layers_s + simulator->RunLogits(std::move(passes))) * scale;
  }

  const SimulationInputs inputs;
  const int num_ranks;
  const int64_t total_requests;  // of all ranks; 0: one for each place
  const Workload workload;       // of one rank
  const PassLimits limits;
  const ModelConfig fewer;
  const double scale;  // number of all layers, divided by the layers of `fewer`
  const int64_t num_places;
  const double unused_by_row;
  const bool takes_all;  // the schedule takes all experts, whatever the rows choose
  RepeatedRouting& choices;
  std::mutex views_mutex;
  std::deque<RankView> views;  // [num_ranks]
  std::unique_ptr<SimulatedRanks> simulator;
  RowBatch batch;
  std::map<std::pair<int64_t, int64_t>, Step> steps;
  StepSize last_size;
  double cold_s = 0;
};

int64_t NumPlaces(const SimulationInputs& inputs, const Workload& workload) {
  const ChosenPolicy& policy = inputs.plan.policy;
  const int64_t num_pages = NumKvPages(policy.plan);
  const int64_t num_shared = policy.kv_window.on() ? 0 : workload.shared_tokens / KvCache::kPageTokens;
  const int64_t of_state = RecurrentState::NumPages(inputs.config, policy.plan.kv_page_bytes);
  const int64_t num_own = policy.kv_window.NumPages(workload.positions()) + of_state - num_shared;
  return std::clamp<int64_t>((num_pages - num_shared) / num_own, 1, policy.plan.batch_size);
}

RepeatedRouting::RepeatedRouting(const ModelConfig& config, const RoutingSpec& spec)
    : drawn_(std::max<int64_t>(1, config.num_experts), std::max<int64_t>(1, config.num_topk), spec,
             config.moe_layers()),
      num_topk_(config.num_topk),
      layers_(config.num_layers) {}

void RepeatedRouting::NextStep() { first_row_ = (first_row_ + 977) % kSteps; }

std::span<const int32_t> RepeatedRouting::Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) {
  PENSTOCK_CHECK(first_row + num_rows <= kMaxRows);
  std::vector<int32_t>& choices = layers_[layer_idx].choices;
  const int64_t begin = first_row_ + first_row, end = begin + num_rows, have = std::ssize(choices) / num_topk_;
  if (end > have) {
    // Draws at least 1024 rows at a time, and keeps them, because they may be asked for again.
    const std::span<const int32_t> more = drawn_.Choices(layer_idx, have, std::max<int64_t>(end - have, 1024));
    choices.insert(choices.end(), more.begin(), more.end());
  }
  return std::span(choices).subspan(begin * num_topk_, num_rows * num_topk_);
}

RunEstimator::RunEstimator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RunEstimator::RunEstimator(RunEstimator&&) noexcept = default;
RunEstimator::~RunEstimator() = default;

absl::StatusOr<RunEstimator> RunEstimator::Create(const SimulationInputs& inputs, const Hardware& hardware,
                                                  const Workload& workload, RepeatedRouting& routing, Layers layers) {
  PENSTOCK_RETURN_IF_ERROR(CheckFits(workload, inputs.plan.policy.plan));
  PENSTOCK_RETURN_IF_ERROR(CheckNeedsNoTokens(inputs.plan.policy.schedule));
  routing.Restart();
  auto impl = std::make_unique<Impl>(inputs, workload, routing, layers);
  PENSTOCK_ASSIGN_OR_RETURN(impl->simulator, MakeSimulator(inputs, hardware, impl->fewer));
  // The first step also fetches the pinned experts, and finds memory for them. cold_s is the extra time of that step.
  const StepSize first = {.num_prompt_rows = impl->FullChunk(0)};
  const double first_s = impl->Run(first);
  impl->cold_s = std::max(0.0, first_s - impl->At(first).seconds) + FirstUseSeconds(hardware, inputs.plan);
  return RunEstimator(std::move(impl));
}

double RunEstimator::QuickSecondsPerToken() {
  Impl& impl = *impl_;
  const double decode_s = impl.At({.num_decoding = impl.num_places}).seconds / static_cast<double>(impl.num_places);
  const int64_t full = impl.FullChunk(0);
  const double prompt_s = impl.At({.num_prompt_rows = full}).seconds / static_cast<double>(full);
  return decode_s + prompt_s * static_cast<double>(impl.workload.own_prompt_tokens()) /
                        static_cast<double>(impl.workload.new_tokens);
}

RunEstimate RunEstimator::Estimate() {
  Impl& impl = *impl_;
  const ChosenPolicy& policy = impl.inputs.plan.policy;
  Workload simulated = impl.workload;
  if (simulated.num_requests == 0) simulated.num_requests = impl.num_places;
  const int64_t num_requests = simulated.num_requests;  // of one rank
  simulated.num_requests = std::min(num_requests, kMaxBatches * impl.num_places);
  SimulatedBatch requests(simulated, policy, NumKvPages(policy.plan),
                          RecurrentState::NumPages(impl.inputs.config, policy.plan.kv_page_bytes),
                          impl.inputs.config.encoder.is_on());
  RunEstimate run;
  while (!requests.idle()) {
    requests.Admit();
    const StepSize size = requests.ChooseRows();
    run.Add(size, impl.Seconds(size));
    run.generated_tokens += requests.Advance();
  }
  run.prompt_tokens += requests.num_skipped_tokens();
  const double times = static_cast<double>(num_requests) / static_cast<double>(simulated.num_requests);
  run.num_requests = impl.total_requests > 0 ? impl.total_requests : num_requests * impl.num_ranks;
  const double tokens_times = static_cast<double>(run.num_requests) / static_cast<double>(simulated.num_requests);
  const Impl::Step& full = impl.At({.num_decoding = std::min(impl.num_places, num_requests)});
  run.prompt_tokens = std::llround(static_cast<double>(run.prompt_tokens) * tokens_times);
  run.computed_prompt_tokens = std::llround(static_cast<double>(run.computed_prompt_tokens) * tokens_times);
  run.generated_tokens = run.num_requests * impl.workload.new_tokens;
  run.prefill_s = run.prefill_s * times + impl.cold_s;
  run.decode_s *= times;
  run.decode_step_s = full.seconds;
  run.decode_lanes = full.lanes;
  return run;
}

}  // namespace penstock
