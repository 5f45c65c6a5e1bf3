#include "penstock/measure/routing_study.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "penstock/base/choices.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/measure/measurement_cache.h"
#include "penstock/plan/memory_plan.h"
#include "penstock/routing/trace_routing.h"

namespace penstock {
namespace {

constexpr char kRoutingKind[] = "routing";
constexpr uint64_t kPlentyBytes = uint64_t{1} << 50;
constexpr int kMaxPlans = 8;
constexpr size_t kMaxUses = 50'000'000;  // a few GiB, with what Belady's cache needs

json::object IdentityOf(const std::string& fingerprint, bool has_device) {
  return {{"model", fingerprint}, {"device", has_device}};
}

// Returns the kept winners whose eviction and predictor are still known.
std::vector<RoutingWinner> ReadWinners(const json::object& identity) {
  std::vector<RoutingWinner> winners;
  const std::optional<json::object> kept = ReadKept(kRoutingKind, identity);
  const json::value* list = kept.has_value() ? kept->if_contains("winners") : nullptr;
  if (list == nullptr || !list->is_array()) return winners;
  for (const json::value& entry : list->get_array()) {
    const json::object* fields = entry.if_object();
    if (fields == nullptr) continue;
    const json::value* share = fields->if_contains("share");
    const json::value* eviction = fields->if_contains("eviction");
    const json::value* predictor = fields->if_contains("predictor");
    if (share == nullptr || !share->is_double() || eviction == nullptr || !eviction->is_string() ||
        predictor == nullptr || !predictor->is_string()) {
      continue;
    }
    const EvictionTraits* known_eviction = FindChoice(eviction->get_string(), Evictions());
    const PredictorTraits* known_predictor = FindChoice(predictor->get_string(), Predictors());
    if (known_eviction == nullptr || known_predictor == nullptr) continue;
    winners.push_back({share->get_double(), known_eviction->value, known_predictor->value});
  }
  return winners;
}

template <typename T>
void SortAndUnite(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

void CountGuesses(TraceRouting& trace, const std::vector<int64_t>& moe_layers, size_t place, int64_t num_rows,
                  int64_t num_topk, TraceFacts& facts) {
  for (int64_t ahead = 1; ahead <= kMaxAhead; ++ahead) {
    const std::span<const int32_t> guessed = trace.ChoicesAhead(moe_layers[place], ahead, 0, num_rows);
    if (guessed.empty()) continue;
    const std::span<const int32_t> chosen = trace.Choices(moe_layers[place + static_cast<size_t>(ahead)], 0, num_rows);
    TraceFacts::Guesses& guesses = facts.gates[ahead - 1];
    for (size_t i = 0; i < chosen.size(); ++i) {
      const auto row = guessed.begin() + static_cast<int64_t>(i) / num_topk * num_topk;
      guesses.num_right += std::find(row, row + num_topk, chosen[i]) != row + num_topk ? 1 : 0;
    }
    guesses.num_chosen += std::ssize(chosen);
  }
}

}  // namespace

absl::StatusOr<TraceFacts> ReadTraceFacts(const std::string& trace_path, const ModelConfig& config,
                                          const ExpertLayouts& layouts) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<TraceRouting> trace, TraceRouting::Open(trace_path, config));
  const std::vector<int64_t> moe_layers = config.moe_layers();
  TraceFacts facts;
  facts.header = trace->header();
  for (;;) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, trace->NextStep());
    if (!found) return facts;
    const int64_t num_rows = std::ssize(trace->positions());
    ++facts.num_steps;
    facts.num_rows += num_rows;
    facts.max_rows = std::max(facts.max_rows, num_rows);
    std::vector<uint32_t> sequences(trace->sequence_ids().begin(), trace->sequence_ids().end());
    SortAndUnite(sequences);
    facts.max_sequences = std::max<int64_t>(facts.max_sequences, std::ssize(sequences));
    for (const uint32_t pos : trace->positions()) facts.max_positions = std::max<int64_t>(facts.max_positions, pos + 1);
    for (size_t place = 0; place < moe_layers.size(); ++place) {
      const int64_t layer_idx = moe_layers[place];
      const std::span<const int32_t> chosen = trace->Choices(layer_idx, 0, num_rows);
      std::vector<int32_t> distinct(chosen.begin(), chosen.end());
      SortAndUnite(distinct);
      for (const int32_t expert_idx : distinct) facts.wanted.push_back(layouts.KeyOf(layer_idx, expert_idx));
      if (facts.wanted.size() > kMaxUses) {
        return InputError("{}: experts are used more than {} times: record fewer steps", Printable(trace_path),
                          kMaxUses);
      }
      facts.has_scores |= !trace->Scores(layer_idx, 0, num_rows).empty();
      CountGuesses(*trace, moe_layers, place, num_rows, config.num_topk, facts);
    }
  }
}

