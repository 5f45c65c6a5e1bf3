#include "penstock/engine/auto_policy.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

// One processor and schedule: what is left to be chosen, one number after the other, each over its whole range with the
// others as they are best so far. Time per token falls with the batch until something else limits it and then rises
// slowly, so that a range is walked from its promising end and left after some steps that did not help.
class ScheduleSearch {
 public:
  ScheduleSearch(const DescribedModel& model, const Hardware& hardware, const Workload& workload,
                 const EngineOptions& asked, EngineOptions start, RepeatedRouting& routing)
      : model_(model),
        hardware_(hardware),
        workload_(workload),
        asked_(asked),
        routing_(routing),
        options_(std::move(start)) {}

  // The batch alone. Returns whether there is a policy that can run.
  bool Begin() {
    WalkBatch();
    // Where memory is short a plan for fewer rows of prompts may be possible.
    while (!best_.has_value() && asked_.prefill_chunk == 0 && options_.prefill_chunk > kLeastChunk) {
      options_.prefill_chunk /= 2;
      WalkBatch();
    }
    return best_.has_value();
  }
  // All else. REQUIRES: Begin() returned true.
  void Finish() {
    WalkChunk();
    if (options_.device == "cpu") return;
    WalkMicroBatch();
    TryKvTier();
    WalkBatch();
  }
  const PolicyChoice& best() const { return *best_; }
  const absl::Status& refusal() const { return refusal_; }

