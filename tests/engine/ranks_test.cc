// Proves that ranks which share the experts give the answers of one rank: the same tokens and log-probabilities, bit
// for bit. All golden models run with random schedules and placements of experts, and with budgets, batches and
// micro-batches of each rank. The ranks are threads of this process. PENSTOCK_TEST_RANK_COMBINATIONS (60) sets the
// number of combinations, PENSTOCK_TEST_SEED (1) their choice.
#include <filesystem>
#include <thread>

#include <unistd.h>

#include "penstock/engine/ranked_engine.h"
#include "penstock/memory/dense_weights.h"
#include "penstock/parallel/expert_placement.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/plan/loaded_model.h"
#include "tests/effort.h"
#include "tests/engine/rank_runs.h"
#include "tests/environment.h"

namespace penstock {
namespace {

class RanksTest : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { std::filesystem::remove(trace_path_); }

  const std::string trace_path_ = testing::TempDir() + "/ranks-test-" + std::to_string(::getpid());
};

TEST_P(RanksTest, RanksGiveTheBitsOfOneRank) {
  const Golden golden(GetParam());
  const std::vector<Request> requests = Requests(golden);
  EngineOptions base{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1, .context_length = 192};
  const auto model = LoadModel(golden.dir());
  ASSERT_TRUE(model.ok()) << model.status();
  std::map<CommFormat, std::vector<Answer>> expected;  // rounded outputs give other answers, on one rank, too
  const auto num_models = static_cast<int64_t>(Golden::DecoderOnlyVariants().size());
  const int64_t num_combinations =
      (FromEnvironment("PENSTOCK_TEST_RANK_COMBINATIONS", 60) + num_models - 1) / num_models;
  const uint64_t seed = FromEnvironment("PENSTOCK_TEST_SEED", 1);
  Draw draw(seed ^ std::hash<std::string>()(GetParam()));
  for (int64_t i = 0; i < num_combinations; ++i) {
    base.comm_dtype = draw.From({CommFormat::kF32, CommFormat::kF32, CommFormat::kBF16, CommFormat::kInt8});
    std::vector<Answer>& of_one_rank = expected[*base.comm_dtype];
    if (of_one_rank.empty()) of_one_rank = RunAll(base, requests);
    ASSERT_EQ(of_one_rank.size(), requests.size());
    const int num_ranks = draw.From({2, 2, 3, 4});
    base.policy.expert_placement = draw.From<std::string>({"", trace_path_, trace_path_});
    base.policy.expert_replicas = 0;
    if (!base.policy.expert_placement.empty()) {
      WriteRandomTrace(trace_path_, (*model)->config, draw);
      const int64_t max_replicas = ExpertPlacement::MaxReplicas((*model)->config, num_ranks);
      base.policy.expert_replicas = draw.From<int64_t>({0, 1, 1, 2, max_replicas});
      base.policy.expert_replicas = std::min(base.policy.expert_replicas, max_replicas);
    }
    const bool shares_heads = CheckCutsHeads((*model)->weights, (*model)->config, num_ranks).ok();
    std::vector<RankRun> runs = RandomRuns(base, num_ranks, shares_heads, requests.size(), draw);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << Describe(runs));
    RunRanks(requests, runs);
    EXPECT_EQ(AnswersOf(runs), of_one_rank);
    if (HasFailure()) return;
  }
}

// Rank 1 cannot read some of its experts. Only the requests that want them fail, also those of the other ranks. All
// other requests get their bits.
TEST(Ranks, AnExpertThatCannotBeReadFailsTheRequestsThatWantIt) {
  const Golden golden("mixtral-tiny");
  const std::vector<Request> requests = Requests(golden);
  EngineOptions options{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1, .context_length = 192};
  const std::vector<Answer> expected = RunAll(options, requests);
  options.policy.schedule = ScheduleKind::kKlotski;
  options.memory_bytes = MinBudgetOfRank(options, 1, 2);
  RunWithFaults(options, 0.02, requests, expected);
}

// Some requests then have the expert from rank 0.
TEST_F(RanksTest, AReplicaThatCannotBeReadFailsTheRequestsThatWantIt) {
  const Golden golden("mixtral-tiny");
  const std::vector<Request> requests = Requests(golden);
  EngineOptions options{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1, .context_length = 192};
  const std::vector<Answer> expected = RunAll(options, requests);
  const auto model = LoadModel(golden.dir());
  ASSERT_TRUE(model.ok()) << model.status();
  Draw draw(1);
  WriteRandomTrace(trace_path_, (*model)->config, draw);
  options.policy.expert_placement = trace_path_;
  options.policy.expert_replicas = 1;
  options.policy.schedule = ScheduleKind::kKlotski;
  options.memory_bytes = MinBudgetOfRank(options, 1, 2);
  RunWithFaults(options, 0.02, requests, expected);
}

