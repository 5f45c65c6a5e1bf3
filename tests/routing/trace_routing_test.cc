// Proves that the choices of a recorded run come back step by step and row by row, also in another order. The same
// holds for scores and guesses where they were recorded. Incomplete steps are left out. Traces of other models and
// damaged traces are refused. Choices are counted.
#include "penstock/routing/trace_routing.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <unistd.h>

#include "penstock/base/file.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

using testing::ElementsAre;

class TraceRoutingTest : public testing::Test {
 protected:
  void SetUp() override {
    config_.num_layers = 3;
    config_.num_experts = 8;
    config_.num_topk = 2;
    config_.layer_has_experts = {true, false, true};
    path_ = testing::TempDir() + "/trace-routing-" + std::to_string(::getpid());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  struct Record {
    int64_t step_idx, layer_idx;
    std::vector<uint32_t> sequence_ids, positions;
    std::vector<int32_t> topk_idx;
  };
  void Write(const std::vector<Record>& records, int64_t num_layers = 2) {
    std::filesystem::remove(path_);
    const auto writer =
        RoutingTraceWriter::Create(path_, {.model = "m", .num_layers = num_layers, .num_experts = 8, .num_topk = 2})
            .value();
    for (const Record& r : records) {
      ASSERT_TRUE(writer
                      ->Append({.step_idx = r.step_idx,
                                .layer_idx = r.layer_idx,
                                .sequence_ids = r.sequence_ids,
                                .positions = r.positions,
                                .topk_idx = r.topk_idx})
                      .ok());
    }
    ASSERT_TRUE(writer->Close().ok());
  }

  ModelConfig config_;
  std::string path_;
};

TEST_F(TraceRoutingTest, GivesEveryStepsChoices) {
  Write({{0, 0, {4, 5}, {0, 7}, {0, 1, 2, 3}},
         {0, 1, {4, 5}, {0, 7}, {4, 5, 6, 7}},
         {2, 0, {9}, {1}, {5, 0}},
         {2, 1, {9}, {1}, {1, 2}}});
  const auto trace = TraceRouting::Open(path_, config_).value();
  ASSERT_TRUE(trace->NextStep().value());
  EXPECT_EQ(trace->step_idx(), 0);
  EXPECT_THAT(trace->sequence_ids(), ElementsAre(4, 5));
  EXPECT_THAT(trace->Choices(0, 0, 2), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(trace->Choices(2, 1, 1), ElementsAre(6, 7));
  EXPECT_TRUE(trace->Scores(0, 0, 2).empty());
  EXPECT_TRUE(trace->ChoicesAhead(0, 1, 0, 2).empty());
  const std::vector<size_t> order = {1, 0};
  trace->Reorder(order);
  EXPECT_THAT(trace->positions(), ElementsAre(7, 0));
  EXPECT_THAT(trace->Choices(0, 0, 2), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(trace->Choices(2, 0, 1), ElementsAre(6, 7));
  ASSERT_TRUE(trace->NextStep().value());
  EXPECT_EQ(trace->step_idx(), 2);
  EXPECT_THAT(trace->Choices(2, 0, 1), ElementsAre(1, 2));
  EXPECT_FALSE(trace->NextStep().value());
}

TEST_F(TraceRoutingTest, GivesScoresAndWhatGatesWouldHaveChosen) {
  std::filesystem::remove(path_);
  const auto writer =
      RoutingTraceWriter::Create(
          path_, {.model = "m", .num_layers = 2, .num_experts = 8, .num_topk = 2, .num_ranked = 3, .num_ahead = 3})
          .value();
  const std::vector<uint32_t> ids = {4, 5}, positions = {0, 7};
  for (int64_t layer_idx = 0; layer_idx < 2; ++layer_idx) {
    ASSERT_TRUE(writer
                    ->Append({.step_idx = 0,
                              .layer_idx = layer_idx,
                              .sequence_ids = ids,
                              .positions = positions,
                              .topk_idx = std::vector<int32_t>{0, 1, 2, 3},
                              .ranked_idx = std::vector<int32_t>{1, 0, 6, 3, 2, 7},
                              .ranked_scores = std::vector<float>{0.5f, 0.25f, 0.125f, 0.4f, 0.3f, 0.2f},
                              .ahead_idx = layer_idx == 0 ? std::vector<int32_t>{5, 4, 7, 6} : std::vector<int32_t>{}})
                    .ok());
  }
  ASSERT_TRUE(writer->Close().ok());
  const auto trace = TraceRouting::Open(path_, config_).value();
  ASSERT_TRUE(trace->NextStep().value());
  EXPECT_THAT(trace->Scores(0, 0, 1), ElementsAre(0.25f, 0.5f, 0, 0, 0, 0, 0.125f, 0));
  EXPECT_THAT(trace->ChoicesAhead(0, 1, 0, 2), ElementsAre(5, 4, 7, 6));
  EXPECT_TRUE(trace->ChoicesAhead(0, 2, 0, 2).empty());  // only one layer follows
  EXPECT_TRUE(trace->ChoicesAhead(2, 1, 0, 2).empty());
  const std::vector<size_t> order = {1, 0};
  trace->Reorder(order);
  EXPECT_THAT(trace->Scores(0, 1, 1), ElementsAre(0.25f, 0.5f, 0, 0, 0, 0, 0.125f, 0));
  EXPECT_THAT(trace->Scores(2, 0, 1), ElementsAre(0, 0, 0.3f, 0.4f, 0, 0, 0, 0.2f));
  EXPECT_THAT(trace->ChoicesAhead(0, 1, 1, 1), ElementsAre(5, 4));
}

TEST_F(TraceRoutingTest, GivesTokensInTheOrderOfTheRows) {
  std::filesystem::remove(path_);
  const RoutingTraceHeader header = {.model = "m",
                                     .num_layers = 2,
                                     .num_experts = 8,
                                     .num_topk = 2,
                                     .vocab_size = 10,
                                     .fingerprint = std::string(kTraceFingerprintBytes, 'a')};
  const auto writer = RoutingTraceWriter::Create(path_, header).value();
  const std::vector<uint32_t> ids = {4, 5}, positions = {0, 7};
  for (int64_t layer_idx = 0; layer_idx < 2; ++layer_idx) {
    ASSERT_TRUE(writer
                    ->Append({.step_idx = 0,
                              .layer_idx = layer_idx,
                              .sequence_ids = ids,
                              .positions = positions,
                              .topk_idx = std::vector<int32_t>{0, 1, 2, 3},
                              .token_ids = layer_idx == 0 ? std::vector<TokenId>{8, 9} : std::vector<TokenId>{}})
                    .ok());
  }
  ASSERT_TRUE(writer->Close().ok());
  const auto trace = TraceRouting::Open(path_, config_).value();
  EXPECT_EQ(trace->header().fingerprint, header.fingerprint);
  ASSERT_TRUE(trace->NextStep().value());
  EXPECT_THAT(trace->token_ids(), ElementsAre(8, 9));
  const std::vector<size_t> order = {1, 0};
  trace->Reorder(order);
  EXPECT_THAT(trace->token_ids(), ElementsAre(9, 8));
}

TEST_F(TraceRoutingTest, LeavesOutStepsThatAreNotWhole) {
  Write({{0, 1, {4}, {0}, {4, 5}}, {1, 0, {4}, {1}, {1, 2}}, {2, 0, {4}, {2}, {3, 4}}, {2, 1, {4}, {2}, {5, 6}}});
  const auto trace = TraceRouting::Open(path_, config_).value();
  ASSERT_TRUE(trace->NextStep().value());
  EXPECT_EQ(trace->step_idx(), 2);
  EXPECT_THAT(trace->Choices(0, 0, 1), ElementsAre(3, 4));
  EXPECT_FALSE(trace->NextStep().value());
}

TEST_F(TraceRoutingTest, CountsTheChoicesOfAllRecords) {
  Write({{0, 1, {4}, {0}, {4, 5}}, {1, 0, {4, 5}, {1, 1}, {1, 2, 2, 7}}, {2, 0, {4}, {2}, {3, 2}}});
  EXPECT_THAT(TraceRouting::CountChoices(path_, config_).value(),
              ElementsAre(ElementsAre(0, 1, 3, 1, 0, 0, 0, 1), ElementsAre(0, 0, 0, 0, 1, 1, 0, 0)));
  Write({});
  EXPECT_EQ(FaultOf(TraceRouting::CountChoices(path_, config_).status()), Fault::kInput);
}

TEST_F(TraceRoutingTest, RefusesWhatIsNotThisModels) {
  Write({}, /*num_layers=*/3);
  EXPECT_EQ(FaultOf(TraceRouting::Open(path_, config_).status()), Fault::kInput);
  EXPECT_EQ(FaultOf(TraceRouting::Open(path_ + ".missing", config_).status()), Fault::kIo);
  Write({{0, 0, {4}, {0}, {0, 1}}, {0, 1, {4}, {0}, {4, 5}}});
  std::string bytes = ReadFile(path_, 1 << 20).value();
  bytes[bytes.size() - 60] ^= 1;
  std::ofstream(path_, std::ios::binary) << bytes;
  const auto trace = TraceRouting::Open(path_, config_).value();
  EXPECT_EQ(FaultOf(trace->NextStep().status()), Fault::kInput);
}

}  // namespace
}  // namespace penstock
