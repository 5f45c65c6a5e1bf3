#include "penstock/simulate/policy_search.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "penstock/base/choices.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/base/thread_pool.h"

namespace penstock {
namespace {

// Returns about how long it takes to simulate a whole run, in tasks.
double NumTasks(const MemoryPlan& plan, const Workload& workload, const ModelConfig& config) {
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / std::max<int64_t>(1, b); };
  const int64_t num_requests = workload.num_requests > 0 ? workload.num_requests : plan.batch_size;
  const int64_t num_steps = ceil_div(num_requests * workload.prompt_tokens, plan.prefill_chunk) +
                            ceil_div(num_requests, plan.batch_size) * workload.new_tokens;
  const int64_t num_micro_batches = plan.micro_batch_size > 0 ? ceil_div(plan.batch_size, plan.micro_batch_size) : 1;
  // To draw this many choices takes as long as a task.
  constexpr double kChoicesPerTask = 16;
  const auto num_choices = static_cast<double>(num_requests * workload.positions() * config.num_topk);
  const auto tasks_of_step = static_cast<double>(config.num_experts + 8 * num_micro_batches);
  return static_cast<double>(config.num_layers) *
         (static_cast<double>(num_steps) * tasks_of_step + num_choices / kChoicesPerTask);
}

constexpr double kShortTasks = 20'000;  // simulated in a few milliseconds
constexpr int64_t kFirstChunk = 512, kFirstMicroBatch = 32;

// Searches the choices that are left for one processor and schedule. It goes through the numbers in turn. It walks each
// one over its range, while the others keep their best values so far. The rounds end when no change helps any more. As
// the batch grows, time per token falls until something else limits it, and then rises slowly. So a walk starts at the
// promising end of a range and stops after some steps that did not help. When memory is short, a larger batch is tried
// with fewer prompt rows.
class ScheduleSearch {
 public:
  ScheduleSearch(const DescribedModel& model, const Hardware& hardware, const Workload& workload,
                 const EngineOptions& asked, EngineOptions start)
      : model_(model), hardware_(hardware), workload_(workload), asked_(asked), options_(std::move(start)) {}

  // Tries a policy like `near`. Without `near`, or if that cannot run, walks the batch size alone. Returns whether any
  // policy can run.
  bool Begin(const EngineOptions* near, RepeatedRouting& routing) {
    routing_ = &routing;
    if (near == nullptr || !Try(Like(*near))) WalkBatch();
    return best_.has_value();
  }
  // Searches all choices. REQUIRES: Begin() returned true.
  void Finish(RepeatedRouting& routing) {
    routing_ = &routing;
    if (is_short()) TryCoarseGrid();
    double before = 0;
    while (best_->estimate.generation_tokens_per_s() > 1.001 * before) {
      before = best_->estimate.generation_tokens_per_s();
      WalkChunk();
      if (options_.device != "cpu") {
        WalkMicroBatch();
        TryKvTier();
        TryPromptAttention();
      }
      TryAttentionParallel();
      WalkBatch();
      WalkTrade();
    }
  }
  // Tries the best choices of another schedule. If they improve on those found here, searches on from them.
  // REQUIRES: Begin() returned true.
  void TryLike(const EngineOptions& other, RepeatedRouting& routing) {
    routing_ = &routing;
    if (Try(Like(other))) Finish(routing);
  }
  // Returns whether the run is so short that each candidate is simulated whole.
  bool is_short() const { return NumTasks(best_->plan, workload_, model_.config()) < kShortTasks; }
  const PolicyChoice& best() const { return *best_; }
  const absl::Status& refusal() const { return refusal_; }

 private:
  EngineOptions Like(const EngineOptions& other) const {
    EngineOptions options = options_;
    if (asked_.batch_size == 0) options.batch_size = other.batch_size;
    if (asked_.prefill_chunk == 0) options.prefill_chunk = other.prefill_chunk;
    if (!asked_.policy.kv_tier.has_value()) options.policy.kv_tier = other.policy.kv_tier;
    if (!asked_.policy.attention_parallel.has_value()) {
      options.policy.attention_parallel = other.policy.attention_parallel;
    }
    if (!asked_.policy.prompt_attention.has_value() && TraitsOf(*options.policy.schedule).attends_on_host &&
        TraitsOf(*other.policy.schedule).attends_on_host) {
      options.policy.prompt_attention = other.policy.prompt_attention;
    }
    if (asked_.policy.micro_batch_size == 0 && options.device == other.device) {
      options.policy.micro_batch_size = other.policy.micro_batch_size;
    }
    LimitMicroBatch(options);
    return options;
  }

