#include "penstock/measure/named_experts.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/routing/trace_routing.h"
#include "penstock/schedule/schedule.h"

namespace penstock {
namespace {

constexpr uint64_t kStatesBytes = 8 << 20;  // of the sequences that a network follows here

struct Studied {
  NamedExperts named;
  std::unique_ptr<ExpertPredictor> predictor;
};

// Counts the chosen experts that are among the likeliest, of which as many count as were chosen.
void CountAmongLikeliest(std::span<const float> expected, std::span<const int32_t> chosen, NamedExperts::Count& count) {
  std::vector<int32_t> likeliest(expected.size());
  std::iota(likeliest.begin(), likeliest.end(), 0);
  std::stable_sort(likeliest.begin(), likeliest.end(), [&](int32_t a, int32_t b) { return expected[a] > expected[b]; });
  likeliest.resize(chosen.size());
  for (const int32_t expert_idx : chosen) {
    const bool is_named =
        expected[expert_idx] > 0 && std::find(likeliest.begin(), likeliest.end(), expert_idx) != likeliest.end();
    count.num_named += is_named ? 1 : 0;
  }
  count.num_chosen += std::ssize(chosen);
}

// Returns the experts that the rows of the trace's step chose in a layer, each once.
std::vector<int32_t> DistinctChoices(TraceRouting& trace, int64_t layer_idx) {
  const std::span<const int32_t> choices = trace.Choices(layer_idx, 0, std::ssize(trace.positions()));
  std::vector<int32_t> distinct(choices.begin(), choices.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  return distinct;
}

bool HasOneRowOfEach(std::span<const uint32_t> sequence_ids) {
  std::vector<uint32_t> sorted(sequence_ids.begin(), sequence_ids.end());
  std::sort(sorted.begin(), sorted.end());
  return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

// Replays the step that the trace is at.
void ReplayStep(TraceRouting& trace, const std::vector<int64_t>& layers, Studied& studied) {
  ExpertPredictor& predictor = *studied.predictor;
  const bool counts = HasOneRowOfEach(trace.sequence_ids());
  const auto num_rows = std::ssize(trace.positions());
  if (!trace.token_ids().empty()) {
    const std::vector<int64_t> positions(trace.positions().begin(), trace.positions().end());
    predictor.BeginPass({.sequence_ids = trace.sequence_ids(), .positions = positions, .token_ids = trace.token_ids()});
  }
  for (size_t place = 0; counts && place < studied.named.before_step.size(); ++place) {
    const std::span<const float> expected = predictor.ExpectedRows(static_cast<int64_t>(place) + 1);
    if (expected.empty()) continue;
    CountAmongLikeliest(expected, DistinctChoices(trace, layers[place]), studied.named.before_step[place]);
  }
  for (size_t place = 0; place < layers.size(); ++place) {
    const int64_t layer_idx = layers[place];
    predictor.Observe({.layer_idx = layer_idx,
                       .sequence_ids = trace.sequence_ids(),
                       .choices = trace.Choices(layer_idx, 0, num_rows),
                       .scores = trace.Scores(layer_idx, 0, num_rows),
                       .routing = &trace});
    const int64_t distance = std::min(predictor.distance(), kMaxAhead);
    for (int64_t ahead = 1; counts && ahead <= distance && place + static_cast<size_t>(ahead) < layers.size();
         ++ahead) {
      const std::span<const float> expected = predictor.ExpectedRows(ahead);
      if (expected.empty()) continue;
      CountAmongLikeliest(expected, DistinctChoices(trace, layers[place + static_cast<size_t>(ahead)]),
                          studied.named.ahead[ahead - 1]);
    }
  }
}

}  // namespace

NamedExperts::Count NamedExperts::all_before_step() const {
  Count all;
  for (const Count& count : before_step) {
    all.num_named += count.num_named;
    all.num_chosen += count.num_chosen;
  }
  return all;
}

absl::StatusOr<std::vector<NamedExperts>> CountNamedExperts(const std::string& trace_path, const ModelConfig& config,
                                                            const std::shared_ptr<const SidaNetwork>& network) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<TraceRouting> trace, TraceRouting::Open(trace_path, config));
  const std::vector<int64_t> layers = config.moe_layers();
  std::vector<Studied> all;
  for (const PredictorTraits& traits : Predictors()) {
    if (traits.is_simulated_only || (traits.needs_network && network == nullptr)) continue;
    Studied studied;
    studied.named.predictor = traits.name;
    if (traits.needs_network) studied.named.before_step.resize(layers.size());
    studied.predictor = traits.make({.layers = layers,
                                     .num_experts = config.num_experts,
                                     .num_topk = config.num_topk,
                                     .max_paths = MaxCorrelationPaths(config, 1),
                                     .max_bytes = traits.needs_network ? kStatesBytes : ScheduleBytes(config, 1),
                                     .network = network});
    if (studied.predictor != nullptr) all.push_back(std::move(studied));
  }
  for (;;) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, trace->NextStep());
    if (!found) break;
    for (Studied& studied : all) ReplayStep(*trace, layers, studied);
  }
  std::vector<NamedExperts> named;
  for (Studied& studied : all) named.push_back(std::move(studied.named));
  return named;
}

std::string NamedExpertsTable(const std::vector<NamedExperts>& predictors) {
  const auto percent = [](const NamedExperts::Count& count) {
    return count.num_chosen > 0 ? fmt::format("{:.1f}%", 100 * count.share()) : std::string();
  };
  std::string lines, of_layers;
  for (const NamedExperts& named : predictors) {
    if (named.ahead[0].num_chosen == 0 && named.all_before_step().num_chosen == 0) continue;
    lines += fmt::format("{:<13}{:>16}{:>10}{:>10}{:>10}\n", named.predictor, percent(named.all_before_step()),
                         percent(named.ahead[0]), percent(named.ahead[1]), percent(named.ahead[2]));
    if (named.before_step.empty()) continue;
    of_layers += fmt::format("{} before the step, layer by layer:", named.predictor);
    for (const NamedExperts::Count& count : named.before_step) of_layers += " " + percent(count);
    of_layers += "\n";
  }
  if (lines.empty()) return "";
  return fmt::format("named of the experts that tokens choose while they decode\n{:<13}{:>16}{:>10}{:>10}{:>10}\n",
                     "predictor", "before the step", "1 ahead", "2 ahead", "3 ahead") +
         lines + of_layers;
}

}  // namespace penstock
