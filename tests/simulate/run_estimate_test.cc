// Proves that estimates from a few steps over a few layers agree with the whole simulation. Covers every schedule,
// machines with and without a device, and experts from disk and from DRAM.
#include "penstock/simulate/run_estimate.h"
#include "tests/choices.h"

#include <gmock/gmock.h>

#include "penstock/hardware/presets.h"
#include "penstock/plan/described_model.h"

namespace penstock {
namespace {

constexpr char kConfigs[] = PENSTOCK_SOURCE_DIR "/tests/data/configs/";

struct Case {
  const char* config;
  const char* weights;
  const char* hardware;
  const char* schedule;
  int64_t batch_size;
  int64_t micro_batch_size;
  const char* workload;
  double tolerance = 0.12;
};

TEST(Estimate, IsWhatTheWholeSimulationSays) {
  const Case cases[] = {
      {"mixtral-8x7b.json", "bf16", "l4", "cgopipe", 64, 16, "prompt=64,gen=12"},
      {"mixtral-8x7b.json", "bf16", "l4", "zigzag", 64, 16, "prompt=64,gen=12,requests=96"},
      {"mixtral-8x7b.json", "bf16", "l4", "klotski", 64, 16, "prompt=40,max-prompt=120,gen=12"},
      {"mixtral-8x7b.json", "int8", "none:dram=24GiB", "klotski", 32, 0, "prompt=64,gen=16,requests=64"},
      {"mixtral-8x7b.json", "int8", "none:dram=24GiB", "zigzag", 32, 0, "prompt=64,gen=16"},
      {"mixtral-8x7b.json", "int8", "none:dram=24GiB", "on-demand", 32, 0, "prompt=64,gen=16"},
      {"mixtral-8x7b.json", "int8", "none:dram=64GiB", "on-demand", 8, 0, "prompt=64,gen=16"},
      {"qwen3-30b-a3b.json", "int8", "none:dram=16GiB", "klotski", 16, 0, "prompt=64,gen=16"},
      {"mixtral-8x7b.json", "int8", "none:dram=24GiB", "on-demand", 1, 0, "prompt=8,gen=64"},
      {"mixtral-8x7b.json", "int8", "none:dram=64GiB", "on-demand", 1, 0, "prompt=400,gen=8"},
      {"mixtral-8x7b.json", "int8", "none:dram=64GiB", "klotski", 4, 0, "prompt=20,gen=4"},
      {"mixtral-8x7b.json", "int8", "l4:dram=44GiB", "zigzag", 16, 8, "prompt=32,gen=8"},
      {"qwen3-30b-a3b.json", "int8", "none:dram=64GiB", "on-demand", 64, 0, "prompt=16,gen=16,requests=64,sampled=1"},
      // The disk reads ahead while many logits are computed.
      {"qwen3-30b-a3b.json", "bf16", "none:dram=24GiB", "zigzag", 512, 0, "prompt=16,gen=24,requests=512", 0.05},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.config) + " on " + c.hardware + " by " + c.schedule + " with " + c.workload);
    const DescribedModel model = DescribedModel::FromConfig(std::string(kConfigs) + c.config, c.weights).value();
    const Hardware hardware = HardwarePreset(c.hardware).value();
    const Workload workload = ParseWorkload(c.workload).value();
    EngineOptions options;
    options.batch_size = c.batch_size;
    options.prefill_chunk = 256;
    options.policy.micro_batch_size = c.micro_batch_size;
    options.policy.schedule = ScheduleCalled(c.schedule);
    options = OptionsFor(options, hardware, workload).value();
    const EnginePlan plan = PlanOn(hardware, options, model).value();
    const SimulationInputs inputs{.config = model.config(), .plan = plan, .num_threads = options.threads};
    const SimulatedRun whole = SimulateWorkload(inputs, hardware, workload).value();
    RepeatedRouting routing(model.config(), workload.routing);
    const RunEstimate estimate = RunEstimator::Create(inputs, hardware, workload, routing).value().Estimate();
    EXPECT_EQ(estimate.generated_tokens, whole.generated_tokens);
    EXPECT_EQ(estimate.prompt_tokens, whole.prompt_tokens);
    EXPECT_NEAR(estimate.total_s() / whole.total_s(), 1, c.tolerance);
    EXPECT_GT(estimate.decode_step_s, 0);
  }
}

