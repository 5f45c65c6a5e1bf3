// Proves that a recorded run can be simulated on a probed machine. Every step gets a time, the same in each simulation.
// It is no shorter than the disk needs, and longer on a slower disk. Traces of other models and missing rates are
// refused.
#include <filesystem>

#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/engine/instrumented_engine.h"
#include "penstock/measure/probe.h"
#include "penstock/simulate/simulated_run.h"
#include "tests/choices.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

class SimulationTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/simulation-" + std::to_string(::getpid());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string dir_;
};

TEST_F(SimulationTest, GivesATimeForEveryStep) {
  const Golden golden("mixtral-tiny");
  const DescribedModel model = DescribedModel::FromFolder(golden.dir()).value();
  const Hardware probed = Probe({.options = {.threads = 1}, .model = &model, .seconds = 0.5}).value();
  const GemmRates& gemm = *probed.processors.at(0).FindGemm("f32", Arithmetic::kF32, 1);
  ASSERT_EQ(gemm.points.size(), 9u);
  for (const GemmPoint& point : gemm.points) EXPECT_GT(point.seconds_per_byte, 0);
  EXPECT_GT(probed.processors[0].FindAttention("f32", 1)->bytes_per_s, 0);
  ASSERT_EQ(probed.links.at(0).rates.size(), 9u);
  for (const char* schedule : {"on-demand", "zero", "zigzag", "klotski"}) {
    SCOPED_TRACE(schedule);
    EngineOptions options{.model_dir = golden.dir(), .threads = 1};
    options.batch_size = 3;
    options.context_length = 192;
    options.policy.schedule = ScheduleCalled(schedule);
    options.routing_path = dir_ + "/" + schedule;
    options.memory_bytes = MinBudget(options) + (64 << 10);
    const auto engine = OpenInstrumentedEngine(options, {}).value();
    for (const Request& request : Requests(golden)) ASSERT_TRUE(engine->Submit(request).ok());
    int64_t num_steps = 0;
    for (; !engine->idle(); ++num_steps) ASSERT_TRUE(engine->Step().ok());
    ASSERT_TRUE(engine->CloseTraces().ok());
    const uint64_t disk_bytes = engine->stats().disk_bytes;

    Hardware hardware = probed;
    hardware.links[0].SetRate(1e7);
    const std::vector<double> steps =
        SimulateTrace(engine->simulation_inputs(), hardware, options.routing_path).value().step_s;
    ASSERT_EQ(std::ssize(steps), num_steps);
    double sum = 0;
    for (const double seconds : steps) {
      EXPECT_GT(seconds, 0);
      sum += seconds;
    }
    // The order of arrival differs from run to run, and so do the experts in slots when they are wanted.
    EXPECT_GT(sum, 0.7 * static_cast<double>(disk_bytes) / 1e7);
    EXPECT_EQ(SimulateTrace(engine->simulation_inputs(), hardware, options.routing_path).value().step_s, steps);
    hardware.links[0].SetRate(1e6);
    double slower = 0;
    const std::vector<double> slower_steps =
        SimulateTrace(engine->simulation_inputs(), hardware, options.routing_path).value().step_s;
    for (const double seconds : slower_steps) slower += seconds;
    EXPECT_GT(slower, sum);
    EXPECT_GT(slower, 0.7 * static_cast<double>(disk_bytes) / 1e6);
    hardware.processors[0].attention.clear();
    hardware.processors[0].peaks.clear();
    EXPECT_EQ(FaultOf(SimulateTrace(engine->simulation_inputs(), hardware, options.routing_path).status()),
              Fault::kUsage);
  }
}

}  // namespace
}  // namespace penstock