absl::StatusOr<CorrelationTable> TableOfChoices(const std::string& trace_path, const ModelConfig& config) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<TraceRouting> trace, TraceRouting::Open(trace_path, config));
  CorrelationTable table(CorrelationShapeOf(config, 0), MaxCorrelationPaths(config, 0));
  for (;;) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, trace->NextStep());
    if (!found) return table;
    const int64_t num_rows = std::ssize(trace->positions());
    int64_t moe_layer = 0;
    for (const int64_t layer_idx : config.moe_layers()) {
      table.Update(moe_layer++, {.num_rows = num_rows, .choices = {}}, trace->Choices(layer_idx, 0, num_rows));
    }
  }
}

absl::StatusOr<EngineOptions> OptionsWithRoom(EngineOptions options, const EngineModel& model, double share) {
  if (options.batch_size == 0 || options.prefill_chunk == 0 || options.context_length == 0) {
    return UsageError("give --batch-size, --prefill-chunk and --context-length");
  }
  options.speculates = false;  // rows of guesses would count as choices
  // A guess of positions would give its pages to more experts.
  if (options.planned_positions == 0) options.planned_positions = kPlannedPositions;
  PENSTOCK_ASSIGN_OR_RETURN(EngineRoom room, RoomOf(options));
  const bool has_device = room.device.has_value();
  uint64_t& budget = has_device ? options.device_memory_bytes : room.budget_bytes;
  budget = kPlentyBytes;
  // A smaller budget may shrink the buffers beside the experts, so this plans a few times until the budget fits.
  for (int i = 0; i < kMaxPlans; ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const EnginePlan plan, PlanEngine(options, model, room));
    const MemoryPlan& memory = plan.policy.plan;
    const int64_t min = MinStreamingSlots(plan.policy.schedule.kind, model.config.num_stored_experts());
    const int64_t num_slots = std::clamp<int64_t>(std::llround(share * static_cast<double>(memory.num_experts_total)),
                                                  min, memory.num_experts_total);
    if (i > 0 && num_slots == (has_device ? memory.device.num_expert_slots : memory.num_expert_slots)) break;
    const DevicePlan& device = memory.device;
    const uint64_t beside = has_device
                                ? device.fixed_bytes + device.dense_bytes + device.kv_bytes + device.activation_bytes
                                : memory.fixed_bytes + memory.dense_bytes + memory.kv_bytes + memory.activation_bytes;
    budget = beside + static_cast<uint64_t>(num_slots) * plan.layouts->slot_bytes();
  }
  if (!has_device) options.memory_bytes = room.budget_bytes;
  return options;
}

void KeepWinners(const std::string& fingerprint, bool has_device, const std::vector<RoutingWinner>& winners) {
  const json::object identity = IdentityOf(fingerprint, has_device);
  std::vector<RoutingWinner> all = winners;
  for (const RoutingWinner& old : ReadWinners(identity)) {
    const auto same = [&](const RoutingWinner& winner) { return winner.share == old.share; };
    if (std::none_of(winners.begin(), winners.end(), same)) all.push_back(old);
  }
  json::array list;
  for (const RoutingWinner& winner : all) {
    list.push_back(json::object{{"share", winner.share},
                                {"eviction", TraitsOf(winner.eviction).name},
                                {"predictor", TraitsOf(winner.predictor).name}});
  }
  Keep(kRoutingKind, identity, {{"winners", std::move(list)}});
}

std::optional<RoutingWinner> FindWinner(const std::string& fingerprint, bool has_device, double share) {
  const std::vector<RoutingWinner> winners = ReadWinners(IdentityOf(fingerprint, has_device));
  if (winners.empty()) return std::nullopt;
  return *std::min_element(winners.begin(), winners.end(), [&](const RoutingWinner& a, const RoutingWinner& b) {
    return std::abs(a.share - share) < std::abs(b.share - share);
  });
}

}  // namespace penstock
