// Runs ranks in threads of one process, each with its share of the requests.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "penstock/base/status.h"
#include "penstock/model/model_config.h"
#include "penstock/parallel/communicator.h"
#include "penstock/plan/formats.h"
#include "penstock/plan/policy.h"
#include "penstock/routing/routing_trace.h"
#include "penstock/schedule/schedule.h"
#include "tests/choices.h"
#include "tests/draw.h"
#include "tests/engine/answers.h"
#include "tests/engine/faulty_disk.h"

namespace penstock {

// The run of one rank: its share of the requests.
struct RankRun {
  EngineOptions options;
  std::vector<size_t> request_idxs;
  std::map<size_t, Answer> answers;    // by the index of the request
  std::vector<absl::Status> failures;  // of requests
  absl::Status status;
  std::optional<Faults> faults = std::nullopt;  // of the rank's disk
};

inline void RunRank(Communicator& communicator, const std::vector<Request>& requests, RankRun& run) {
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
      run.answers[idx_of.at(completion.request_id)] = AnswerOf(completion);
    }
  } while ((*engine)->ranks_were_busy());
}

inline void RunRanks(const std::vector<Request>& requests, std::vector<RankRun>& runs) {
  const auto communicators = MakeLocalCommunicators(static_cast<int>(runs.size()), kEagerBytes);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < runs.size(); ++rank) {
    threads.emplace_back([&, rank] { RunRank(*communicators[rank], requests, runs[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Returns the answers of all ranks in the order of the requests.
inline std::vector<Answer> AnswersOf(const std::vector<RankRun>& runs) {
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
inline uint64_t MinBudgetOfRank(const EngineOptions& options, size_t rank, size_t num_ranks) {
  std::vector<RankRun> runs(num_ranks);
  for (RankRun& run : runs) run.options = options;
  runs[rank].options.memory_bytes = 1;
  RunRanks({}, runs);
  const std::string message = Message(runs[rank].status), what = "the least budget is ";
  const size_t pos = message.find(what);
  EXPECT_NE(pos, std::string::npos) << message;
  return pos == std::string::npos ? 0 : std::stoull(message.substr(pos + what.size()));
}

// Writes a trace of random choices, of which some experts get many more than others.
inline void WriteRandomTrace(const std::string& path, const ModelConfig& config, Draw& draw) {
  constexpr uint32_t kNumRows = 40;
  std::filesystem::remove(path);
  const auto writer = RoutingTraceWriter::Create(path, {.model = "random",
                                                        .num_layers = config.num_moe_layers(),
                                                        .num_experts = config.num_experts,
                                                        .num_topk = config.num_topk})
                          .value();
  std::vector<uint32_t> rows(kNumRows);
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t layer_idx = 0; layer_idx < config.num_moe_layers(); ++layer_idx) {
    const uint64_t first = draw.Below(static_cast<uint64_t>(config.num_experts));
    std::vector<int32_t> choices;
    for (uint32_t row = 0; row < kNumRows; ++row) {
      // Neighbouring experts from one on that is near `first`.
      const uint64_t begin = first + draw.Below(1 + draw.Below(static_cast<uint64_t>(config.num_experts)));
      for (int64_t k = 0; k < config.num_topk; ++k) {
        choices.push_back(static_cast<int32_t>((static_cast<int64_t>(begin) + k) % config.num_experts));
      }
    }
    ASSERT_TRUE(
        writer
            ->Append(
                {.step_idx = 0, .layer_idx = layer_idx, .sequence_ids = rows, .positions = rows, .topk_idx = choices})
            .ok());
  }
  ASSERT_TRUE(writer->Close().ok());
}

// Returns the runs of `num_ranks` ranks with one schedule; each has its own budget, batch and requests.
inline std::vector<RankRun> RandomRuns(const EngineOptions& base, int num_ranks, bool shares_heads, size_t num_requests,
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
  if (shares_heads)
    options.policy.attention_parallel = draw.From({AttentionParallel::kSequences, AttentionParallel::kHeads});
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

inline std::string Describe(const std::vector<RankRun>& runs) {
  std::string text = fmt::format(
      "comm {}, attention {}, schedule {}, multi-batch {}, micro-batch {}, expert groups {}, "
      "{} experts, {} replicas",
      ChoiceName(runs[0].options.comm_dtype, CommFormats()),
      ChoiceName(runs[0].options.policy.attention_parallel, AttentionParallels()),
      ChoiceName(runs[0].options.policy.schedule, Schedules()), runs[0].options.policy.multi_batch,
      runs[0].options.policy.micro_batch_size, runs[0].options.policy.expert_groups,
      runs[0].options.policy.expert_placement.empty() ? "neighbouring" : "placed",
      runs[0].options.policy.expert_replicas);
  for (const RankRun& run : runs) {
    text +=
        fmt::format("; memory {} threads {} batch {} chunk {} requests {}", run.options.memory_bytes,
                    run.options.threads, run.options.batch_size, run.options.prefill_chunk, run.request_idxs.size());
  }
  return text;
}

// Runs the requests eight times on two ranks, of which rank 1 cannot read some experts. Only requests that want these
// may fail, and some of rank 0 do; all others must get their expected answers.
inline void RunWithFaults(const EngineOptions& options, double failed_reads, const std::vector<Request>& requests,
                          const std::vector<Answer>& expected) {
  size_t num_answered = 0, num_failed = 0, num_failed_elsewhere = 0;
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::vector<RankRun> runs(2);
    for (RankRun& run : runs) run.options = options;
    runs[1].faults = {.failed_reads = failed_reads, .seed = seed};
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

}  // namespace penstock