// Between two passes, klotski's slots for streamed experts keep a larger share of four layers' experts than of all.
TEST(Estimate, OverAllLayersIsThatOfTheWholeRun) {
  const DescribedModel model =
      DescribedModel::FromConfig(std::string(kConfigs) + "qwen3-235b-a22b.json", "hqq4").value();
  const Hardware hardware = HardwarePreset("rtx4090:dram=96GiB").value();
  const Workload workload = ParseWorkload("prompt=64,gen=16,requests=64").value();
  EngineOptions options;
  options.batch_size = 64;
  options.prefill_chunk = 4096;
  options.policy.schedule = ScheduleCalled("klotski");
  options = OptionsFor(options, hardware, workload).value();
  const EnginePlan plan = PlanOn(hardware, options, model).value();
  const SimulationInputs inputs{.config = model.config(), .plan = plan, .num_threads = options.threads};
  const double whole_s = SimulateWorkload(inputs, hardware, workload).value().total_s();
  RepeatedRouting routing(model.config(), workload.routing);
  const auto error = [&](RunEstimator::Layers layers) {
    auto estimator = RunEstimator::Create(inputs, hardware, workload, routing, layers).value();
    return std::abs(estimator.Estimate().total_s() / whole_s - 1);
  };
  EXPECT_LT(error(RunEstimator::Layers::kAll), 0.04);
  EXPECT_LT(error(RunEstimator::Layers::kAll), error(RunEstimator::Layers::kFew));
}

TEST(Estimate, FewerLayersHaveExpertsInTheSameProportion) {
  ModelConfig config;
  config.num_layers = 48;
  for (int64_t i = 0; i < 48; ++i) config.layer_has_experts.push_back(i % 2 == 1);
  EXPECT_EQ(FewerLayers(config, 4).num_moe_layers(), 2);
  EXPECT_EQ(FewerLayers(config, 1).num_moe_layers(), 1);
  EXPECT_EQ(FewerLayers(config, 48).num_moe_layers(), 24);
  config.layer_has_experts.assign(48, true);
  EXPECT_EQ(FewerLayers(config, 5).num_moe_layers(), 5);
  config.layer_has_experts.assign(48, false);
  EXPECT_EQ(FewerLayers(config, 4).num_moe_layers(), 0);
}

TEST(Estimate, OfALongJobIsInProportion) {
  const DescribedModel model = DescribedModel::FromConfig(std::string(kConfigs) + "mixtral-8x7b.json", "int8").value();
  const Hardware hardware = HardwarePreset("none:dram=24GiB").value();
  double short_s = 0;
  for (const int64_t num_requests : {128, 1280}) {
    Workload workload = ParseWorkload("prompt=64,gen=16").value();
    workload.num_requests = num_requests;
    EngineOptions options;
    options.batch_size = 16;
    options = OptionsFor(options, hardware, workload).value();
    const EnginePlan plan = PlanOn(hardware, options, model).value();
    RepeatedRouting routing(model.config(), workload.routing);
    const RunEstimate estimate =
        RunEstimator::Create({.config = model.config(), .plan = plan, .num_threads = options.threads}, hardware,
                             workload, routing)
            .value()
            .Estimate();
    EXPECT_EQ(estimate.num_requests, num_requests);
    EXPECT_EQ(estimate.generated_tokens, num_requests * 16);
    if (num_requests == 128) short_s = estimate.total_s();
    if (num_requests == 1280) {
      EXPECT_NEAR(estimate.total_s(), 10 * short_s, short_s);
    }
  }
}

}  // namespace
}  // namespace penstock
