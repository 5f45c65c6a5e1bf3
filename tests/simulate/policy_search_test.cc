// Proves that the planner's policy is near the best policy of a grid in whole simulations. It keeps the requested
// settings and the budgets. Better hardware never makes a plan slower.
#include "penstock/simulate/policy_search.h"
#include "tests/choices.h"

#include <random>

#include <gmock/gmock.h>

#include "penstock/base/status.h"
#include "penstock/hardware/presets.h"
#include "tests/environment.h"

namespace penstock {
namespace {

constexpr char kMixtralConfig[] = PENSTOCK_SOURCE_DIR "/tests/data/configs/mixtral-8x7b.json";
constexpr char kQwen[] = PENSTOCK_SOURCE_DIR "/tests/data/configs/qwen3-30b-a3b.json";

double BestRate(const DescribedModel& model, const Hardware& hardware, const Workload& workload,
                const EngineOptions& options = {}) {
  return SearchPolicies(model, hardware, workload, options).value().front().estimate.generation_tokens_per_s();
}

// Returns the tokens per second of a policy in the whole simulation; 0 when it cannot run.
double SimulatedRate(const DescribedModel& model, const Hardware& hardware, const Workload& workload,
                     const EngineOptions& asked) {
  const absl::StatusOr<EngineOptions> options = OptionsFor(asked, hardware, workload);
  if (!options.ok()) return 0;
  const absl::StatusOr<EnginePlan> plan = PlanOn(hardware, *options, model);
  if (!plan.ok()) return 0;
  const absl::StatusOr<SimulatedRun> run =
      SimulateWorkload({.config = model.config(), .plan = *plan, .num_threads = options->threads}, hardware, workload);
  return run.ok() ? run->generation_tokens_per_s() : 0;
}

TEST(AutoPolicy, IsNearTheBestOfAGrid) {
  std::mt19937_64 random(FromEnvironment("PENSTOCK_TEST_SEED", 1));
  const auto pick = [&](std::initializer_list<const char*> list) { return std::data(list)[random() % list.size()]; };
  for (int i = 0; i < 4; ++i) {
    const std::string config = pick({kMixtralConfig, kQwen}), weights = pick({"int8", "hqq4"});
    const std::string spec = std::string("none:dram=") + pick({"10GiB", "16GiB", "24GiB", "64GiB"}) +
                             ",disk=" + pick({"sata", "nvme3", "nvme5"}) + ",cpu=" + pick({"desktop", "epyc-9654"});
    const std::string work = pick({"prompt=32,gen=8,requests=32", "prompt=128,gen=4,requests=16", "prompt=8,gen=16"});
    SCOPED_TRACE(config + " in " + weights + " on " + spec + " with " + work);
    const DescribedModel model = DescribedModel::FromConfig(config, weights).value();
    const Hardware hardware = HardwarePreset(spec).value();
    Workload workload = ParseWorkload(work).value();
    if (workload.num_requests == 0) workload.num_requests = 1;
    const auto choices = SearchPolicies(model, hardware, workload, {}).value();
    const double chosen = SimulatedRate(model, hardware, workload, choices.front().options);
    EXPECT_GT(chosen, 0);
    double best = 0;
    for (const char* schedule : {"on-demand", "zigzag", "klotski"}) {
      for (const int64_t batch_size : {4, 32}) {
        for (const int64_t prefill_chunk : {256, 1024}) {
          EngineOptions options;
          options.policy.schedule = ScheduleCalled(schedule);
          options.batch_size = std::min(batch_size, workload.num_requests);
          options.prefill_chunk = prefill_chunk;
          best = std::max(best, SimulatedRate(model, hardware, workload, options));
        }
      }
    }
    EXPECT_GE(chosen, 0.93 * best);
  }
}

TEST(AutoPolicy, RanksDivideAttentionInTheBetterWay) {
  const DescribedModel model = DescribedModel::FromConfig(kQwen, "int8").value();
  Hardware hardware = HardwarePreset("none").value();
  hardware.num_ranks = 2;
  int num_by_heads = 0, num_by_sequences = 0;
  for (const auto& [network, work] :
       {std::pair("ib-hdr", "prompt=8,gen=64,requests=1"), std::pair("1gbe", "prompt=8,gen=64,requests=1"),
        std::pair("25gbe", "prompt=64,gen=8,requests=16")}) {
    SCOPED_TRACE(std::string(network) + " " + work);
    Hardware ranks = hardware;
    ranks.links.push_back(NetworkPreset(network).value());
    const Workload workload = ParseWorkload(work).value();
    const PolicyChoice chosen = SearchPolicies(model, ranks, workload, {}).value().front();
    EngineOptions by_sequences, by_heads;
    by_sequences.policy.attention_parallel = AttentionParallel::kSequences;
    by_heads.policy.attention_parallel = AttentionParallel::kHeads;
    const double best =
        std::max(BestRate(model, ranks, workload, by_sequences), BestRate(model, ranks, workload, by_heads));
    EXPECT_GE(chosen.estimate.generation_tokens_per_s(), 0.95 * best);
    (chosen.plan.shares_heads ? num_by_heads : num_by_sequences)++;
    // Cut experts change answers, so nobody gets them who did not ask.
    EXPECT_FALSE(chosen.plan.cuts_experts);
  }
  EXPECT_GT(num_by_heads, 0);
  EXPECT_GT(num_by_sequences, 0);
}

TEST(AutoPolicy, KeepsWhatWasAskedForAndTheBudgets) {
  const DescribedModel model = DescribedModel::FromConfig(kMixtralConfig, "int8").value();
  const Hardware hardware = HardwarePreset("l4:dram=32GiB").value();
  const Workload workload = ParseWorkload("prompt=64,gen=8,requests=64").value();
  EngineOptions options;
  options.batch_size = 16;
  options.policy.schedule = ScheduleKind::kZigzag;
  options.memory_bytes = uint64_t{20} << 30;
  options.device_memory_bytes = uint64_t{12} << 30;
  const std::vector<PolicyChoice> choices = SearchPolicies(model, hardware, workload, options).value();
  for (const PolicyChoice& choice : choices) {
    EXPECT_EQ(choice.plan.schedule, ScheduleKind::kZigzag);
    EXPECT_EQ(choice.plan.batch_size, 16);
    const MemoryPlan& plan = choice.plan;
    const uint64_t kv_bytes = plan.device.holds_kv_cache ? 0 : plan.kv_bytes;
    EXPECT_LE(plan.fixed_bytes + plan.dense_bytes + kv_bytes + plan.activation_bytes + plan.expert_bytes,
              options.memory_bytes);
    const DevicePlan& device = plan.device;
    EXPECT_LE(device.dense_bytes + device.kv_bytes + device.activation_bytes + device.expert_bytes,
              options.device_memory_bytes);
  }
  options.memory_bytes = 1 << 28;
  EXPECT_EQ(FaultOf(SearchPolicies(model, hardware, workload, options).status()), Fault::kResources);
  options.policy.schedule = ScheduleKind::kCgopipe;
  options.device = "cpu";
  EXPECT_EQ(FaultOf(SearchPolicies(model, hardware, workload, options).status()), Fault::kUsage);
}

TEST(AutoPolicy, BetterHardwareIsNeverSlower) {
  const DescribedModel model = DescribedModel::FromConfig(kMixtralConfig, "int8").value();
  const Workload workload = ParseWorkload("prompt=64,gen=16,requests=64").value();
  double before = 0;
  for (const char* dram : {"12GiB", "20GiB", "32GiB", "48GiB", "64GiB"}) {
    const Hardware hardware = HardwarePreset(std::string("none:disk=nvme3,dram=") + dram).value();
    const double rate = BestRate(model, hardware, workload);
    EXPECT_GE(rate, 0.99 * before) << dram;
    before = rate;
  }
  before = 0;
  for (const char* disk : {"sata", "ssd1", "nvme3", "nvme4", "nvme5"}) {
    const double rate = BestRate(model, HardwarePreset(std::string("none:dram=24GiB,disk=") + disk).value(), workload);
    EXPECT_GE(rate, 0.99 * before) << disk;
    before = rate;
  }
}

}  // namespace
}  // namespace penstock
