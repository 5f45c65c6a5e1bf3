#include "penstock/server/api/live.h"

#include <chrono>

namespace penstock::server {
namespace {

json::object BytesOf(const MemoryPlan& plan) {
  return {{"budget", plan.budget_bytes},          {"dense", plan.dense_bytes},    {"kv", plan.kv_bytes},
          {"activations", plan.activation_bytes}, {"experts", plan.expert_bytes}, {"fixed", plan.fixed_bytes}};
}

json::object BytesOf(const DevicePlan& plan) {
  return {{"name", plan.name},        {"budget", plan.budget_bytes},          {"dense", plan.dense_bytes},
          {"kv", plan.kv_bytes},      {"activations", plan.activation_bytes}, {"experts", plan.expert_bytes},
          {"fixed", plan.fixed_bytes}};
}

json::object ExpertsOf(const LiveView& view) {
  constexpr std::string_view kLetters = "dampg";
  std::string letters;
  for (const ExpertLocation location : view.locations) letters += kLetters[static_cast<size_t>(location)];
  return {{"layers", view.num_moe_layers},
          {"experts", view.num_experts},
          {"locations", letters},
          {"chosen", json::array(view.chosen.begin(), view.chosen.end())}};
}

}  // namespace

json::object LiveObject(const LiveView& view, const EngineSnapshot& engine, const MemoryPlan& plan) {
  const EngineStats& stats = engine.stats;
  json::array lanes, parts;
  for (const LaneStats& lane : stats.lanes) lanes.push_back({{"name", lane.name}, {"busy_s", lane.busy_s}});
  for (const PartSeconds& part : view.parts) {
    parts.push_back({{"lane", part.lane}, {"part", part.part}, {"seconds", part.seconds}});
  }
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  json::object live = {{"now_s", now},
                       {"running", engine.num_running},
                       {"waiting", engine.num_waiting},
                       {"places", plan.batch_size},
                       {"steps", engine.num_steps},
                       {"step_s", engine.step_s},
                       {"prompt_tokens", stats.prompt_tokens},
                       {"computed_prompt_tokens", stats.computed_prompt_tokens},
                       {"generated_tokens", stats.generated_tokens},
                       {"disk_bytes", stats.disk_bytes},
                       {"dram_to_device_bytes", stats.dram_to_device_bytes},
                       {"expert_hits", stats.expert_hits},
                       {"expert_misses", stats.expert_misses},
                       {"lanes", std::move(lanes)},
                       {"parts", std::move(parts)},
                       {"dram", BytesOf(plan)},
                       {"experts", ExpertsOf(view)}};
  if (!plan.device.name.empty()) live["device"] = BytesOf(plan.device);
  return live;
}

}  // namespace penstock::server