 private:
  // Whether these options are better than all before.
  bool Try(const EngineOptions& options) {
    const absl::StatusOr<EnginePlan> plan = PlanOn(hardware_, options, model_);
    if (!plan.ok()) {
      refusal_ = plan.status();
      return false;
    }
    // A batch that the budgets cut is another candidate.
    const MemoryPlan& memory = plan->policy.plan;
    const SimulationInputs inputs{.config = model_.config(), .plan = *plan, .num_threads = options.threads};
    if (memory.prefill_chunk < options.prefill_chunk) return false;
    if (NumPlaces(inputs, workload_) < options.batch_size && options.batch_size != asked_.batch_size) return false;
    absl::StatusOr<RunEstimator> estimator = RunEstimator::Create(inputs, hardware_, workload_, routing_);
    if (!estimator.ok()) {
      refusal_ = estimator.status();
      return false;
    }
    const double quick_s = estimator->QuickSecondsPerToken();
    if (best_.has_value() && quick_s > kHopeless * best_quick_s_) return false;
    RunEstimate estimate = estimator->Estimate();
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

  // Values from `first` on by factors of two, as long as one of the last two steps was better.
  template <typename Set>
  void Walk(int64_t first, int64_t last, bool upwards, Set set) {
    int num_worse = 0;
    for (int64_t value = first;;) {
      EngineOptions options = options_;
      set(options, value);
      num_worse = Try(options) ? 0 : num_worse + 1;
      if (value == last || (num_worse == 2 && best_.has_value())) return;
      value = upwards ? std::min(last, value * 2) : std::max(last, value / 2);
    }
  }

  void WalkBatch() {
    if (asked_.batch_size > 0) {
      if (!best_.has_value()) Try(options_);
      return;
    }
    const int64_t most = std::min(kMaxBatchSize, workload_.num_requests > 0 ? workload_.num_requests : kMaxBatchSize);
    const auto set = [this](EngineOptions& options, int64_t value) {
      const int64_t asked = asked_.policy.micro_batch_size;
      options.batch_size = value;
      options.policy.micro_batch_size = std::min(asked > 0 ? asked : options.policy.micro_batch_size, value);
    };
    // Larger batches take longer to be simulated.
    const bool is_first = !best_.has_value();
    const int64_t first = is_first ? std::min(most, kFirstBatch) : options_.batch_size;
    if (is_first) Walk(first, most, /*upwards=*/true, set);
    if (!is_first && first < most) Walk(std::min(first * 2, most), most, /*upwards=*/true, set);
    if (first > 1 && (!best_.has_value() || options_.batch_size == first)) {
      Walk(first / 2, 1, /*upwards=*/false, set);
    }
  }

  void WalkChunk() {
    if (asked_.prefill_chunk > 0) return;
    const int64_t first = options_.prefill_chunk;
    const auto set = [](EngineOptions& options, int64_t value) { options.prefill_chunk = value; };
    Walk(first * 2, kMostChunk, /*upwards=*/true, set);
    if (options_.prefill_chunk == first) Walk(first / 2, kLeastChunk, /*upwards=*/false, set);
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

  void TryKvTier() {
    if (asked_.policy.kv_tier != "auto") return;
    EngineOptions options = options_;
    options.policy.kv_tier = "device";
    Try(options);
  }

  static constexpr int64_t kLeastChunk = 16, kMostChunk = 8192, kFirstBatch = 64;
  static constexpr double kHopeless = 1.2;

  const DescribedModel& model_;
  const Hardware& hardware_;
  const Workload& workload_;
  const EngineOptions& asked_;
  RepeatedRouting& routing_;
  EngineOptions options_;  // the best so far
  std::optional<PolicyChoice> best_;
  double best_quick_s_ = 0;
  absl::Status refusal_;
};

constexpr int64_t kFirstChunk = 512, kFirstMicroBatch = 32;
// A schedule that is so much slower than the best one when only its batch has been chosen is left at that.
constexpr double kWorthFinishing = 0.35;

}  // namespace

absl::StatusOr<std::vector<PolicyChoice>> SearchPolicies(const DescribedModel& model, const Hardware& hardware,
                                                         const Workload& workload, const EngineOptions& asked) {
  std::vector<ScheduleSearch> searches;
  absl::Status refusal =
      UsageError("there is no schedule '{}' for --device {}", asked.policy.schedule, Printable(asked.device));
  RepeatedRouting routing(model.config());
  PENSTOCK_RETURN_IF_ERROR(OptionsFor(asked, hardware, workload).status());  // whatever is wrong with them
  for (const std::string device : {"gpu", "cpu"}) {
    if (asked.device != "auto" && asked.device != device) continue;
    if (device == "gpu" && hardware.FindTier("device") == nullptr) continue;
    for (const ScheduleKind kind : kAllSchedules) {
      const std::string schedule(ScheduleName(kind));
      if (asked.policy.schedule != "auto" && asked.policy.schedule != schedule) continue;
      if (AttendsOnHost(kind) && device == "cpu") continue;
      EngineOptions start = asked;
      start.device = device;
      start.policy.schedule = schedule;
      if (device == "cpu") start.device_memory_bytes = 0;
      if (start.prefill_chunk == 0) start.prefill_chunk = kFirstChunk;
      if (device == "gpu" && start.policy.micro_batch_size == 0) start.policy.micro_batch_size = kFirstMicroBatch;
      PENSTOCK_ASSIGN_OR_RETURN(start, OptionsFor(std::move(start), hardware, workload));
      ScheduleSearch search(model, hardware, workload, asked, std::move(start), routing);
      if (search.Begin()) {
        searches.push_back(std::move(search));
      } else {
        refusal = search.refusal();
      }
    }
  }
  if (searches.empty()) return refusal;
  double best = 0;
  for (const ScheduleSearch& search : searches) best = std::max(best, search.best().estimate.generation_tokens_per_s());
  std::vector<PolicyChoice> choices;
  for (ScheduleSearch& search : searches) {
    if (search.best().estimate.generation_tokens_per_s() > kWorthFinishing * best) search.Finish();
    choices.push_back(search.best());
  }
  std::stable_sort(choices.begin(), choices.end(), [](const PolicyChoice& a, const PolicyChoice& b) {
    return a.estimate.generation_tokens_per_s() > b.estimate.generation_tokens_per_s();
  });
  return choices;
}

}  // namespace penstock
