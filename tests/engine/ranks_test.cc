// Proves that ranks which share the experts give the answers of one rank: the same tokens and log-probabilities, bit
// for bit. All golden models run with random schedules, and with budgets, batches and micro-batches of each rank. The
// ranks are threads of this process. PENSTOCK_TEST_RANK_COMBINATIONS (60) sets the number of combinations,
// PENSTOCK_TEST_SEED (1) their choice.
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "penstock/base/status.h"
#include "penstock/engine/ranked_engine.h"
#include "penstock/parallel/communicator.h"
#include "penstock/parallel/head_split.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/plan/policy.h"
#include "penstock/schedule/schedule.h"
#include "tests/choices.h"
#include "tests/draw.h"
#include "tests/engine/answers.h"
#include "tests/engine/faulty_disk.h"
#include "tests/environment.h"

namespace penstock {
namespace {

// The run of one rank: its share of the requests.
struct RankRun {
  EngineOptions options;
  std::vector<size_t> request_idxs;
  std::map<size_t, Answer> answers;    // by the index of the request
  std::vector<absl::Status> failures;  // of requests
  absl::Status status;
  std::optional<Faults> faults = std::nullopt;  // of the rank's disk
};

void RunRank(Communicator& communicator, const std::vector<Request>& requests, RankRun& run) {
  EngineHooks hooks{.communicator = &communicator};
  if (run.faults.has_value()) {
    hooks.wrap_disk = [&](std::unique_ptr<DiskReader> disk) {
      return std::make_unique<FaultyDisk>(std::move(disk), *run.faults);
    };
  }
  auto engine = OpenInstrumentedEngine(run.options, hooks);
  run.status = engine.status();
  if (!engine.ok()) return communicator.Abort(run.status);
  std::map<RequestId, size_t> idx_of;
  for (const size_t idx : run.request_idxs) idx_of[(*engine)->Submit(requests[idx]).value()] = idx;
  do {
    const auto finished = (*engine)->Step();
    run.status = finished.status();
    if (!finished.ok()) return;
    for (const Completion& completion : *finished) {
      if (!completion.status.ok()) {
        run.failures.push_back(completion.status);
        continue;
      }
      Answer& answer = run.answers[idx_of.at(completion.request_id)];
      answer.token_ids = completion.token_ids;
      for (const TokenLogprobs& entry : completion.logprobs) answer.logprobs.push_back(entry.chosen.logprob);
    }
  } while ((*engine)->ranks_were_busy());
}

void RunRanks(const std::vector<Request>& requests, std::vector<RankRun>& runs) {
  const auto communicators = MakeLocalCommunicators(static_cast<int>(runs.size()));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < runs.size(); ++rank) {
    threads.emplace_back([&, rank] { RunRank(*communicators[rank], requests, runs[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Returns the answers of all ranks in the order of the requests.
std::vector<Answer> AnswersOf(const std::vector<RankRun>& runs) {
  std::map<size_t, Answer> all;
  for (const RankRun& run : runs) {
    EXPECT_TRUE(run.status.ok()) << run.status;
    EXPECT_THAT(run.failures, testing::IsEmpty());
    all.insert(run.answers.begin(), run.answers.end());
  }
  std::vector<Answer> answers;
  for (auto& [idx, answer] : all) answers.push_back(answer);
  return answers;
}

// Returns the least budget of a rank, as its refusal states it.
uint64_t MinBudgetOfRank(const EngineOptions& options, size_t rank, size_t num_ranks) {
  std::vector<RankRun> runs(num_ranks);
  for (RankRun& run : runs) run.options = options;
  runs[rank].options.memory_bytes = 1;
  RunRanks({}, runs);
  const std::string message = Message(runs[rank].status), what = "the least budget is ";
  const size_t pos = message.find(what);
  EXPECT_NE(pos, std::string::npos) << message;
  return pos == std::string::npos ? 0 : std::stoull(message.substr(pos + what.size()));
}

// Returns the runs of `num_ranks` ranks with one schedule; each has its own budget, batch and requests.
std::vector<RankRun> RandomRuns(const EngineOptions& base, int num_ranks, bool shares_heads, size_t num_requests,
                                Draw& draw) {
  std::vector<std::optional<ScheduleKind>> schedules = {std::nullopt};  // then the engine chooses
  for (const ScheduleTraits& schedule : Schedules()) {
    if (!schedule.attends_on_host) schedules.emplace_back(schedule.value);
  }
  EngineOptions options = base;
  options.policy.schedule = schedules[draw.Below(schedules.size())];
  options.policy.multi_batch = draw.From({true, true, false});
  options.policy.micro_batch_size = draw.From<int64_t>({0, 1, 2, 4});
  options.policy.expert_groups = draw.From<int64_t>({0, 0, 1, 2, 3, 9});
  if (shares_heads) options.policy.attention_split = draw.From({AttentionSplit::kSequences, AttentionSplit::kHeads});
  std::vector<RankRun> runs(static_cast<size_t>(num_ranks));
  for (size_t rank = 0; rank < runs.size(); ++rank) {
    RankRun& run = runs[rank];
    run.options = options;
    run.options.threads = draw.From({1, 2});
    run.options.batch_size = draw.From<int64_t>({0, 1, 3, 64});
    run.options.prefill_chunk = draw.From<int64_t>({0, 1, 7, 40});
    // From the least memory, where most experts stream, to room for all of the rank's experts.
    const uint64_t min = MinBudgetOfRank(run.options, rank, runs.size());
    run.options.memory_bytes = draw.From<uint64_t>({min, min + 300'000, base.memory_bytes});
  }
  for (size_t idx = 0; idx < num_requests; ++idx) runs[draw.Below(runs.size())].request_idxs.push_back(idx);
  return runs;
}

std::string Describe(const std::vector<RankRun>& runs) {
  std::string text =
      fmt::format("comm {}, attention {}, schedule {}, multi-batch {}, micro-batch {}, expert groups {}",
                  ChoiceName(runs[0].options.comm_dtype, CommFormats()),
                  ChoiceName(runs[0].options.policy.attention_split, AttentionSplits()),
                  ChoiceName(runs[0].options.policy.schedule, Schedules()), runs[0].options.policy.multi_batch,
                  runs[0].options.policy.micro_batch_size, runs[0].options.policy.expert_groups);
  for (const RankRun& run : runs) {
    text +=
        fmt::format("; memory {} threads {} batch {} chunk {} requests {}", run.options.memory_bytes,
                    run.options.threads, run.options.batch_size, run.options.prefill_chunk, run.request_idxs.size());
  }
  return text;
}

class RanksTest : public testing::TestWithParam<std::string> {};

TEST_P(RanksTest, RanksGiveTheBitsOfOneRank) {
  const Golden golden(GetParam());
  const std::vector<Request> requests = Requests(golden);
  EngineOptions base{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1, .context_length = 192};
  const auto model = LoadModel(golden.dir());
  ASSERT_TRUE(model.ok()) << model.status();
  std::map<CommFormat, std::vector<Answer>> expected;  // rounded outputs give other answers, on one rank, too
  const auto num_models = static_cast<int64_t>(Golden::Variants().size());
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
    const bool shares_heads = CheckSharesHeads((*model)->config, num_ranks).ok();
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
  size_t num_answered = 0, num_failed = 0, num_failed_elsewhere = 0;
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::vector<RankRun> runs(2);
    for (RankRun& run : runs) run.options = options;
    runs[1].faults = {.failed_reads = 0.02, .seed = seed};
    for (size_t idx = 0; idx < requests.size(); ++idx) runs[idx % 2].request_idxs.push_back(idx);
    RunRanks(requests, runs);
    for (const RankRun& run : runs) {
      EXPECT_TRUE(run.status.ok()) << run.status;
      for (const auto& [idx, answer] : run.answers) EXPECT_EQ(answer, expected[idx]);
      for (const absl::Status& failure : run.failures) {
        EXPECT_EQ(FaultOf(failure), Fault::kIo);
        EXPECT_THAT(Message(failure), testing::HasSubstr("injected"));
      }
      num_answered += run.answers.size();
      num_failed += run.failures.size();
    }
    num_failed_elsewhere += runs[0].failures.size();
  }
  EXPECT_EQ(num_answered + num_failed, 8 * requests.size());
  EXPECT_GT(num_answered, 0);
  EXPECT_GT(num_failed_elsewhere, 0);
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
        Answer& answer = answers[completion.request_id];
        answer.token_ids = completion.token_ids;
        for (const TokenLogprobs& entry : completion.logprobs) answer.logprobs.push_back(entry.chosen.logprob);
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

INSTANTIATE_TEST_SUITE_P(Models, RanksTest, testing::ValuesIn(Golden::Variants()), GoldenName);

}  // namespace
}  // namespace penstock