  // Marks a candidate as tried. Returns false if it had been tried before.
  bool IsNew(const EngineOptions& options, std::optional<KvTier> kv_tier) {
    return tried_
        .emplace(options.batch_size, options.prefill_chunk, options.policy.micro_batch_size, kv_tier,
                 options.policy.attention_parallel, options.policy.prompt_attention)
        .second;
  }

  // Tries these options. When memory has no room for their prompt rows, tries fewer rows. Returns whether the result is
  // better than all before.
  bool Try(EngineOptions options) {
    for (;; options.prefill_chunk /= 2) {
      if (!IsNew(options, options.policy.kv_tier)) return false;
      const absl::StatusOr<EnginePlan> plan = PlanOn(hardware_, options, model_, layouts_);
      if (plan.ok()) {
        layouts_ = plan->layouts;
      } else {
        refusal_ = plan.status();
      }
      if (plan.ok() && HasRoom(options, *plan)) {
        const KvTier kv_tier = plan->policy.plan.device.holds_kv_cache ? KvTier::kDevice : KvTier::kDram;
        if (!options.policy.kv_tier.has_value() && !IsNew(options, kv_tier)) return false;
        return TryPlan(options, *plan);
      }
      if (asked_.prefill_chunk > 0 || options.prefill_chunk <= kMinChunk) return false;
    }
  }

  // Returns whether the budgets leave the prompt rows as they are, and more than half of the batch. A batch cut to half
  // is a candidate of its own. A batch size that was asked for is always accepted.
  bool HasRoom(const EngineOptions& options, const EnginePlan& plan) const {
    const SimulationInputs inputs{.config = model_.config(), .plan = plan, .num_threads = options.threads};
    return plan.policy.plan.prefill_chunk >= options.prefill_chunk &&
           (2 * NumPlaces(inputs, workload_) > options.batch_size || options.batch_size == asked_.batch_size);
  }

  bool TryPlan(const EngineOptions& options, const EnginePlan& plan) {
    const MemoryPlan& memory = plan.policy.plan;
    const SimulationInputs inputs{.config = model_.config(), .plan = plan, .num_threads = options.threads};
    absl::StatusOr<RunEstimator> estimator = RunEstimator::Create(inputs, hardware_, workload_, *routing_);
    if (!estimator.ok()) {
      refusal_ = estimator.status();
      return false;
    }
    // A short job ends before it reaches a steady state, so it is simulated whole.
    const bool is_short = NumTasks(memory, workload_, model_.config()) < kShortTasks;
    const double quick_s = estimator->QuickSecondsPerToken();
    if (!is_short && best_.has_value() && quick_s > kHopeless * best_quick_s_) return false;
    RunEstimate estimate = estimator->Estimate();
    if (is_short) {
      const absl::StatusOr<SimulatedRun> whole = SimulateWorkload(inputs, hardware_, workload_);
      if (whole.ok()) static_cast<RunTotals&>(estimate) = *whole;
    }
    if (best_.has_value() && estimate.generation_tokens_per_s() <= best_->estimate.generation_tokens_per_s()) {
      return false;
    }
    best_ = {.options = options,
             .plan = memory,
             .num_places = NumPlaces(inputs, workload_),
             .estimate = std::move(estimate)};
    best_quick_s_ = quick_s;
    options_ = options;
    return true;
  }

  // Tries the values from `first` to `last` by factors of two. Stops after two steps in a row that were no better,
  // unless no policy can run yet or candidates are cheap (short jobs).
  template <typename Set>
  void Walk(int64_t first, int64_t last, bool upwards, Set set) {
    int num_worse = 0;
    for (int64_t value = first;;) {
      EngineOptions options = options_;
      set(options, value);
      num_worse = Try(options) ? 0 : num_worse + 1;
      if (value == last || (num_worse == 2 && best_.has_value() && !is_short())) return;
      value = upwards ? std::min(last, value * 2) : std::max(last, value / 2);
    }
  }