TEST_F(RanksTest, ReplicasTakeMemory) {
  const Golden golden("mixtral-tiny");
  const auto model = LoadModel(golden.dir());
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& config = (*model)->config;
  Draw draw(1);
  WriteRandomTrace(trace_path_, config, draw);
  EngineOptions options;
  options.policy.expert_placement = trace_path_;
  EngineRoom room;
  room.budget_bytes = 64 << 20;
  room.ranks = {.rank = 1, .num_ranks = 2};
  for (options.policy.expert_replicas = 0; options.policy.expert_replicas <= 2; ++options.policy.expert_replicas) {
    const auto plan = PlanEngine(
        options, {.config = config, .weights = (*model)->weights, .files = (*model)->checkpoint.files()}, room);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const int64_t of_layer = config.num_experts / 2 + options.policy.expert_replicas;
    EXPECT_EQ(plan->policy.plan.experts_of_layer, of_layer);
    EXPECT_EQ(plan->policy.plan.num_experts_total, of_layer * config.num_moe_layers());
  }
}

TEST(Ranks, RanksWithDifferentModelsRefuseEachOther) {
  std::vector<RankRun> runs(2);
  for (size_t rank = 0; rank < runs.size(); ++rank) {
    const Golden golden(rank == 0 ? "mixtral-tiny" : "qwen3moe-tiny");
    runs[rank].options = {.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1};
  }
  RunRanks({}, runs);
  for (const RankRun& run : runs) {
    EXPECT_EQ(FaultOf(run.status), Fault::kUsage);
    EXPECT_THAT(Message(run.status), testing::HasSubstr("another model"));
  }
}

TEST_F(RanksTest, RanksWithDifferentPlacementsRefuseEachOther) {
  const Golden golden("mixtral-tiny");
  const auto model = LoadModel(golden.dir());
  ASSERT_TRUE(model.ok()) << model.status();
  Draw draw(1);
  WriteRandomTrace(trace_path_, (*model)->config, draw);
  std::vector<RankRun> runs(2);
  for (RankRun& run : runs) run.options = {.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1};
  runs[1].options.policy.expert_placement = trace_path_;
  RunRanks({}, runs);
  for (const RankRun& run : runs) {
    EXPECT_EQ(FaultOf(run.status), Fault::kUsage);
    EXPECT_THAT(Message(run.status), testing::HasSubstr("another placement of experts"));
  }
}

// Runs `num_ranks` ranks under a leader; `use` gets the engine that rank 0 opened.
template <typename Use>
void WithLeader(int num_ranks, const EngineOptions& options, const absl::StatusOr<EngineOptions>& of_others,
                const Use& use) {
  const auto communicators = MakeLocalCommunicators(num_ranks);
  std::vector<std::thread> others;
  for (int rank = 1; rank < num_ranks; ++rank) {
    others.emplace_back([&, rank] { (void)ServeRank(of_others, *communicators[rank]); });
  }
  {
    RankLeader leader(*communicators[0]);
    use(leader.Open(options));
  }
  for (std::thread& other : others) other.join();
}

TEST(RankedEngine, RequestsOfRankZeroAreAnsweredByAllRanks) {
  const Golden golden("qwen3moe-tiny");
  const std::vector<Request> requests = Requests(golden);
  const EngineOptions options{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1, .batch_size = 2};
  const std::vector<Answer> expected = RunAll(options, requests);
  WithLeader(3, options, options, [&](absl::StatusOr<std::unique_ptr<Engine>> engine) {
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_EQ((*engine)->memory_plan().batch_size, 6);
    EXPECT_EQ(FaultOf((*engine)->Submit({}).status()), Fault::kInput);
    std::map<RequestId, Answer> answers;
    for (const Request& request : requests) ASSERT_TRUE((*engine)->Submit(request).ok());
    const RequestId dropped = (*engine)->Submit(requests[0]).value();
    ASSERT_TRUE((*engine)->Step().ok());
    EXPECT_EQ((*engine)->num_running(), 6);  // two of each rank
    while (!(*engine)->idle()) {
      const auto finished = (*engine)->Step().value();
      for (const Completion& completion : finished) {
        EXPECT_TRUE(completion.status.ok()) << completion.status;
        answers[completion.request_id] = AnswerOf(completion);
      }
    }
    EXPECT_EQ(answers.at(dropped), expected[0]);
    answers.erase(dropped);
    std::vector<Answer> in_order;
    for (auto& [id, answer] : answers) in_order.push_back(answer);
    EXPECT_EQ(in_order, expected);
    int64_t num_tokens = static_cast<int64_t>(expected[0].token_ids.size());
    for (const Answer& answer : expected) num_tokens += std::ssize(answer.token_ids);
    EXPECT_EQ((*engine)->stats().generated_tokens, num_tokens);
  });
}

