// Proves that a device spec is understood or refused in one line, and that schedules that need a device say so. The
// least size of its memory is accepted, and one byte less is not. Bytes that cross its links are counted.
#include "penstock/device/device_spec.h"
#include "tests/choices.h"

#include "penstock/base/status.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

TEST(DeviceSpec, IsParsed) {
  EXPECT_FALSE(ParseDevice("cpu").value().has_value());
  EXPECT_EQ(ParseDevice("emulated").value()->num_threads, 1);
  const DeviceSpec device = ParseDevice("emulated:threads=3,link=1.5GB/s").value().value();
  EXPECT_EQ(device.num_threads, 3);
  EXPECT_EQ(device.link_bytes_per_s, 1.5e9);
  for (const char* text : {"",
                           "emulated:",
                           "emulated:link=4GB",
                           "emulated:link=GB/s",
                           "emulated:threads=0",
                           "emulated:threads=2,",
                           "emulated:threads=2x",
                           "emulatedx",
                           "tpu",
                           "emulated:link=4GB/s,,",
                           "cuda:",
                           "cuda:x",
                           "cuda:-1",
                           "cuda:1x",
                           "cudax",
                           "cuda0",
                           "cuda:0,",
                           "cuda:0,share=0",
                           "cuda:0,share=2",
                           "cuda:0,share=x"}) {
    EXPECT_EQ(FaultOf(ParseDevice(text).status()), Fault::kUsage) << text;
  }
  EXPECT_EQ(FaultOf(ParseDevice("cuda:99").status()), Fault::kResources);
}

class DeviceTest : public testing::Test {
 protected:
  EngineOptions Options(const std::string& schedule) const {
    EngineOptions options{.model_dir = golden_.dir(), .memory_bytes = 64 << 20};
    options.context_length = 192;
    options.policy.schedule = ScheduleCalled(schedule);
    return options;
  }
  Golden golden_{"olmoe-tiny"};
};

TEST_F(DeviceTest, SchedulesThatNeedOneSaySo) {
  for (const char* schedule : {"cgopipe", "fastdecode", "zigzag-cpu-attention"}) {
    const auto refused = Engine::Open(Options(schedule));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(ExitCodeOf(refused.status()), 2);
    EXPECT_NE(refused.status().message().find("--device cuda or emulated"), std::string::npos) << refused.status();
  }
}

TEST_F(DeviceTest, WhatDoesNotGoTogetherIsRefused) {
  EngineOptions no_memory = Options("auto");
  no_memory.device = "emulated";
  EXPECT_EQ(ExitCodeOf(Engine::Open(no_memory).status()), 2);
  EngineOptions no_device = Options("auto");
  no_device.device_memory_bytes = 1 << 20;
  EXPECT_EQ(ExitCodeOf(Engine::Open(no_device).status()), 2);
  EngineOptions no_tier = Options("auto");
  no_tier.policy.kv_tier = KvTier::kDevice;
  EXPECT_EQ(ExitCodeOf(Engine::Open(no_tier).status()), 2);
  EngineOptions host_attends = Options("cgopipe");
  host_attends.device = "emulated";
  host_attends.device_memory_bytes = 64 << 20;
  host_attends.policy.kv_tier = KvTier::kDevice;
  EXPECT_EQ(ExitCodeOf(Engine::Open(host_attends).status()), 2);
  EngineOptions device_attends = Options("zigzag");
  device_attends.device = "emulated";
  device_attends.device_memory_bytes = 64 << 20;
  device_attends.policy.prompt_attention = PromptAttention::kDevice;
  EXPECT_EQ(ExitCodeOf(Engine::Open(device_attends).status()), 2);
}

TEST_F(DeviceTest, LeastMemoryIsExactAndLinksAreCounted) {
  const std::vector<Request> requests = Requests(golden_);
  const std::vector<Answer> expected = RunAll(Options("auto"), requests);
  for (const ScheduleTraits& schedule : Schedules()) {
    SCOPED_TRACE(schedule.name);
    EngineOptions options = Options(std::string(schedule.name));
    options.device = "emulated:link=1GB/s";
    const uint64_t min = MinDeviceMemory(options);
    options.device_memory_bytes = min - 1;
    EXPECT_EQ(ExitCodeOf(Engine::Open(options).status()), 6);
    options.device_memory_bytes = min;
    EXPECT_EQ(RunAll(options, requests), expected);
    const auto engine = Engine::Open(options).value();
    const DevicePlan& plan = engine->memory_plan().device;
    EXPECT_LE(plan.dense_bytes + plan.kv_bytes + plan.activation_bytes + plan.expert_bytes, min);
    ASSERT_TRUE(engine->Submit(requests[0]).ok());
    while (!engine->idle()) ASSERT_TRUE(engine->Step().ok());
    // Fewer experts cross the link where the host computes some of them.
    EXPECT_GT(engine->stats().dram_to_device_bytes, plan.host_computes_experts ? 0 : plan.expert_bytes / 2);
    EXPECT_GT(engine->stats().device_to_dram_bytes, 0u);
    EXPECT_EQ(engine->stats().lanes.size(), 7u);
  }
}

}  // namespace
}  // namespace penstock
