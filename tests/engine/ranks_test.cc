// Proves that ranks which share the experts give the answers of one rank: the same tokens and log-probabilities, bit
// for bit, for every golden model and random schedules, budgets, batches and micro-batches of each rank. The ranks are
// threads of this process. PENSTOCK_TEST_RANK_COMBINATIONS (60) sets the number of combinations, PENSTOCK_TEST_SEED (1)
// their choice.
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "penstock/base/status.h"
#include "penstock/parallel/communicator.h"
#include "penstock/schedule/schedule.h"
#include "tests/choices.h"
#include "tests/draw.h"
#include "tests/engine/answers.h"
#include "tests/environment.h"

namespace penstock {
namespace {

// The run of one rank: its share of the requests.
struct RankRun {
  EngineOptions options;
  std::vector<size_t> request_idxs;
  std::map<size_t, Answer> answers;  // by the index of the request
  absl::Status status;
};

void RunRank(Communicator& communicator, const std::vector<Request>& requests, RankRun& run) {
  const EngineHooks hooks{.communicator = &communicator};
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
      run.status.Update(completion.status);
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
    all.insert(run.answers.begin(), run.answers.end());
  }
  std::vector<Answer> answers;
  for (auto& [idx, answer] : all) answers.push_back(answer);
  return answers;
}

// Returns the runs of `num_ranks` ranks with one schedule; each has its own budget, batch and requests.
std::vector<RankRun> RandomRuns(const EngineOptions& base, int num_ranks, size_t num_requests, Draw& draw) {
  std::vector<ScheduleKind> schedules;
  for (const ScheduleTraits& schedule : Schedules()) {
    if (!schedule.attends_on_host) schedules.push_back(schedule.value);
  }
  EngineOptions options = base;
  options.policy.schedule = schedules[draw.Below(schedules.size())];
  options.policy.multi_batch = draw.From({true, true, false});
  options.policy.micro_batch_size = draw.From<int64_t>({0, 1, 2, 4});
  std::vector<RankRun> runs(static_cast<size_t>(num_ranks));
  for (RankRun& run : runs) {
    run.options = options;
    run.options.threads = draw.From({1, 2});
    run.options.batch_size = draw.From<int64_t>({0, 1, 3, 64});
    run.options.prefill_chunk = draw.From<int64_t>({0, 1, 7, 40});
    // From little memory, where most experts stream, to room for all of the rank's experts.
    const uint64_t min = MinBudget(run.options);
    run.options.memory_bytes = draw.From<uint64_t>({2 * min, 3 * min, base.memory_bytes});
  }
  for (size_t idx = 0; idx < num_requests; ++idx) runs[draw.Below(runs.size())].request_idxs.push_back(idx);
  return runs;
}

std::string Describe(const std::vector<RankRun>& runs) {
  std::string text = fmt::format("schedule {}, multi-batch {}, micro-batch {}",
                                 ChoiceName(runs[0].options.policy.schedule, Schedules()),
                                 runs[0].options.policy.multi_batch, runs[0].options.policy.micro_batch_size);
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
  const EngineOptions base{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1, .context_length = 192};
  const std::vector<Answer> expected = RunAll(base, requests);
  ASSERT_EQ(expected.size(), requests.size());
  const auto num_models = static_cast<int64_t>(Golden::Variants().size());
  const int64_t num_combinations =
      (FromEnvironment("PENSTOCK_TEST_RANK_COMBINATIONS", 60) + num_models - 1) / num_models;
  const uint64_t seed = FromEnvironment("PENSTOCK_TEST_SEED", 1);
  Draw draw(seed ^ std::hash<std::string>()(GetParam()));
  for (int64_t i = 0; i < num_combinations; ++i) {
    std::vector<RankRun> runs = RandomRuns(base, draw.From({2, 2, 3, 4}), requests.size(), draw);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << Describe(runs));
    RunRanks(requests, runs);
    EXPECT_EQ(AnswersOf(runs), expected);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RanksTest, testing::ValuesIn(Golden::Variants()), [](const auto& param) {
  std::string name = param.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace penstock
