// Proves that experts which are cut (--parallel experts=tp) give answers that depend on the number of ranks alone: not
// on schedules, budgets, batches, or on how attention is divided. The answers differ from those of one rank by
// rounding.
#include <cmath>

#include "penstock/memory/dense_weights.h"
#include "penstock/memory/expert_layouts.h"
#include "penstock/pack.h"
#include "penstock/plan/loaded_model.h"
#include "tests/engine/rank_runs.h"
#include "tests/environment.h"

namespace penstock {
namespace {

std::string PackedCopy(const std::string& model_dir, const std::string& quantize) {
  const std::string store = testing::TempDir() + "/cut-experts-" + std::to_string(::getpid());
  std::filesystem::remove_all(store);
  const absl::Status status =
      PackModel({.model_dir = model_dir, .output_dir = store, .quantize = quantize, .threads = 1}, nullptr, {});
  EXPECT_TRUE(status.ok()) << status;
  return store;
}

// Runs random combinations on `num_ranks` ranks, and returns the answers, which must all be equal.
std::vector<Answer> AnswersOfCutExperts(EngineOptions options, int num_ranks, const std::vector<Request>& requests,
                                        int num_combinations, Draw& draw) {
  const auto model = LoadModel(options.model_dir);
  EXPECT_TRUE(model.ok()) << model.status();
  const bool shares_heads = CheckCutsHeads((*model)->weights, (*model)->config, num_ranks).ok();
  options.policy.expert_parallel = ExpertParallel::kCut;
  std::vector<Answer> first;
  for (int i = 0; i < num_combinations && !testing::Test::HasFailure(); ++i) {
    std::vector<RankRun> runs = RandomRuns(options, num_ranks, shares_heads, requests.size(), draw);
    SCOPED_TRACE(Describe(runs));
    RunRanks(requests, runs);
    const std::vector<Answer> answers = AnswersOf(runs);
    if (first.empty()) first = answers;
    EXPECT_EQ(answers, first);
  }
  return first;
}

class CutExpertsTest : public testing::TestWithParam<std::string> {};

TEST_P(CutExpertsTest, AnswersDependOnTheNumberOfRanksOnly) {
  const Golden golden(GetParam());
  const std::vector<Request> requests = Requests(golden);
  EngineOptions options{
      .model_dir = PackedCopy(golden.dir(), "none"), .memory_bytes = 64 << 20, .threads = 1, .context_length = 192};
  Draw draw(FromEnvironment("PENSTOCK_TEST_SEED", 1));
  options.comm_dtype = CommFormat::kInt8;
  (void)AnswersOfCutExperts(options, 2, requests, 3, draw);
  options.comm_dtype = CommFormat::kF32;
  const std::vector<Answer> cut = AnswersOfCutExperts(options, 2, requests, 4, draw);
  const std::vector<Answer> whole = RunAll(options, requests);
  ASSERT_EQ(cut.size(), whole.size());
  for (size_t i = 0; i < cut.size(); ++i) {
    if (!whole[i].token_ids.empty()) {
      EXPECT_EQ(cut[i].token_ids[0], whole[i].token_ids[0]);
    }
    EXPECT_NEAR(cut[i].logprobs[0], whole[i].logprobs[0], golden.is_bf16() ? 0.05 : 1e-4);
  }
}

// The golden models whose experts have more than 32 columns: others cannot be cut.
INSTANTIATE_TEST_SUITE_P(Models, CutExpertsTest,
                         testing::Values("gemma4-published", "gptoss-odd", "mixtral-bf16", "mixtral-f16", "mixtral-odd",
                                         "mixtral-sliding", "mixtral-tiny", "phimoe-odd", "phimoe-tiny"),
                         GoldenName);

TEST(CutExperts, ExpertsThatReturnTheirInputAreNotCut) {
  std::vector<RankRun> runs(2);
  for (RankRun& run : runs) {
    run.options = {.model_dir = Golden("longcat-tiny").dir(), .memory_bytes = 64 << 20, .threads = 1};
    run.options.policy.expert_parallel = ExpertParallel::kCut;
  }
  RunRanks({}, runs);
  for (const RankRun& run : runs) {
    EXPECT_EQ(FaultOf(run.status), Fault::kUsage);
    EXPECT_THAT(Message(run.status), testing::HasSubstr("experts that return their input, which ranks do not cut"));
  }
}

// Codes of weights, parts of panels that are read one by one, and three ranks with unequal parts.
TEST(CutExperts, QuantisedExpertsAreCutBetweenGroups) {
  std::vector<Request> requests;
  for (TokenId first = 10; first < 16; ++first) {
    Request request{.prompt_ids = {first, first + 100, first + 7, 42, first}};
    request.sampling.max_tokens = 6;
    request.sampling.logprobs = 1;
    requests.push_back(request);
  }
  Draw draw(FromEnvironment("PENSTOCK_TEST_SEED", 1));
  for (const auto& [quantize, num_ranks, tolerance] : {std::tuple("none", 3, 1e-3), std::tuple("int8", 2, 0.05)}) {
    SCOPED_TRACE(quantize);
    EngineOptions options{.model_dir = PackedCopy(PENSTOCK_SOURCE_DIR "/models/penstock-demo", quantize),
                          .memory_bytes = 128 << 20,
                          .threads = 1,
                          .context_length = 64};
    const std::vector<Answer> cut = AnswersOfCutExperts(options, num_ranks, requests, 5, draw);
    const std::vector<Answer> whole = RunAll(options, requests);
    ASSERT_EQ(cut.size(), whole.size());
    for (size_t i = 0; i < cut.size(); ++i) EXPECT_NEAR(cut[i].logprobs[0], whole[i].logprobs[0], tolerance);
  }
}

// Rank 1 cannot read its part of some experts. Only the requests that want them fail.
TEST(CutExperts, APartThatCannotBeReadFailsTheRequestsThatWantIt) {
  const Golden golden("mixtral-tiny");
  const std::vector<Request> requests = Requests(golden);
  EngineOptions options{
      .model_dir = PackedCopy(golden.dir(), "none"), .memory_bytes = 64 << 20, .threads = 1, .context_length = 192};
  options.policy.expert_parallel = ExpertParallel::kCut;
  Draw draw(1);
  const std::vector<Answer> expected = AnswersOfCutExperts(options, 2, requests, 1, draw);
  options.memory_bytes = MinBudgetOfRank(options, 1, 2);
  RunWithFaults(options, 0.005, requests, expected);
}

TEST(CutExperts, CompressedExpertsAreRefused) {
  const std::string store = testing::TempDir() + "/cut-compressed-" + std::to_string(::getpid());
  const PackOptions pack = {
      .model_dir = Golden("mixtral-bf16").dir(), .output_dir = store, .compress = "bf16", .threads = 1};
  ASSERT_TRUE(PackModel(pack, nullptr, {}).ok());
  const absl::Status refused = CheckCutsExperts(LoadModel(store).value()->weights, 2);
  std::filesystem::remove_all(store);
  EXPECT_EQ(FaultOf(refused), Fault::kUsage);
  EXPECT_THAT(Message(refused), testing::HasSubstr("--compress none"));
}

TEST(CutExperts, ExpertsThatAreNotPackedAreRefused) {
  std::vector<RankRun> runs(2);
  for (RankRun& run : runs) {
    run.options = {.model_dir = Golden("mixtral-tiny").dir(), .memory_bytes = 64 << 20, .threads = 1};
    run.options.policy.expert_parallel = ExpertParallel::kCut;
  }
  RunRanks({}, runs);
  for (const RankRun& run : runs) {
    EXPECT_EQ(FaultOf(run.status), Fault::kUsage);
    EXPECT_THAT(Message(run.status), testing::HasSubstr("penstock pack"));
  }
}

}  // namespace
}  // namespace penstock