  void WalkBatch() {
    if (asked_.batch_size > 0) {
      if (!best_.has_value()) Try(options_);
      return;
    }
    const int64_t max = MaxBatch();
    const auto set = [this](EngineOptions& options, int64_t value) {
      options.batch_size = value;
      LimitMicroBatch(options);
    };
    // The first walk starts from a small batch, because larger ones take longer to simulate.
    const bool is_first = !best_.has_value();
    const int64_t first = is_first ? std::min(max, kFirstBatch) : options_.batch_size;
    if (is_first) Walk(first, max, /*upwards=*/true, set);
    if (!is_first && first < max) Walk(std::min(first * 2, max), max, /*upwards=*/true, set);
    if (first > 1 && (!best_.has_value() || options_.batch_size == first)) {
      Walk(first / 2, 1, /*upwards=*/false, set);
    }
    // The experts that a few sequences choose may fit into a cache that those of many sequences overflow.
    if (is_first && options_.policy.schedule == ScheduleKind::kOnDemand) {
      Walk(1, first, /*upwards=*/true, set);
    }
  }

  // Tries a coarse grid of choices, for short jobs, whose candidates are cheap. With small jobs on small machines,
  // walking one number after the other may end at a local optimum.
  void TryCoarseGrid() {
    const EngineOptions from = options_;
    const bool has_device = from.device != "cpu";
    const int64_t factor = has_device ? 4 : 2;  // finer without a device, which leaves fewer choices
    for (int64_t batch = 1; batch <= MaxBatch(); batch *= factor) {
      for (int64_t chunk = kMinChunk; chunk <= kFirstChunk; chunk *= factor) {
        for (const int64_t num_micro_batches : {1, 4}) {
          for (const std::optional<KvTier> kv_tier : {std::optional<KvTier>(), std::optional(KvTier::kDram)}) {
            if (!has_device && (num_micro_batches > 1 || kv_tier.has_value())) continue;
            EngineOptions options = from;
            if (asked_.batch_size == 0) options.batch_size = batch;
            if (asked_.prefill_chunk == 0) options.prefill_chunk = chunk;
            if (!asked_.policy.kv_tier.has_value()) options.policy.kv_tier = kv_tier;
            if (has_device && asked_.policy.micro_batch_size == 0) {
              options.policy.micro_batch_size = std::max<int64_t>(1, options.batch_size / num_micro_batches);
            }
            LimitMicroBatch(options);
            Try(options);
          }
        }
      }
    }
  }

  void WalkChunk() {
    if (asked_.prefill_chunk > 0) return;
    const int64_t first = options_.prefill_chunk;
    const auto set = [](EngineOptions& options, int64_t value) { options.prefill_chunk = value; };
    if (first < kMaxChunk) Walk(std::min(first * 2, kMaxChunk), kMaxChunk, /*upwards=*/true, set);
    if (options_.prefill_chunk == first && first > kMinChunk) {
      Walk(std::max(first / 2, kMinChunk), kMinChunk, /*upwards=*/false, set);
    }
  }

  // The batch, the micro-batch and the prompt rows share the memory that the experts leave. Tries smaller and larger
  // batches, each with inversely scaled prompt rows, and each with smaller micro-batches.
  void WalkTrade() {
    if (asked_.batch_size > 0) return;
    const EngineOptions from = options_;
    const auto scaled = [](int64_t value, double factor) {
      return std::max<int64_t>(1, std::llround(static_cast<double>(value) * factor));
    };
    for (const double batch : {0.25, 0.5, 2.0, 4.0}) {
      for (const bool trades_chunk : {true, false}) {
        EngineOptions options = from;
        options.batch_size = std::min(MaxBatch(), scaled(from.batch_size, batch));
        if (trades_chunk) {
          if (asked_.prefill_chunk > 0) continue;
          options.prefill_chunk = std::clamp(scaled(from.prefill_chunk, 1 / batch), kMinChunk, kMaxChunk);
        } else {
          if (asked_.policy.micro_batch_size > 0 || from.policy.micro_batch_size == 0) continue;
          options.policy.micro_batch_size = scaled(from.policy.micro_batch_size, batch < 1 ? batch : 1 / batch);
        }
        LimitMicroBatch(options);
        Try(options);
      }
    }
  }

