#include "penstock/plan/predictor_plan.h"

#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

// Returns the sequences that a network follows for each place of the batch: one that runs, and one that waits. If it
// replaces routers, a running sequence must keep its state, although others have come and gone since its last pass: at
// most as many as have places in a pass of an encoder and in one of the decoder.
int64_t NumStates(const Policy& policy) { return policy.predictor_replaces_routers ? 3 : 2; }

}  // namespace

absl::StatusOr<std::optional<SidaShape>> ReadNetworkShape(const Policy& policy, const EngineModel& model) {
  if (!policy.predictor.has_value() || !TraitsOf(*policy.predictor).needs_network) return std::nullopt;
  PENSTOCK_ASSIGN_OR_RETURN(SidaShape shape, SidaNetwork::ReadShape(policy.predictor_path));
  const ModelConfig& config = model.config;
  const absl::Status status =
      CheckSidaShape(shape, config.vocab_size, config.num_moe_layers(), config.num_experts, model.fingerprint);
  if (!status.ok()) return Annotate(status, Printable(policy.predictor_path));
  return shape;
}

PredictorBytes PredictorBytesOf(const Policy& policy, const std::optional<SidaShape>& network,
                                const ModelConfig& config) {
  if (!network.has_value()) return {};
  const SidaShape& shape = *network;
  // One scratch for work that a pass needs, one for work ahead.
  const uint64_t fixed = shape.network_bytes() + 2 * shape.scratch_bytes();
  // Besides the states, there are for a sequence that runs and for one that waits: how probably each expert is wanted,
  // and the state before its next rows.
  const uint64_t expected_bytes = static_cast<uint64_t>(shape.num_layers * shape.num_experts) * sizeof(float);
  const uint64_t per_place =
      static_cast<uint64_t>(NumStates(policy)) * shape.state_bytes() + 2 * (shape.state_bytes() + expected_bytes);
  // For each row of the pass, and for one of later passes: the token, and in place of routers an expert and its weight
  // for each choice. The rows of the pass have these twice.
  const auto num_choices = static_cast<uint64_t>(config.num_moe_layers() * config.num_topk);
  const uint64_t table_bytes = policy.predictor_replaces_routers ? num_choices * (sizeof(int32_t) + sizeof(float)) : 0;
  return {.fixed = fixed, .per_place = per_place, .per_row = 2 * sizeof(TokenId) + 3 * table_bytes};
}

absl::Status LoadNetwork(const Policy& policy, const SidaShape& shape, ChosenPolicy& chosen) {
  if (chosen.schedule.replaces_routers && !TraitsOf(chosen.schedule.kind).fetches_by_predictor) {
    return UsageError("predictor sida: mode=replace: only schedule hybrid uses predictors; give --schedule hybrid");
  }
  PENSTOCK_ASSIGN_OR_RETURN(chosen.schedule.network, SidaNetwork::Load(policy.predictor_path));
  chosen.schedule.network_state_bytes =
      shape.state_bytes() * static_cast<uint64_t>(NumStates(policy) * chosen.plan.batch_size);
  chosen.schedule.max_ahead = 2 * chosen.plan.batch_size;
  return absl::OkStatus();
}

absl::Status CheckReplacesRouters(const ScheduleOptions& schedule, const std::string& device, const EngineModel& model,
                                  const EngineRoom& room, const RankSplit& ranks) {
  if (!schedule.replaces_routers) return absl::OkStatus();
  if (room.device.has_value() && room.device->kind == DeviceKind::kCuda) {
    return UsageError("--device {}: predictor sida with mode=replace runs on CPUs and emulated devices only, so far",
                      device);
  }
  if (schedule.hybrid_rule == HybridRule::kFixed) {
    return UsageError("predictor sida: mode=replace: the fixed mapping of hybrid has no predictor");
  }
  if (ranks.num_ranks > 1) return UsageError("predictor sida with mode=replace runs on one rank only, so far");
  const RouterRule& router = model.config.router;
  if (router.scoring != RouterRule::Scoring::kSoftmax || router.scale != 1 || router.num_groups > 1 ||
      model.config.router_selection_bias) {
    return UsageError("predictor sida: mode=replace: only routers that are a plain softmax can be replaced");
  }
  return absl::OkStatus();
}

}  // namespace penstock
