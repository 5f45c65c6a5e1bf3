// Proves that a model described by its config alone gets the same plan as its packed store. In virtual time a workload
// is batched as the engine batches it: the same steps, the same tokens. Simulations are deterministic, and a slower
// link or disk is never faster. Workloads that cannot run are refused.
#include <filesystem>
#include <numeric>

#include <gmock/gmock.h>
#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/hardware/presets.h"
#include "penstock/pack.h"
#include "penstock/plan/described_model.h"
#include "penstock/simulate/simulated_run.h"
#include "tests/choices.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

constexpr char kMixtral[] = PENSTOCK_SOURCE_DIR "/tests/data/configs/mixtral-8x7b.json";

class DescribedModelTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/described-" + std::to_string(::getpid());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string dir_;
};

TEST_F(DescribedModelTest, IsPlannedLikeItsPackedStore) {
  for (const char* variant : {"mixtral-odd", "qwen3moe-bf16", "olmoe-tiny"}) {
    const Golden golden(variant);
    for (const std::string format : {"int8", "hqq4"}) {
      SCOPED_TRACE(std::string(variant) + " " + format);
      const std::string store = dir_ + "/" + variant + format;
      std::atomic<bool> stop = false;
      ASSERT_TRUE(
          PackModel({.model_dir = golden.dir(), .output_dir = store, .quantize = format, .threads = 1}, nullptr, stop)
              .ok());
      const DescribedModel real = DescribedModel::FromFolder(store).value();
      const DescribedModel described = DescribedModel::FromConfig(golden.dir() + "/config.json", format).value();
      const Hardware hardware = HardwarePreset("none").value();
      const Workload workload = ParseWorkload("prompt=16,gen=16").value();
      const EngineOptions options = OptionsFor({.memory_bytes = 200 << 20}, hardware, workload).value();
      const EnginePlan a = PlanOn(hardware, options, real).value();
      const EnginePlan b = PlanOn(hardware, options, described).value();
      EXPECT_EQ(a.layouts->slot_bytes(), b.layouts->slot_bytes());
      EXPECT_EQ(a.model_formats.ffn, b.model_formats.ffn);
      EXPECT_EQ(a.model_formats.attention, b.model_formats.attention);
      EXPECT_EQ(a.model_formats.lm_head, b.model_formats.lm_head);
      // Norms and embedding are as in the checkpoint; everything else is packed.
      EXPECT_NEAR(static_cast<double>(a.policy.plan.dense_bytes), static_cast<double>(b.policy.plan.dense_bytes),
                  0.25 * static_cast<double>(a.policy.plan.dense_bytes));
      EXPECT_EQ(a.policy.plan.activation_bytes, b.policy.plan.activation_bytes);
      EXPECT_EQ(a.policy.plan.batch_size, b.policy.plan.batch_size);
    }
  }
}

TEST_F(DescribedModelTest, NamesWhatItDoesNotKnow) {
  EXPECT_EQ(FaultOf(DescribedModel::FromConfig(kMixtral, "int5").status()), Fault::kUsage);
  const absl::Status family =
      DescribedModel::FromConfig(PENSTOCK_SOURCE_DIR "/tests/data/configs/qwen3-0.6b.json", "bf16").status();
  EXPECT_EQ(FaultOf(family), Fault::kModel);
  EXPECT_THAT(Message(family), testing::HasSubstr("qwen3-0.6b.json"));
  EXPECT_EQ(FaultOf(DescribedModel::FromConfig("/nowhere/config.json", "bf16").status()), Fault::kIo);
}