  int64_t MaxBatch() const {
    return std::min(kMaxBatchSize, workload_.num_requests > 0 ? workload_.num_requests : kMaxBatchSize);
  }
  void LimitMicroBatch(EngineOptions& options) const {
    const int64_t asked = asked_.policy.micro_batch_size;
    options.policy.micro_batch_size = std::min(asked > 0 ? asked : options.policy.micro_batch_size, options.batch_size);
  }

  void WalkMicroBatch() {
    if (asked_.policy.micro_batch_size > 0) return;
    const int64_t first = options_.policy.micro_batch_size;
    const auto set = [](EngineOptions& options, int64_t value) { options.policy.micro_batch_size = value; };
    if (first < options_.batch_size) {
      Walk(std::min(first * 2, options_.batch_size), options_.batch_size, /*upwards=*/true, set);
    }
    if (options_.policy.micro_batch_size == first && first > 1) Walk(first / 2, 1, /*upwards=*/false, set);
  }

  // The tier of the KV cache decides how much memory is left on each side. So each tier is also tried with fewer rows
  // of prompts.
  void TryKvTier() {
    if (asked_.policy.kv_tier.has_value()) return;
    const EngineOptions from = options_;
    for (const KvTier tier : {KvTier::kDevice, KvTier::kDram}) {
      for (const int64_t divisor : {1, 4, 16}) {
        if (divisor > 1 && asked_.prefill_chunk > 0) break;
        EngineOptions options = from;
        options.policy.kv_tier = tier;
        options.prefill_chunk = std::max(std::min(kMinChunk, from.prefill_chunk), from.prefill_chunk / divisor);
        Try(options);
      }
    }
  }

  // Tries the other processor for prompts, under schedules that attend on the host. If the host attends to prompts,
  // too, the device needs no buffers for their KV entries, and holds more experts.
  void TryPromptAttention() {
    if (!TraitsOf(*options_.policy.schedule).attends_on_host || asked_.policy.prompt_attention.has_value()) return;
    EngineOptions options = options_;
    const bool is_on_host = options.policy.prompt_attention == PromptAttention::kHost;
    options.policy.prompt_attention = is_on_host ? PromptAttention::kDevice : PromptAttention::kHost;
    Try(options);
  }

  // Tries the other way to divide attention among ranks. It gives the same bits; cut experts do not, so they are never
  // chosen here. By heads, all ranks wait for each other twice more in a layer, and small predicted gains were not
  // measured.
  void TryAttentionParallel() {
    if (hardware_.num_ranks == 1 || asked_.policy.attention_parallel.has_value()) return;
    EngineOptions options = options_;
    const bool is_by_heads = options.policy.attention_parallel == AttentionParallel::kHeads;
    options.policy.attention_parallel = is_by_heads ? AttentionParallel::kSequences : AttentionParallel::kHeads;
    const std::tuple before(options_, *best_, best_quick_s_);
    if (!Try(options) || is_by_heads) return;
    constexpr double kWorthWaiting = 1.05;
    const double least = kWorthWaiting * std::get<1>(before).estimate.generation_tokens_per_s();
    if (best_->estimate.generation_tokens_per_s() < least) std::tie(options_, best_, best_quick_s_) = before;
  }

  static constexpr int64_t kMinChunk = 16, kMaxChunk = kMaxPrefillChunk, kFirstBatch = 64;
  static constexpr double kHopeless = 1.2;

