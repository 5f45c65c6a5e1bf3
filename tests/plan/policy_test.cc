// Proves which schedule, eviction and number of pinned experts a plan chooses by default, and that choices which need a
// device are refused without one.
#include "penstock/plan/policy.h"

#include <gmock/gmock.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr uint64_t kSlotBytes = 1 << 20;

ModelConfig Config() {
  ModelConfig config;
  config.num_layers = 8;
  config.model_dim = 64;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.num_experts = 16;
  config.num_topk = 2;
  config.expert_dim = 64;
  config.vocab_size = 1000;
  config.max_positions = 4096;
  config.layer_has_experts.assign(config.num_layers, true);
  return config;
}

// Returns the policy for a budget that has room for about this many of the 128 experts.
absl::StatusOr<ChosenPolicy> PolicyFor(int64_t num_experts, const EngineOptions& options,
                                       const std::optional<DeviceSpec>& device = std::nullopt) {
  const ModelConfig config = Config();
  PlanInputs inputs;
  inputs.config = &config;
  inputs.budget_bytes = (4 << 20) + static_cast<uint64_t>(num_experts) * kSlotBytes;
  inputs.dense_bytes = 1 << 20;
  inputs.slot_bytes = kSlotBytes;
  inputs.num_workers = 2;
  inputs.context_length = 256;
  inputs.batch_size = options.batch_size;
  return ChoosePolicy(options, device, 1 << 20, inputs);
}

TEST(ChoosePolicy, ExpertsThatStreamAreScheduledByKlotskiAndPartlyPinned) {
  const ChosenPolicy policy = PolicyFor(60, {.batch_size = 16}).value();
  EXPECT_EQ(policy.schedule.kind, ScheduleKind::kKlotski);
  EXPECT_EQ(policy.eviction, TraitsOf(ScheduleKind::kKlotski).eviction);
  EXPECT_LT(policy.plan.num_expert_slots, 128);
  EXPECT_GT(policy.plan.num_pinned_experts, 0);
  EXPECT_LT(policy.plan.num_pinned_experts, policy.plan.num_expert_slots);
}

TEST(ChoosePolicy, WhereAllExpertsFitOnDemandIsEnough) {
  EXPECT_EQ(PolicyFor(140, {.batch_size = 16})->schedule.kind, ScheduleKind::kOnDemand);
  EngineOptions asked{.batch_size = 16};
  asked.policy.schedule = ScheduleKind::kZigzag;
  EXPECT_EQ(PolicyFor(140, asked)->schedule.kind, ScheduleKind::kZigzag);
}

TEST(ChoosePolicy, FewSequencesUseACacheOfHighlyRatedExperts) {
  for (const int64_t batch_size : {1, 8}) {
    const ChosenPolicy policy = PolicyFor(60, {.batch_size = batch_size}).value();
    EXPECT_EQ(policy.schedule.kind, ScheduleKind::kOnDemand);
    EXPECT_EQ(policy.eviction, Eviction::kMrsLayer);
    EXPECT_EQ(policy.plan.num_pinned_experts, 0);
  }
  // 12 sequences choose 0.8 of 16 experts.
  EXPECT_EQ(PolicyFor(60, {.batch_size = 12})->schedule.kind, ScheduleKind::kKlotski);
}

TEST(ChoosePolicy, WhatIsAskedForIsNoCacheOfHighlyRatedExperts) {
  EngineOptions options{.batch_size = 1};
  options.policy.eviction = Eviction::kLfu;
  EXPECT_EQ(PolicyFor(60, options)->eviction, Eviction::kLfu);
  options.policy = {.schedule = ScheduleKind::kOnDemand};
  EXPECT_EQ(PolicyFor(60, options)->eviction, TraitsOf(ScheduleKind::kOnDemand).eviction);
  options.policy = {};
  options.correlation_path = "table";
  EXPECT_EQ(PolicyFor(60, options)->schedule.kind, ScheduleKind::kKlotski);
  EXPECT_EQ(PolicyFor(60, {.batch_size = 1, .decodes = false})->schedule.kind, ScheduleKind::kKlotski);
  EXPECT_EQ(PolicyFor(140, {.batch_size = 1})->eviction, Eviction::kMrsLayer);  // all fit: nothing is evicted
}

TEST(ChoosePolicy, AttentionOnTheHostNeedsADevice) {
  EngineOptions options;
  options.policy.schedule = ScheduleKind::kCgopipe;
  const absl::Status status = PolicyFor(60, options).status();
  EXPECT_EQ(FaultOf(status), Fault::kUsage);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--device"));
}

TEST(ChoosePolicy, ADeviceWithRoomForAllExpertsHoldsTheKvCache) {
  const DeviceSpec device{.kind = DeviceKind::kEmulated, .name = "emulated", .num_threads = 1};
  EngineOptions options{.batch_size = 16};
  const auto holds_kv = [&](uint64_t memory_bytes) {
    options.device_memory_bytes = memory_bytes;
    return PolicyFor(140, options, device).value().plan.device.holds_kv_cache;
  };
  EXPECT_TRUE(holds_kv(160 * kSlotBytes));
  EXPECT_FALSE(holds_kv(100 * kSlotBytes));
  options.policy.kv_tier = KvTier::kDram;  // as asked
  EXPECT_FALSE(holds_kv(160 * kSlotBytes));
}

}  // namespace
}  // namespace penstock
