// Proves that a CUDA device gives the host's answers, bit for bit. Whole generations run on every golden model, and on
// the demo model in quantised formats. The schedules compute layers on the device, attend on either side, and share
// experts with the host. The device's memory stays within --gpu-memory. All bytes that cross the link are page-locked;
// where pages cannot be locked, two hops give the same answers. A failing device reports it. CUDA's runtime and the
// kernels run on the host's threads (testing/cuda/).
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <set>
#include <span>

#include <gmock/gmock.h>
#include <unistd.h>

#include "penstock/device/device.h"
#include "penstock/kernels/cuda/stream.h"
#include "penstock/measure/kernel_probe.h"
#include "penstock/pack.h"
#include "penstock/plan/described_model.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/schedule/schedule.h"
#include "tests/engine/answers.h"
#include "tests/temporary_folder.h"

namespace penstock {
namespace {

#ifdef PENSTOCK_EMULATED_SIMT
using cuda::emulated::Machine;
using cuda::emulated::TheMachine;
#endif

constexpr uint64_t kGpuBytes = 32 << 20;  // enough for everything

struct Setting {
  ScheduleKind schedule;
  std::optional<KvTier> kv_tier;
  KvFormat kv;
  std::optional<PromptAttention> prompt_attention = std::nullopt;
};
constexpr Setting kSettings[] = {{ScheduleKind::kOnDemand, std::nullopt, KvFormat::kInt8},
                                 {ScheduleKind::kZero, KvTier::kDevice, KvFormat::kF32},
                                 {ScheduleKind::kCgopipe, std::nullopt, KvFormat::kBF16},
                                 {ScheduleKind::kCgopipe, std::nullopt, KvFormat::kInt8, PromptAttention::kHost},
                                 {ScheduleKind::kHybrid, std::nullopt, KvFormat::kBF16}};

EngineOptions OptionsOf(const std::string& model_dir, const Setting& setting) {
  return {.model_dir = model_dir,
          .memory_bytes = 64 << 20,
          .kv_dtype = setting.kv,
          .device = "cuda",
          .device_memory_bytes = kGpuBytes,
          .threads = 1,
          .batch_size = 2,
          .context_length = 192,
          .policy = {
              .schedule = setting.schedule, .kv_tier = setting.kv_tier, .prompt_attention = setting.prompt_attention}};
}

std::vector<Answer> OfTheHost(EngineOptions options, const std::vector<Request>& requests) {
  options.device = "cpu";
  options.device_memory_bytes = 0;
  options.policy = {.schedule = ScheduleKind::kOnDemand};
  return RunAll(options, requests);
}

std::vector<Request> FewRequests(const Golden& golden) {
  std::vector<Request> requests = Requests(golden);
  requests.resize(2);
  return requests;
}

void ExpectTheHostsAnswers(const std::string& model_dir, const std::vector<Request>& requests,
                           std::span<const Setting> settings = kSettings) {
  for (const Setting& setting : settings) {
    SCOPED_TRACE(TraitsOf(setting.schedule).name);
    EngineOptions options = OptionsOf(model_dir, setting);
    const std::vector<Answer> expected = OfTheHost(options, requests);
    const DevicePlan plan = Engine::Open(options).value()->memory_plan().device;
    // Half of the experts stream.
    options.device_memory_bytes =
        plan.fixed_bytes + plan.dense_bytes + plan.kv_bytes + plan.activation_bytes + plan.expert_bytes / 2;
#ifdef PENSTOCK_EMULATED_SIMT
    cuda::emulated::Reset();
#endif
    EXPECT_EQ(RunAll(options, requests), expected);
#ifdef PENSTOCK_EMULATED_SIMT
    EXPECT_EQ(TheMachine().used_bytes, 0u);
    EXPECT_GT(TheMachine().max_used_bytes, options.device_memory_bytes / 2);
    EXPECT_LE(TheMachine().max_used_bytes, options.device_memory_bytes);
    EXPECT_EQ(TheMachine().num_pageable_copies, 0);
    // The only synchronisations are those of three streams at their end.
    EXPECT_EQ(TheMachine().num_synchronisations, 3);
#endif
  }
}

class CudaDeviceTest : public testing::TestWithParam<std::string> {};

TEST_P(CudaDeviceTest, AnswersAreTheHosts) {
  const Golden golden(GetParam());
  const DescribedModel model = DescribedModel::FromFolder(golden.dir()).value();
  const EngineOptions options = OptionsOf(golden.dir(), kSettings[0]);
  const absl::Status computed =
      CheckComputedOnGpus(options.device, model.config(), model.weights(), ComputeDtype::kF32);
  if (!computed.ok()) {
    const auto engine = Engine::Open(options);
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(Message(engine.status()), Message(computed));
    EXPECT_THAT(Message(computed), testing::HasSubstr("GPUs"));
    return;
  }
  // Emulation is slow, so the models take turns with the settings. Each setting sees some models of each kind.
  const std::vector<std::string> variants = Golden::Variants();
  const auto place = std::ranges::find(variants, GetParam()) - variants.begin();
  for (const int64_t turn : {place, place + 2}) {
    ExpectTheHostsAnswers(golden.dir(), FewRequests(golden), std::span(kSettings).subspan(turn % 5, 1));
  }
}

TEST(CudaDevice, QuantisedAnswersAreTheHosts) {
  const Golden golden("qwen3moe-tiny");
  for (const std::string format : {"int8", "hqq4", "hqq3", "hqq2", "ternary", "mixed"}) {
    SCOPED_TRACE(format);
    const std::string folder = testing::TempDir() + "/cuda-device-" + format + "-" + std::to_string(::getpid());
    const std::atomic<bool> stop{false};
    PackOptions options{.model_dir = golden.dir(), .output_dir = folder};
    if (format == "mixed") {
      options.bits = 12.4;  // with the padding of small matrices; the least is 12.28
    } else {
      options.quantize = format;
    }
    const absl::Status packed = PackModel(
        options, [](const PackProgress&) {}, stop);
    ASSERT_TRUE(packed.ok()) << packed;
    if (format == "mixed") {
      std::set<WeightFormat> formats;
      const auto model = LoadModel(folder).value();
      for (const FfnTensors& expert : model->weights.layers[0].experts) formats.insert(*expert.down_proj->packed);
      EXPECT_GT(formats.size(), 1u);
    }
    ExpectTheHostsAnswers(folder, FewRequests(golden));
    std::filesystem::remove_all(folder);
  }
}

TEST(CudaDevice, Bf16IsClose) {
  const Golden golden("mixtral-bf16");
  EngineOptions options = OptionsOf(golden.dir(), kSettings[0]);
  options.dtype = ComputeDtype::kBF16;
  std::vector<TokenId> ids;
  for (TokenId id = 3; id < 60; ++id) ids.push_back(id);
  const std::vector<double> found = Engine::Open(options).value()->ScoreTokens(ids).value();
  options.device = "cpu";
  options.device_memory_bytes = 0;
  const std::vector<double> expected = Engine::Open(options).value()->ScoreTokens(ids).value();
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 0.02) << i;
}

// The KV cache lies on the device, so pages pass through the host's memory on their way to files and back.
TEST(CudaDevice, EntriesComeFromFiles) {
  const Golden golden("olmoe-tiny");
  const TemporaryFolder folder;
  EngineOptions options = OptionsOf(golden.dir(), kSettings[1]);
  const std::vector<Request> requests = {
      {.prompt_ids = DrawTokens(50, 1), .sampling = {.temperature = 0, .max_tokens = 4, .logprobs = 1}}};
  const std::vector<Answer> expected = OfTheHost(options, requests);
  options.prefix_dir = folder.path();
  for (const int64_t loaded : {0, 48}) {
    const auto engine = Engine::Open(options).value();
    ASSERT_TRUE(engine->Submit(requests[0]).ok());
    std::vector<Completion> finished;
    while (finished.empty()) finished = engine->Step().value();
    EXPECT_EQ(AnswerOf(finished[0]), expected[0]);
    EXPECT_EQ(engine->stats().prefix_dir.loaded_tokens, loaded);
  }
}

// Prompts that begin alike go on from copies of recurrent states, which kernels make between two rows.
TEST(CudaDevice, StatesAreKeptWherePromptsPart) {
  for (const std::string name : {"qwen3next-tiny", "jamba-tiny", "lfm2moe-odd", "minimax-tiny"}) {
    SCOPED_TRACE(name);
    const Golden golden(name);
    std::vector<Request> requests;
    for (uint32_t i = 0; i < 4; ++i) {
      std::vector<TokenId> prompt = DrawTokens(40, 1);
      for (const TokenId id : DrawTokens(21, 2 + i / 2)) prompt.push_back(id);
      prompt.push_back(static_cast<TokenId>(5 + i));
      requests.push_back({.prompt_ids = prompt, .sampling = {.temperature = 0, .max_tokens = 4, .logprobs = 1}});
    }
    const EngineOptions options = OptionsOf(golden.dir(), kSettings[1]);
    const std::vector<Answer> expected = OfTheHost(options, requests);
    const auto engine = Engine::Open(options).value();
    for (size_t i = 0; i < requests.size(); ++i) {  // one after another: all others know what the first have kept
      ASSERT_TRUE(engine->Submit(requests[i]).ok());
      std::vector<Completion> finished;
      while (finished.empty()) finished = engine->Step().value();
      EXPECT_EQ(AnswerOf(finished[0]), expected[i]) << i;
    }
    EXPECT_EQ(engine->stats().prompt_tokens, 4 * 62);
    EXPECT_LE(engine->stats().computed_prompt_tokens, 3 * 62);
  }
}

#ifdef PENSTOCK_EMULATED_SIMT
TEST(CudaDevice, WherePagesCannotBeLockedTwoHopsBringTheSame) {
  const Golden golden("olmoe-tiny");
  const EngineOptions options = OptionsOf(golden.dir(), kSettings[3]);
  const std::vector<Answer> expected = OfTheHost(options, FewRequests(golden));
  TheMachine() = Machine{.refuses_page_locking = true};
  EXPECT_EQ(RunAll(options, FewRequests(golden)), expected);
  EXPECT_GT(TheMachine().num_pageable_copies, 0);
  cuda::emulated::Reset();
}

TEST(CudaDevice, WhatFailsThereEndsTheRunWithOneLine) {
  const Golden golden("olmoe-tiny");
  for (const int64_t copy : {5, 40, 120}) {
    SCOPED_TRACE(copy);
    cuda::emulated::Reset();
    TheMachine().fails_at_copy = copy;
    auto engine = Engine::Open(OptionsOf(golden.dir(), kSettings[0]));
    absl::Status status = engine.status();
    if (engine.ok()) {
      ASSERT_TRUE((*engine)->Submit(Requests(golden)[0]).ok());
      while (status.ok() && !(*engine)->idle()) status = (*engine)->Step().status();
      EXPECT_EQ((*engine)->Step().status(), status);  // every later step fails, too
    }
    EXPECT_GE(TheMachine().num_copies, copy);
    EXPECT_NE(Message(status).find("illegal memory access"), std::string::npos) << status;
    EXPECT_EQ(ExitCodeOf(status), 1);
    engine = absl::CancelledError();
    cuda::emulated::Reset();
  }
}

TEST(CudaDevice, AGpuWhoseBlocksAreTooSmallForStatesSaysSo) {
  const Golden golden("qwen3next-tiny");
  TheMachine() = Machine{.shared_bytes = 256};
  const auto engine = Engine::Open(OptionsOf(golden.dir(), kSettings[0]));
  cuda::emulated::Reset();
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(ExitCodeOf(engine.status()), 6);
  EXPECT_THAT(Message(engine.status()),
              testing::HasSubstr("of shared memory, and emulated GPU has 256 B; use --device cpu"));
}

TEST(CudaDevice, AGpuThatHasLessThanItsBudgetSaysSo) {
  const Golden golden("olmoe-tiny");
  TheMachine() = Machine{.memory_bytes = 1 << 20};
  const auto engine = Engine::Open(OptionsOf(golden.dir(), kSettings[0]));
  cuda::emulated::Reset();
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(ExitCodeOf(engine.status()), 6);
  EXPECT_NE(Message(engine.status()).find("less --gpu-memory"), std::string::npos) << engine.status();
}

TEST(CudaDevice, IsChosenAndItsMemoryIsMostOfWhatIsFree) {
  const Golden golden("olmoe-tiny");
  TheMachine() = Machine{.memory_bytes = 40 << 20};
  EngineOptions options = OptionsOf(golden.dir(), kSettings[0]);
  options.device = "auto";
  options.device_memory_bytes = 0;
  auto engine = Engine::Open(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->memory_plan().device.name, "cuda:0");
  EXPECT_EQ((*engine)->memory_plan().device.budget_bytes, (40u << 20) / 10 * 9);
  *engine = nullptr;
  cuda::emulated::Reset();
  EXPECT_EQ(ExitCodeOf(ParseDevice("cuda:1").status()), 6);
}

// Measures the rates that the planner needs to know of a GPU.
TEST(CudaDevice, ItsKernelsAreMeasured) {
  cuda::emulated::Reset();
  const DeviceSpec spec = ParseDevice("cuda").value().value();
  const ModelConfig config = DescribedModel::FromFolder(Golden("olmoe-tiny").dir()).value().config();
  const auto device = MakeCudaDevice(spec, CudaWorkspaceOf(config, 192, kGpuBytes), kGpuBytes).value();
  RealRuntime runtime;
  ASSERT_TRUE(device->AddLanes(runtime).ok());
  const MeasuredProcessor measured = MeasureDevice(*device);
  Arena slots;
  const GemmRates rates = MeasureGemm({.config = config,
                                       .kernels = kernels::KernelsFor(kernels::Isa::kScalar),
                                       .processor = measured,
                                       .max_bytes = 1 << 20,
                                       .seconds = 0},
                                      WeightFormat::kInt8, ComputeDtype::kF32, ActivationFormat::kInt8, slots)
                              .value();
  EXPECT_EQ(rates.arithmetic, Arithmetic::kInt8);
  EXPECT_EQ(rates.points.size(), 12u);
  EXPECT_GT(rates.Seconds(1e6, 1e6), 0);
}
#endif

// Logits stay on the device when a request needs only the best token.
TEST(CudaDevice, PicksTheBestAndUsesAShareOfItsProcessors) {
  const Golden golden("qwen3moe-tiny");
  EngineOptions options = OptionsOf(golden.dir(), kSettings[0]);
  std::vector<Request> requests = FewRequests(golden);
  const auto run = [&](const std::string& device, int logprobs) {
    options.device = device;
    options.device_memory_bytes = device == "cpu" ? 0 : kGpuBytes;
    for (Request& request : requests) {
      request.sampling.temperature = 0;
      request.sampling.logprobs = logprobs;
    }
    auto engine = Engine::Open(options).value();
    std::map<RequestId, std::vector<TokenId>> tokens;
    for (const Request& request : requests) EXPECT_TRUE(engine->Submit(request).ok());
    while (!engine->idle()) {
      const std::vector<Completion> finished = engine->Step().value();
      for (const Completion& completion : finished) tokens[completion.request_id] = completion.token_ids;
    }
    return std::pair(tokens, engine->stats().device_to_dram_bytes);
  };
  const auto [expected, none] = run("cpu", -1);
  const auto [best, best_bytes] = run("cuda:0,share=0.5", -1);
  const auto [with_logprobs, logit_bytes] = run("cuda:0,share=0.01", 0);
  EXPECT_EQ(best, expected);
  EXPECT_EQ(with_logprobs, expected);
  EXPECT_LT(best_bytes, logit_bytes);
}

TEST(CudaDevice, IsMeasured) {
  const Golden golden("olmoe-tiny");
  auto engine = Engine::Open(OptionsOf(golden.dir(), kSettings[3])).value();
  const MachineRates rates = engine->MeasureRates();
  EXPECT_GT(rates.compute.ops_per_s, 0);
  EXPECT_GT(rates.link_bytes_per_s, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaDeviceTest, testing::ValuesIn(Golden::Variants()), GoldenName);

}  // namespace
}  // namespace penstock
