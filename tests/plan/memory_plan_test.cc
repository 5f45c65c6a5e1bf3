// Proves that no plan exceeds its budget. The least budget that a refusal names is accepted, and one byte less is not.
// More memory never gives both fewer experts in DRAM and a smaller batch.
#include "penstock/plan/memory_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "penstock/base/status.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/runtime/runtime.h"

namespace penstock {
namespace {

ModelConfig RandomConfig() {
  ModelConfig config;
  config.num_layers = *rc::gen::inRange<int64_t>(1, 40);
  config.model_dim = 8 * *rc::gen::inRange<int64_t>(1, 600);
  config.num_kv_heads = *rc::gen::inRange<int64_t>(1, 9);
  config.num_heads = config.num_kv_heads * *rc::gen::inRange<int64_t>(1, 9);
  config.head_dim = 2 * *rc::gen::inRange<int64_t>(1, 65);
  config.num_experts = *rc::gen::inRange<int64_t>(1, 129);
  config.num_topk = *rc::gen::inRange<int64_t>(1, std::min<int64_t>(config.num_experts, 8) + 1);
  config.expert_dim = *rc::gen::inRange<int64_t>(1, 15000);
  config.vocab_size = *rc::gen::inRange<int64_t>(1, 150000);
  config.layer_has_experts.assign(config.num_layers, true);
  return config;
}

PlanInputs RandomInputs(const ModelConfig& config) {
  PlanInputs in;
  in.config = &config;
  const auto any_format =
      rc::gen::element(kernels::RowFormat::kF32, kernels::RowFormat::kBF16, kernels::RowFormat::kInt8);
  in.row_formats = {.attention = *any_format, .ffn = *any_format, .lm_head = *any_format};
  in.kv_format = *rc::gen::element(KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8);
  in.fixed_bytes = *rc::gen::inRange<uint64_t>(0, 100'000'000);
  in.dense_bytes = *rc::gen::inRange<uint64_t>(1, 4'000'000'000);
  in.slot_bytes = 4096 * *rc::gen::inRange<uint64_t>(1, 100'000);
  in.num_workers = *rc::gen::inRange(1, 64);
  in.batch_size = *rc::gen::element<int64_t>(0, 1, 3, 64, 1000);
  in.prefill_chunk = *rc::gen::element<int64_t>(0, 1, 512);
  in.context_length = *rc::gen::inRange<int64_t>(1, 32768);
  return in;
}

uint64_t MinBudget(PlanInputs in) {
  in.budget_bytes = 0;
  const std::string message = Message(PlanMemory(in).status());
  return std::stoull(message.substr(message.find("the least budget is ") + 20));
}

uint64_t Total(const MemoryPlan& plan) {
  return plan.fixed_bytes + plan.dense_bytes + plan.kv_bytes + plan.activation_bytes + plan.expert_bytes;
}

RC_GTEST_PROP(MemoryPlan, NeverExceedsItsBudget, ()) {
  const ModelConfig config = RandomConfig();
  PlanInputs in = RandomInputs(config);
  in.budget_bytes = MinBudget(in) + *rc::gen::inRange<uint64_t>(0, 60'000'000'000);
  const auto plan = PlanMemory(in);
  RC_ASSERT(plan.ok());
  RC_ASSERT(Total(*plan) <= in.budget_bytes);
  RC_ASSERT(plan->num_expert_slots >= 1);
  RC_ASSERT(plan->num_expert_slots <= plan->num_experts_total);
  RC_ASSERT(plan->activation_bytes == Activations::Bytes(config, in.row_formats, DimsOf(*plan, in.num_workers)));
  RC_ASSERT(NumKvPages(*plan) >= KvCache::PagesFor(in.context_length));
  RC_ASSERT(in.batch_size == 0 || plan->batch_size == in.batch_size);
}

RC_GTEST_PROP(MemoryPlan, LeastBudgetIsExact, ()) {
  const ModelConfig config = RandomConfig();
  PlanInputs in = RandomInputs(config);
  const uint64_t min = MinBudget(in);
  in.budget_bytes = min;
  RC_ASSERT(PlanMemory(in).ok());
  in.budget_bytes = min - 1;
  RC_ASSERT(FaultOf(PlanMemory(in).status()) == Fault::kResources);
}

RC_GTEST_PROP(MemoryPlan, ADevicesBudgetIsHeldAndItsLeastOneExact, ()) {
  const ModelConfig config = RandomConfig();
  PlanInputs in = RandomInputs(config);
  in.budget_bytes = uint64_t{1} << 44;
  in.micro_batch_size = *rc::gen::element<int64_t>(0, 1, 8, 64);
  DeviceInputs device{.name = "emulated", .dense_bytes = *rc::gen::inRange<uint64_t>(1, 4'000'000'000)};
  device.fixed_bytes = *rc::gen::inRange<uint64_t>(0, 100'000'000);
  device.num_workers = *rc::gen::inRange(0, 9);
  device.min_slots = *rc::gen::inRange<int64_t>(1, 2 * config.num_experts + 1);
  device.holds_kv_cache = *rc::gen::arbitrary<bool>();
  device.stages_kv = !device.holds_kv_cache && *rc::gen::arbitrary<bool>();
  in.device = device;
  const std::string message = Message(PlanMemory(in).status());
  const uint64_t min = std::stoull(message.substr(message.find("the least device memory is ") + 27));
  in.device->budget_bytes = min - 1;
  RC_ASSERT(FaultOf(PlanMemory(in).status()) == Fault::kResources);
  in.device->budget_bytes = min + *rc::gen::element<uint64_t>(0, 1'000'000, 1'000'000'000, 60'000'000'000);
  const auto plan = PlanMemory(in);
  RC_ASSERT(plan.ok());
  RC_ASSERT(Total(*plan) - (device.holds_kv_cache ? plan->kv_bytes : 0) <= in.budget_bytes);
  const DevicePlan& d = plan->device;
  RC_ASSERT(d.fixed_bytes == device.fixed_bytes);
  RC_ASSERT(d.fixed_bytes + d.dense_bytes + d.kv_bytes + d.activation_bytes + d.expert_bytes <=
            in.device->budget_bytes);
  RC_ASSERT(d.num_expert_slots >= std::min(device.min_slots, plan->num_experts_total));
  RC_ASSERT(d.activation_bytes == Activations::Bytes(config, in.row_formats, DeviceDimsOf(*plan, device.num_workers)));
  RC_ASSERT(plan->activation_bytes == Activations::Bytes(config, in.row_formats, DimsOf(*plan, in.num_workers)));
  const int64_t per_sequence = KvCache::PagesFor(in.context_length);
  RC_ASSERT(NumKvPages(*plan) >= per_sequence);
  if (device.stages_kv) {
    // Any micro-batch of sequences that have pages at all.
    const int64_t num_pages = NumKvPages(*plan);
    const int64_t max = in.micro_batch_size == 0 ? num_pages : std::min(num_pages, in.micro_batch_size * per_sequence);
    RC_ASSERT(NumStagedPages(*plan, config, in.kv_format) >= max);
  }
}

ModelConfig SmallConfig(int64_t num_experts, int64_t num_topk) {
  ModelConfig config;
  config.num_layers = 4;
  config.model_dim = 256;
  config.num_heads = config.num_kv_heads = 8;
  config.head_dim = 32;
  config.num_experts = num_experts;
  config.num_topk = num_topk;
  config.expert_dim = 224;
  config.vocab_size = 4096;
  config.layer_has_experts.assign(4, true);
  return config;
}

PlanInputs SmallInputs(const ModelConfig& config, uint64_t slot_bytes) {
  return {.config = &config,
          .row_formats = {},
          .budget_bytes = 1'000'000'000,
          .fixed_bytes = 1,
          .dense_bytes = 1 << 20,
          .slot_bytes = slot_bytes,
          .num_workers = 2,
          .context_length = 2048};
}

TEST(MemoryPlan, HalfOfTheSlotsThatStreamAreReadAtOnce) {
  MemoryPlan plan;
  plan.num_experts_total = 32;
  plan.num_expert_slots = 3;
  EXPECT_EQ(MaxReading(plan), 1);
  plan.num_expert_slots = 20;
  EXPECT_EQ(MaxReading(plan), 10);
  plan.num_pinned_experts = 14;
  EXPECT_EQ(MaxReading(plan), 3);
  plan.num_pinned_experts = 19;
  EXPECT_EQ(MaxReading(plan), 1);
  plan.num_expert_slots = 32;
  EXPECT_EQ(MaxReading(plan), kAnyReading);
}

// A run's texts may take less memory than its plan expected. The bytes that become free must not go to KV pages that
// leave too little for the last slot.
TEST(MemoryPlan, ARunHasTheExpertSlotsOfItsPlan) {
  const ModelConfig config = SmallConfig(8, 2);
  int num_lost = 0;
  for (uint64_t budget = 8'000'000; budget < 18'000'000; budget += 100'000) {
    PlanInputs in = SmallInputs(config, 350'000);
    in.budget_bytes = budget;
    in.fixed_bytes = 100'000;
    in.context_length = in.planned_positions = 96;
    in.batch_size = 16;
    const auto planned = PlanMemory(in);
    if (!planned.ok()) continue;
    in.fixed_bytes -= 50'000;
    num_lost += PlanMemory(in)->num_expert_slots < planned->num_expert_slots ? 1 : 0;
    in.expert_slots = planned->num_expert_slots;
    EXPECT_GE(PlanMemory(in)->num_expert_slots, planned->num_expert_slots) << budget;
  }
  EXPECT_GT(num_lost, 0);
}

TEST(MemoryPlan, CachesHoldFewSmallSlots) {
  MemoryPlan plan;
  plan.num_experts_total = 100;
  plan.num_expert_slots = 40;
  plan.expert_bytes = 40 * (uint64_t{1} << 20);
  EXPECT_FALSE(CachesHoldSlots(plan));
  plan.num_pinned_experts = 8;  // nothing is read into their slots
  EXPECT_TRUE(CachesHoldSlots(plan));
  plan.num_expert_slots = 100;
  EXPECT_FALSE(CachesHoldSlots(plan)) << "all stay";
}

TEST(MemoryPlan, KeepsAllExpertsWhenTheyFit) {
  const ModelConfig config = SmallConfig(8, 2);
  const auto plan = PlanMemory(SmallInputs(config, 350'000));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_expert_slots, 32);
  EXPECT_EQ(plan->batch_size, 64);
  EXPECT_EQ(plan->prefill_chunk, 256);
}

TEST(MemoryPlan, StepsThatReadManyExpertsHaveMorePromptRows) {
  const ModelConfig many = SmallConfig(256, 8), few = SmallConfig(8, 2);
  PlanInputs in = SmallInputs(many, 2'000'000);
  EXPECT_EQ(PlanMemory(in)->prefill_chunk, 2048);
  EXPECT_EQ(PlanMemory(SmallInputs(many, 200'000))->prefill_chunk, 256);  // all stay in memory
  EXPECT_EQ(PlanMemory(SmallInputs(few, 60'000'000))->prefill_chunk, 256);
  in.prefill_chunk = 100;
  EXPECT_EQ(PlanMemory(in)->prefill_chunk, 100);
  in.prefill_chunk = 0;
  in.budget_bytes = MinBudget(in) + 1'000'000;
  EXPECT_LT(PlanMemory(in)->prefill_chunk, 256);  // there is no room
}

TEST(MemoryPlan, ABatchThatWasAskedForTakesMoreThanHalf) {
  const ModelConfig config = SmallConfig(256, 8);
  PlanInputs in = SmallInputs(config, 2'000'000);
  in.planned_positions = 2048;
  const MemoryPlan planned = PlanMemory(in).value();
  EXPECT_GT(planned.expert_bytes, in.budget_bytes * 2 / 5);
  in.batch_size = 1000;
  const MemoryPlan asked = PlanMemory(in).value();
  EXPECT_EQ(asked.batch_size, 1000);
  EXPECT_GT(asked.kv_bytes, in.budget_bytes * 3 / 4);
  EXPECT_GT(asked.expert_bytes, in.budget_bytes / 10);
  EXPECT_GE(asked.prefill_chunk, 256);
}

TEST(MemoryPlan, AGuessOfPositionsGivesWayToTheLastExperts) {
  const ModelConfig config = SmallConfig(8, 2);
  constexpr uint64_t kSlotBytes = 10'000'000;
  PlanInputs in = SmallInputs(config, kSlotBytes);
  in.batch_size = 64;
  const MemoryPlan ample = PlanMemory(in).value();
  ASSERT_EQ(ample.num_expert_slots, 32);
  const uint64_t all = Total(ample);
  // Room that lacks a part of the KV cache: all experts stay, and nothing is left unused.
  const auto lacking = [&](double share) {
    in.budget_bytes = all - static_cast<uint64_t>(share * static_cast<double>(ample.kv_bytes));
    return PlanMemory(in).value();
  };
  const MemoryPlan tight = lacking(0.4);
  EXPECT_EQ(tight.num_expert_slots, 32);
  EXPECT_LT(tight.kv_bytes, ample.kv_bytes * 7 / 10);
  EXPECT_GT(tight.kv_bytes, ample.kv_bytes / 2);
  EXPECT_GT(Total(tight) + 2 * tight.kv_page_bytes, in.budget_bytes);
  // Half of the pages would not suffice for all experts.
  const MemoryPlan tighter = lacking(0.7);
  EXPECT_LT(tighter.num_expert_slots, 32);
  EXPECT_EQ(tighter.kv_bytes, ample.kv_bytes);
  // A number that was given is no guess.
  in.planned_positions = 256;
  EXPECT_EQ(lacking(0.4).kv_bytes, ample.kv_bytes);
  EXPECT_LT(lacking(0.4).num_expert_slots, 32);
}

}  // namespace
}  // namespace penstock