  const DescribedModel& model_;
  const Hardware& hardware_;
  const Workload& workload_;
  const EngineOptions& asked_;
  RepeatedRouting* routing_ = nullptr;
  std::shared_ptr<const ExpertLayouts> layouts_;
  EngineOptions options_;  // the best so far
  std::optional<PolicyChoice> best_;
  double best_quick_s_ = 0;
  // Batch, chunk, micro-batch, KV tier, split of attention, processor for prompts.
  std::set<std::tuple<int64_t, int64_t, int64_t, std::optional<KvTier>, std::optional<AttentionParallel>,
                      std::optional<PromptAttention>>>
      tried_;
  absl::Status refusal_;
};

// A schedule is searched further only if its rate so far exceeds this share of the best rate of all schedules. Short
// jobs are always searched further.
constexpr double kWorthFinishing = 0.35;

// Sorts choices, the best first.
void SortByRate(std::span<PolicyChoice> choices) {
  std::stable_sort(choices.begin(), choices.end(), [](const PolicyChoice& a, const PolicyChoice& b) {
    return a.estimate.generation_tokens_per_s() > b.estimate.generation_tokens_per_s();
  });
}

// Simulates the choice's whole run. Runs that take longer than two seconds to simulate are estimated from steps over
// all layers instead.
void Check(PolicyChoice& choice, const DescribedModel& model, const Hardware& hardware, const Workload& workload,
           DrawnChoices& drawn, RepeatedRouting& routing) {
  constexpr double kMaxTasks = 2'000'000;
  const double num_tasks = NumTasks(choice.plan, workload, model.config());
  if (num_tasks < kShortTasks) return;  // it was simulated whole
  const absl::StatusOr<EnginePlan> plan = PlanOn(hardware, choice.options, model);
  if (!plan.ok()) return;
  const SimulationInputs inputs{.config = model.config(), .plan = *plan, .num_threads = choice.options.threads};
  if (num_tasks <= kMaxTasks) {
    const absl::StatusOr<SimulatedRun> whole = SimulateWorkload(inputs, hardware, workload, &drawn);
    if (whole.ok()) static_cast<RunTotals&>(choice.estimate) = *whole;
    return;
  }
  absl::StatusOr<RunEstimator> estimator =
      RunEstimator::Create(inputs, hardware, workload, routing, RunEstimator::Layers::kAll);
  if (estimator.ok()) choice.estimate = estimator->Estimate();
}

// Estimates may be off by more than the best choices differ: 17 % were seen for hybrid, which learns while it runs, and
// 28 % for klotski, whose slots keep more experts of a few layers than of all. So checks the choices near the best one,
// and puts them first, sorted anew. Returns the choices that can be compared with each other.
std::span<PolicyChoice> CheckBest(std::span<PolicyChoice> choices, const DescribedModel& model,
                                  const Hardware& hardware, const Workload& workload, DrawnChoices& drawn,
                                  std::span<RepeatedRouting> routings, ThreadPool& pool) {
  constexpr double kNear = 0.85;
  constexpr size_t kMaxChecked = 6;
  size_t num_checked = 0;
  // When the best one turns out to be slower, others come near it.
  for (;;) {
    const double least = kNear * choices.front().estimate.generation_tokens_per_s();
    size_t end = num_checked;
    while (end < std::min(kMaxChecked, choices.size()) && choices[end].estimate.generation_tokens_per_s() >= least) {
      ++end;
    }
    if (end == num_checked) return choices.first(num_checked);
    pool.ParallelFor(static_cast<int64_t>(end - num_checked), [&](int64_t i, int worker_idx) {
      Check(choices[num_checked + static_cast<size_t>(i)], model, hardware, workload, drawn, routings[worker_idx]);
    });
    num_checked = end;
    SortByRate(choices.first(num_checked));
  }
}

// Some schedules may be as fast as the best one, within the model's accuracy. The first of them in the table is the
// most usual one, and loses least if the run has a little less memory: moves it to the front.
void BreakTie(std::span<PolicyChoice> choices) {
  constexpr double kSame = 0.99;
  const double least = kSame * choices.front().estimate.generation_tokens_per_s();
  const auto is_slower = [least](const PolicyChoice& c) { return c.estimate.generation_tokens_per_s() < least; };
  const auto end = std::find_if(choices.begin(), choices.end(), is_slower);
  const auto first = std::min_element(choices.begin(), end, [](const PolicyChoice& a, const PolicyChoice& b) {
    return a.options.policy.schedule < b.options.policy.schedule;
  });
  std::rotate(choices.begin(), first, first + 1);
}

}  // namespace

