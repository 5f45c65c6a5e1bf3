// Proves that a recorded run shows the accuracy of its gates and the experts that it wanted. Options can be made with
// room for a share of the experts, on the host and on a device. Engines find the winners kept for their model, even in
// a damaged file.
#include "penstock/measure/routing_study.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/memory/belady.h"
#include "penstock/plan/described_model.h"
#include "penstock/simulate/simulated_run.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

class RoutingStudyTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/routing-study-" + std::to_string(::getpid());
    std::filesystem::create_directories(dir_);
    ::setenv("XDG_CACHE_HOME", dir_.c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  EngineOptions Options() const {
    EngineOptions options{.model_dir = golden_.dir(), .memory_bytes = uint64_t{256} << 20, .threads = 1};
    options.batch_size = 3;
    options.prefill_chunk = 64;
    options.context_length = 192;
    options.policy.schedule = ScheduleKind::kHybrid;
    return options;
  }

  std::string dir_;
  const Golden golden_{"qwen3moe-tiny"};
};

TEST_F(RoutingStudyTest, ReadsWhatARunRecorded) {
  EngineOptions options = Options();
  options.routing_path = dir_ + "/routing";
  options.routing_scores = true;
  RunAll(options, Requests(golden_));  // closed by its destructor, so without its end
  const DescribedModel model = DescribedModel::FromFolder(golden_.dir()).value();
  const ModelConfig& config = model.config();
  const EnginePlan plan = PlanEngine(options, model.engine_model(), RoomOf(options).value()).value();
  const TraceFacts facts = ReadTraceFacts(options.routing_path, config, *plan.layouts).value();
  EXPECT_TRUE(facts.has_scores);
  EXPECT_GT(facts.num_steps, 10);
  EXPECT_GT(facts.num_rows, facts.num_steps);
  EXPECT_EQ(facts.max_sequences, 3);
  EXPECT_GE(std::ssize(facts.wanted), facts.num_steps * config.num_moe_layers() * config.num_topk);
  ASSERT_GE(config.num_moe_layers(), 2);
  for (int64_t ahead = 1; ahead <= kMaxAhead; ++ahead) {
    const TraceFacts::Guesses& guesses = facts.gates[ahead - 1];
    const int64_t num_layers = std::max<int64_t>(0, config.num_moe_layers() - ahead);
    EXPECT_EQ(guesses.num_chosen, num_layers * facts.num_rows * config.num_topk);
    EXPECT_LE(guesses.num_right, guesses.num_chosen);
  }
  // Residual streams of a random model change little from layer to layer, so the guesses are better than chance.
  EXPECT_GT(facts.gates[0].accuracy(), static_cast<double>(config.num_topk) / static_cast<double>(config.num_experts));
  const int64_t everything = config.num_experts * config.num_moe_layers();
  EXPECT_GT(BeladyHits(facts.wanted, everything), BeladyHits(facts.wanted, everything / 4));
}

TEST_F(RoutingStudyTest, MakesRoomForAShareOfTheExperts) {
  const DescribedModel model = DescribedModel::FromFolder(golden_.dir()).value();
  for (const char* device : {"cpu", "emulated"}) {
    for (const double share : {0.01, 0.75, 1.0}) {
      SCOPED_TRACE(fmt::format("{} {}", device, share));
      EngineOptions options = Options();
      options.device = device;
      options = OptionsWithRoom(options, model.engine_model(), share).value();
      const auto engine = Engine::Open(options).value();
      const MemoryPlan& plan = engine->memory_plan();
      const bool has_device = !plan.device.name.empty();
      const int64_t num_slots = has_device ? plan.device.num_expert_slots : plan.num_expert_slots;
      EXPECT_EQ(num_slots, std::max<int64_t>(std::llround(share * static_cast<double>(plan.num_experts_total)),
                                             MinStreamingSlots(ScheduleKind::kHybrid, model.config().num_experts)));
    }
  }
  EngineOptions open = Options();
  open.prefill_chunk = 0;
  EXPECT_EQ(FaultOf(OptionsWithRoom(open, model.engine_model(), 0.5).status()), Fault::kUsage);
}

TEST_F(RoutingStudyTest, EnginesFindTheWinnersOfTheirModel) {
  const DescribedModel model = DescribedModel::FromFolder(golden_.dir()).value();
  const EngineOptions options = OptionsWithRoom(Options(), model.engine_model(), 0.5).value();
  const auto before = Engine::Open(options).value();
  const std::string fingerprint = before->model().fingerprint;
  EXPECT_EQ(before->memory_plan().eviction, Eviction::kMrs);
  EXPECT_FALSE(FindWinner(fingerprint, false, 0.5).has_value());

  KeepWinners(fingerprint, false,
              {{0.25, Eviction::kLru, PredictorKind::kNone}, {0.75, Eviction::kFifo, PredictorKind::kHistory}});
  KeepWinners(fingerprint, false, {{0.6, Eviction::kLfu, PredictorKind::kSequence}});
  KeepWinners(fingerprint, false, {{0.25, Eviction::kFifo, PredictorKind::kGate}});  // replaces the first winner
  EXPECT_FALSE(FindWinner(fingerprint, true, 0.5).has_value());
  EXPECT_FALSE(FindWinner("another", false, 0.5).has_value());
  EXPECT_EQ(FindWinner(fingerprint, false, 0.1)->eviction, Eviction::kFifo);
  EXPECT_EQ(FindWinner(fingerprint, false, 0.1)->predictor, PredictorKind::kGate);
  EXPECT_EQ(FindWinner(fingerprint, false, 0.9)->predictor, PredictorKind::kHistory);

  EXPECT_EQ(Engine::Open(options).value()->memory_plan().eviction, Eviction::kLfu);
  EngineOptions asked = options;
  asked.policy.eviction = Eviction::kLru;
  EXPECT_EQ(Engine::Open(asked).value()->memory_plan().eviction, Eviction::kLru);
  asked = options;
  asked.policy.predictor = PredictorKind::kNone;
  EXPECT_EQ(Engine::Open(asked).value()->memory_plan().eviction, Eviction::kMrs);

  for (const char* damage : {"", "{", R"({"winners": 3})", R"({"identity": {}, "content": {}})",
                             R"([{"share": 0.5, "eviction": "best", "predictor": "none"}])"}) {
    for (const auto& file : std::filesystem::directory_iterator(dir_ + "/penstock")) {
      std::ofstream(file.path()) << damage;
    }
    EXPECT_FALSE(FindWinner(fingerprint, false, 0.5).has_value()) << damage;
    EXPECT_EQ(Engine::Open(options).value()->memory_plan().eviction, Eviction::kMrs);
  }
}

}  // namespace
}  // namespace penstock