TEST(SimulatedWorkload, HasTheStepsOfARealRun) {
  const Golden golden("mixtral-tiny");
  for (const auto& [batch_size, num_shared] : {std::pair<int64_t, int64_t>{1, 0}, {3, 0}, {8, 0}, {1, 32}, {3, 32}}) {
    SCOPED_TRACE(fmt::format("{} sequences, {} common tokens", batch_size, num_shared));
    EngineOptions options{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1};
    options.batch_size = batch_size;
    options.context_length = 64;
    options.prefill_chunk = 16;
    options.speculates = false;  // a simulation knows no texts
    Workload workload = ParseWorkload("prompt=20,max-prompt=40,gen=7,requests=10").value();
    if (num_shared > 0) workload = ParseWorkload("prompt=41,gen=7,requests=10,shared=32").value();
    options.planned_positions = workload.positions();
    const auto engine = Engine::Open(options).value();
    for (int64_t i = 0; i < workload.num_requests; ++i) {
      Request request{.prompt_ids = std::vector<TokenId>(workload.PromptTokens(i), 5)};
      request.prompt_ids[num_shared] = static_cast<TokenId>(10 + i);
      request.sampling.max_tokens = workload.new_tokens;
      request.sampling.ignore_eos = true;
      ASSERT_TRUE(engine->Submit(request).ok());
    }
    int64_t num_steps = 0;
    for (; !engine->idle(); ++num_steps) ASSERT_TRUE(engine->Step().ok());

    const Hardware hardware = HardwarePreset("none").value();
    const DescribedModel model = DescribedModel::FromFolder(golden.dir()).value();
    options = OptionsFor(options, hardware, workload).value();
    const EnginePlan plan = PlanOn(hardware, options, model).value();
    const SimulatedRun run =
        SimulateWorkload({.config = model.config(), .plan = plan, .num_threads = 1}, hardware, workload).value();
    EXPECT_EQ(std::ssize(run.step_s), num_steps);
    EXPECT_EQ(run.prompt_tokens, engine->stats().prompt_tokens);
    EXPECT_EQ(run.computed_prompt_tokens, engine->stats().computed_prompt_tokens);
    EXPECT_EQ(run.generated_tokens, engine->stats().generated_tokens);
    EXPECT_EQ(run.generated_tokens, 70);
    EXPECT_NEAR(run.total_s(), std::accumulate(run.step_s.begin(), run.step_s.end(), 0.0), 1e-9 * run.total_s());
  }
}

// The pages of the common tokens do not keep the only place from the next request.
TEST(SimulatedWorkload, EndsWhereOnlyOneRequestFits) {
  const Golden golden("mixtral-tiny");
  const Hardware hardware = HardwarePreset("none").value();
  const DescribedModel model = DescribedModel::FromFolder(golden.dir()).value();
  const Workload workload = ParseWorkload("prompt=33,max-prompt=34,gen=14,requests=10,shared=32").value();
  EngineOptions options{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1, .batch_size = 1};
  options.context_length = 48;
  options.planned_positions = 48;
  options = OptionsFor(options, hardware, workload).value();
  const EnginePlan plan = PlanOn(hardware, options, model).value();
  const SimulatedRun run =
      SimulateWorkload({.config = model.config(), .plan = plan, .num_threads = 1}, hardware, workload).value();
  EXPECT_EQ(run.generated_tokens, 140);
}

SimulatedRun RunOn(const Hardware& hardware, const std::string& schedule, uint64_t device_memory_bytes = 0) {
  const DescribedModel model = DescribedModel::FromConfig(kMixtral, "bf16").value();
  Workload workload = ParseWorkload("prompt=16,gen=4,requests=64").value();
  workload.routing.seed = 3;
  EngineOptions options;
  options.batch_size = 64;
  options.policy.schedule = ScheduleCalled(schedule);
  options.policy.micro_batch_size = 16;
  options.device_memory_bytes = device_memory_bytes;
  options = OptionsFor(options, hardware, workload).value();
  const EnginePlan plan = PlanOn(hardware, options, model).value();
  return SimulateWorkload({.config = model.config(), .plan = plan, .num_threads = options.threads}, hardware, workload)
      .value();
}