absl::StatusOr<std::vector<PolicyChoice>> SearchPolicies(const DescribedModel& model, const Hardware& hardware,
                                                         const Workload& workload, const EngineOptions& asked,
                                                         const SearchHelp& help) {
  PENSTOCK_RETURN_IF_ERROR(OptionsFor(asked, hardware, workload).status());  // reports errors in the options themselves
  std::vector<ScheduleSearch> searches;
  for (const std::string device : {"gpu", "cpu"}) {
    if (asked.device != "auto" && asked.device != device) continue;
    if (device == "gpu" && hardware.FindTier("device") == nullptr) continue;
    for (const ScheduleTraits& schedule : Schedules()) {
      const bool is_wanted = !asked.policy.schedule.has_value() || asked.policy.schedule == schedule.value;
      if (!is_wanted || (schedule.attends_on_host && device == "cpu")) continue;
      EngineOptions start = asked;
      start.device = device;
      start.policy.schedule = schedule.value;
      if (device == "cpu") start.device_memory_bytes = 0;
      if (start.prefill_chunk == 0) start.prefill_chunk = kFirstChunk;
      if (device == "gpu" && start.policy.micro_batch_size == 0) start.policy.micro_batch_size = kFirstMicroBatch;
      PENSTOCK_ASSIGN_OR_RETURN(start, OptionsFor(std::move(start), hardware, workload));
      searches.emplace_back(model, hardware, workload, asked, std::move(start));
    }
  }
  if (searches.empty()) {
    return UsageError("there is no schedule '{}' for --device {}", ChoiceName(asked.policy.schedule, Schedules()),
                      Printable(asked.device));
  }
  // Each worker draws a routing of its own, and all draw the same choices.
  const int max_threads = help.num_threads > 0 ? help.num_threads : NumUsableCpus();
  ThreadPool pool(std::min(max_threads, static_cast<int>(searches.size())), ThreadPool::Pinned::kNo);
  std::vector<RepeatedRouting> routings(pool.num_workers(), RepeatedRouting(model.config(), workload.routing));
  std::vector<char> can_run(searches.size());
  pool.ParallelFor(std::ssize(searches), [&](int64_t i, int worker_idx) {
    const size_t idx = i;
    can_run[idx] = searches[idx].Begin(help.near, routings[worker_idx]);
  });
  double best = 0;
  for (size_t i = 0; i < searches.size(); ++i) {
    if (can_run[i]) best = std::max(best, searches[i].best().estimate.generation_tokens_per_s());
  }
  pool.ParallelFor(std::ssize(searches), [&](int64_t i, int worker_idx) {
    const size_t idx = i;
    if (!can_run[idx]) return;
    const bool is_near = searches[idx].best().estimate.generation_tokens_per_s() > kWorthFinishing * best;
    if (searches[idx].is_short() || is_near) searches[idx].Finish(routings[worker_idx]);
  });
  std::vector<PolicyChoice> choices;
  const auto collect = [&] {
    choices.clear();
    for (size_t i = 0; i < searches.size(); ++i) {
      if (can_run[i]) choices.push_back(searches[i].best());
    }
    SortByRate(choices);
  };
  collect();
  pool.ParallelFor(std::ssize(searches), [&](int64_t i, int worker_idx) {
    const size_t idx = i;
    if (!can_run[idx]) return;
    const double rate = searches[idx].best().estimate.generation_tokens_per_s();
    if (!searches[idx].is_short() && rate < kWorthFinishing * choices.front().estimate.generation_tokens_per_s())
      return;
    for (size_t rank = 0; rank < std::min<size_t>(3, choices.size()); ++rank) {
      searches[idx].TryLike(choices[rank].options, routings[worker_idx]);
    }
  });
  collect();
  if (choices.empty()) return searches.back().refusal();
  DrawnChoices drawn;
  BreakTie(CheckBest(choices, model, hardware, workload, help.drawn == nullptr ? drawn : *help.drawn, routings, pool));
  for (PolicyChoice& choice : choices) choice.options.policy.expert_slots = choice.plan.num_expert_slots;
  return choices;
}

}  // namespace penstock