TEST(RankedEngine, APromptIsComputedOnceOnAllRanksTogether) {
  const Golden golden("qwen3moe-tiny");
  const EngineOptions options{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1, .batch_size = 4};
  WithLeader(2, options, options, [&](absl::StatusOr<std::unique_ptr<Engine>> engine) {
    ASSERT_TRUE(engine.ok()) << engine.status();
    const auto finish = [&] {
      while (!(*engine)->idle()) ASSERT_TRUE((*engine)->Step().ok());
    };
    constexpr int64_t kPrompt = 40;
    const auto prompt_of = [](TokenId question) {
      std::vector<TokenId> prompt(kPrompt);
      for (int64_t i = 0; i < kPrompt; ++i) prompt[i] = 3 + (question * 7 + static_cast<TokenId>(i)) % 80;
      return prompt;
    };
    for (TokenId question = 0; question < 6; ++question) {
      ASSERT_TRUE((*engine)->Submit(ScoringRequest(prompt_of(question), kPrompt, {5})).ok());
    }
    finish();
    for (TokenId question = 0; question < 6; ++question) {
      for (TokenId choice = 0; choice < 3; ++choice) {
        std::vector<TokenId> prompt = prompt_of(question);
        prompt.insert(prompt.end(), {10 + choice, 20});
        ASSERT_TRUE((*engine)->Submit(ScoringRequest(prompt, kPrompt + 1, {})).ok());
      }
    }
    finish();
    // Each prompt once, and one row of each choice of two tokens.
    EXPECT_EQ((*engine)->stats().computed_prompt_tokens, 6 * kPrompt + 6 * 3);
  });
}

TEST(RankedEngine, AllRanksTakeThePolicyOfRankZero) {
  const Golden golden("qwen3moe-tiny");
  const std::vector<Request> requests = Requests(golden);
  const EngineOptions options{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1};
  std::vector<std::unique_ptr<Communicator>> communicators = MakeLocalCommunicators(2, kEagerBytes);
  EngineOptions planned = options;
  planned.policy.schedule = ScheduleKind::kKlotski;
  planned.policy.attention_parallel = AttentionParallel::kHeads;
  planned.batch_size = 3;
  std::thread other([&] { (void)ServeRank(options, *communicators[1]); });
  {
    RankLeader leader(*communicators[0]);
    EXPECT_TRUE(leader.MeasureNetwork().ok());
    const absl::StatusOr<std::unique_ptr<Engine>> engine = leader.Open(planned, /*tells_policy=*/true);
    EXPECT_TRUE(engine.ok()) << engine.status();
    const MemoryPlan plan = engine.ok() ? (*engine)->memory_plan() : MemoryPlan();
    EXPECT_EQ(plan.schedule, ScheduleKind::kKlotski);
    EXPECT_TRUE(plan.shares_heads);
    EXPECT_EQ(plan.batch_size, 6);
  }
  other.join();
}

TEST(RankedEngine, AnotherRanksErrorIsToldWithItsRank) {
  const Golden golden("qwen3moe-tiny");
  const EngineOptions options{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1};
  EngineOptions missing = options;
  missing.model_dir += "/missing";
  WithLeader(2, options, missing, [&](absl::StatusOr<std::unique_ptr<Engine>> engine) {
    EXPECT_EQ(FaultOf(engine.status()), Fault::kModel);
    EXPECT_THAT(Message(engine.status()), testing::AllOf(testing::HasSubstr("rank 1"), testing::HasSubstr("missing")));
  });
}

// Under sanitizers a third of the models, unless a number of combinations is asked for.
std::vector<std::string> TriedModels() {
  std::vector<std::string> tried;
  const std::vector<std::string> all = Golden::DecoderOnlyVariants();
  const bool is_part = kSanitized && std::getenv("PENSTOCK_TEST_RANK_COMBINATIONS") == nullptr;
  for (size_t i = 0; i < all.size(); i += is_part ? 3 : 1) tried.push_back(all[i]);
  return tried;
}
INSTANTIATE_TEST_SUITE_P(Models, RanksTest, testing::ValuesIn(TriedModels()), GoldenName);

}  // namespace
}  // namespace penstock