TEST(SimulatedWorkload, IsDeterministicAndSlowerPartsAreNoFaster) {
  const Hardware hardware = HardwarePreset("l4").value();
  for (const char* schedule : {"on-demand", "zigzag", "klotski", "cgopipe"}) {
    SCOPED_TRACE(schedule);
    const SimulatedRun run = RunOn(hardware, schedule);
    EXPECT_EQ(run.generated_tokens, 64 * 4);
    EXPECT_EQ(RunOn(hardware, schedule).step_s, run.step_s);
    Hardware slower = hardware;
    for (Link& link : slower.links) link.bytes_per_s /= 2;
    EXPECT_GT(RunOn(slower, schedule).total_s(), 1.2 * run.total_s());
    slower = hardware;
    for (Processor& processor : slower.processors) processor.compute_efficiency /= 16;
    EXPECT_GE(RunOn(slower, schedule).total_s(), run.total_s());
  }
  // The disk matters: DRAM is smaller than the model's weights.
  const Hardware small = HardwarePreset("none:dram=48GiB,disk=nvme5").value();
  EXPECT_GT(RunOn(HardwarePreset("none:dram=48GiB,disk=nvme3").value(), "klotski").total_s(),
            1.5 * RunOn(small, "klotski").total_s());
}

// MoE-Lightning computes prompts on the device, also their attention.
TEST(SimulatedWorkload, CgopipesPromptsAreNoSlowerThanZigzags) {
  const DescribedModel model = DescribedModel::FromConfig(kMixtral, "bf16").value();
  const Workload workload = ParseWorkload("prompt=1984,gen=2,requests=16").value();
  for (const char* name : {"l4:dram=192GiB", "rtx4090:dram=192GiB"}) {
    const Hardware hardware = HardwarePreset(name).value();
    const auto prefill_s = [&](ScheduleKind kind, std::optional<PromptAttention> prompts = std::nullopt) {
      EngineOptions options{.device = "gpu", .batch_size = 16, .prefill_chunk = 8192};
      options.policy = {.schedule = kind, .micro_batch_size = 8, .prompt_attention = prompts};
      options = OptionsFor(options, hardware, workload).value();
      const EnginePlan plan = PlanOn(hardware, options, model).value();
      const SimulationInputs inputs{.config = model.config(), .plan = plan, .num_threads = options.threads};
      return SimulateWorkload(inputs, hardware, workload).value().prefill_s;
    };
    const double seconds = prefill_s(ScheduleKind::kCgopipe);
    EXPECT_LE(seconds, prefill_s(ScheduleKind::kZigzag)) << name;
    EXPECT_LT(seconds, 0.9 * prefill_s(ScheduleKind::kCgopipe, PromptAttention::kHost)) << name;
  }
}

TEST(SimulatedWorkload, RefusesWhatCannotRun) {
  const Hardware hardware = HardwarePreset("none").value();
  const DescribedModel model = DescribedModel::FromConfig(kMixtral, "int8").value();
  const Workload workload = ParseWorkload("prompt=16,gen=4").value();
  EngineOptions options = OptionsFor({}, hardware, workload).value();
  const EnginePlan plan = PlanOn(hardware, options, model).value();
  const SimulationInputs inputs{.config = model.config(), .plan = plan, .num_threads = 1};
  EXPECT_EQ(FaultOf(SimulateWorkload(inputs, hardware, ParseWorkload("prompt=16,gen=400").value()).status()),
            Fault::kResources);
  Hardware no_disk = hardware;
  no_disk.links.clear();
  options.memory_bytes = uint64_t{16} << 30;
  const EnginePlan streaming = PlanOn(hardware, options, model).value();
  EXPECT_EQ(FaultOf(SimulateWorkload({.config = model.config(), .plan = streaming}, no_disk, workload).status()),
            Fault::kUsage);
  options.memory_bytes = uint64_t{1} << 28;
  EXPECT_EQ(FaultOf(PlanOn(hardware, options, model).status()), Fault::kResources);
  EXPECT_EQ(FaultOf(OptionsFor({.device = "gpu"}, hardware, workload).status()), Fault::kUsage);
  options = OptionsFor({}, hardware, workload).value();
  options.policy.schedule = ScheduleKind::kCgopipe;
  EXPECT_EQ(FaultOf(PlanOn(hardware, options, model).status()), Fault::kUsage);
}

}  // namespace
}  // namespace penstock
