// Proves what each predictor promises. The guesses of gate and oracle are those of the routing source. The correlation
// table and the history learn repetitions. A sequence is expected to continue like the earlier sequence most similar to
// it. No predictor speaks of layers that do not exist or of choices never seen.
#include "penstock/routing/expert_predictor.h"
#include "penstock/base/choices.h"

#include <numeric>

#include <gmock/gmock.h>

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

constexpr int64_t kNumExperts = 6;
constexpr int64_t kNumTopk = 2;

// A sequence of kind c chooses experts c and c + 1 in the first layer with experts, and each later layer shifts them by
// one.
class KindRouting : public RoutingSource {
 public:
  explicit KindRouting(std::vector<int> kinds) : kinds_(std::move(kinds)) {}
  std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) override {
    choices_.clear();
    for (int64_t row = first_row; row < first_row + num_rows; ++row) {
      for (int64_t k = 0; k < kNumTopk; ++k) {
        choices_.push_back(static_cast<int32_t>((kinds_[row] + layer_idx + k) % kNumExperts));
      }
    }
    return choices_;
  }
  std::span<const int32_t> ChoicesAhead(int64_t layer_idx, int64_t ahead, int64_t first_row,
                                        int64_t num_rows) override {
    return Choices(layer_idx + ahead, first_row, num_rows);
  }

 private:
  std::vector<int> kinds_;
  std::vector<int32_t> choices_;
};

// The second layer of the model has no experts.
const ExpertPredictor::Args kArgs = {.layers = {0, 2, 3, 4}, .num_experts = kNumExperts, .num_topk = kNumTopk};

void ObserveLayer(ExpertPredictor& predictor, RoutingSource& routing, int64_t layer_idx,
                  const std::vector<uint32_t>& sequence_ids) {
  const std::span<const int32_t> found = routing.Choices(layer_idx, 0, std::ssize(sequence_ids));
  const std::vector<int32_t> choices(found.begin(), found.end());
  predictor.Observe(
      {.layer_idx = layer_idx, .sequence_ids = sequence_ids, .choices = choices, .scores = {}, .routing = &routing});
}

void ObservePass(ExpertPredictor& predictor, RoutingSource& routing, const std::vector<uint32_t>& sequence_ids) {
  for (const int64_t layer_idx : kArgs.layers) ObserveLayer(predictor, routing, layer_idx, sequence_ids);
}

std::vector<float> RowsOf(RoutingSource& routing, int64_t layer_idx, int64_t num_rows) {
  std::vector<float> rows(kNumExperts);
  for (const int32_t expert_idx : routing.Choices(layer_idx, 0, num_rows)) rows[expert_idx] += 1;
  return rows;
}

TEST(ExpertPredictorTest, EveryNameIsKnown) {
  for (const PredictorTraits& predictor : Predictors()) {
    EXPECT_EQ(ParseChoice("predictor", predictor.name, Predictors()).value(), predictor.value);
    EXPECT_EQ(&TraitsOf(predictor.value), &predictor);
  }
  EXPECT_FALSE(ParseChoice("predictor", "crystal ball", Predictors()).ok());
  EXPECT_EQ(TraitsOf(PredictorKind::kNone).make(kArgs), nullptr);
}

TEST(ExpertPredictorTest, TheGateAndTheOracleAskTheRoutingSource) {
  KindRouting routing({0, 1, 1});
  const auto gate = TraitsOf(PredictorKind::kGate).make(kArgs), oracle = TraitsOf(PredictorKind::kOracle).make(kArgs);
  for (ExpertPredictor* predictor : {gate.get(), oracle.get()}) ObserveLayer(*predictor, routing, 2, {1, 2, 3});
  // One layer after layer 2 is layer 3, which is also the next layer with experts.
  for (const int64_t ahead : {1, 2}) {
    EXPECT_THAT(gate->ExpectedRows(ahead), ElementsAreArray(RowsOf(routing, 2 + ahead, 3)));
    EXPECT_THAT(oracle->ExpectedRows(ahead), ElementsAreArray(RowsOf(routing, 2 + ahead, 3)));
  }
  EXPECT_THAT(gate->ExpectedRows(3), IsEmpty());
  EXPECT_THAT(oracle->ExpectedRows(3), IsEmpty());
  RoutingSource* const source = &routing;
  EXPECT_THAT(source->Scores(0, 0, 1), IsEmpty());
}

TEST(ExpertPredictorTest, TheCorrelationTableLearnsWhatFollows) {
  const auto predictor = TraitsOf(PredictorKind::kCorrelation).make(kArgs);
  KindRouting zero({0}), three({3});
  for (int pass = 0; pass < 3; ++pass) {
    ObservePass(*predictor, zero, {1});
    ObservePass(*predictor, three, {1});
  }
  ObserveLayer(*predictor, zero, 0, {1});
  EXPECT_THAT(predictor->ExpectedRows(1), ElementsAreArray(RowsOf(zero, 2, 1)));
  ObserveLayer(*predictor, zero, 2, {1});
  ObserveLayer(*predictor, zero, 3, {1});
  ObserveLayer(*predictor, zero, 4, {1});
  EXPECT_THAT(predictor->ExpectedRows(1), IsEmpty());  // nothing is known of the next token
}

TEST(ExpertPredictorTest, HistoryRemembersWhatWasRecentAndTheNextPass) {
  const auto predictor = TraitsOf(PredictorKind::kHistory).make(kArgs);
  KindRouting zero({0}), three({3});
  ObserveLayer(*predictor, zero, 0, {1});
  EXPECT_THAT(predictor->ExpectedRows(1), IsEmpty());
  for (const int64_t layer_idx : {2, 3, 4}) ObserveLayer(*predictor, zero, layer_idx, {1});
  EXPECT_THAT(predictor->ExpectedRows(1), ElementsAreArray(RowsOf(zero, 0, 1)));  // expectations for the next pass
  ObservePass(*predictor, three, {1});
  const std::span<const float> expected = predictor->ExpectedRows(1);
  // The last choices count twice as much: two thirds and one third.
  EXPECT_NEAR(expected[3], 2.0 / 3, 1e-6);
  EXPECT_NEAR(expected[0], 1.0 / 3, 1e-6);
  EXPECT_EQ(expected[2], 0);
}

TEST(ExpertPredictorTest, HistoryPrefersScoresToChoices) {
  const auto predictor = TraitsOf(PredictorKind::kHistory).make(kArgs);
  const std::vector<uint32_t> ids = {1};
  const std::vector<int32_t> choices = {0, 1};
  const std::vector<float> scores = {0.4f, 0.3f, 0.2f, 0.1f, 0, 0};
  for (const int64_t layer_idx : kArgs.layers) {
    predictor->Observe({.layer_idx = layer_idx, .sequence_ids = ids, .choices = choices, .scores = scores});
  }
  const std::span<const float> expected = predictor->ExpectedRows(1);
  EXPECT_NEAR(expected[0], 0.8, 1e-6);
  EXPECT_NEAR(expected[2], 0.4, 1e-6);
}

TEST(ExpertPredictorTest, ASequenceGoesOnAsTheOneMostLikeIt) {
  const auto predictor = TraitsOf(PredictorKind::kSequence).make(kArgs);
  KindRouting zero({0}), three({3}), both({0, 3});
  ObserveLayer(*predictor, zero, 0, {1});
  EXPECT_THAT(predictor->ExpectedRows(1), IsEmpty());  // no sequence has ended
  for (const int64_t layer_idx : {2, 3, 4}) ObserveLayer(*predictor, zero, layer_idx, {1});
  ObservePass(*predictor, three, {2});
  ObservePass(*predictor, three, {3});  // both of the first two have ended
  ObserveLayer(*predictor, zero, 0, {4});
  EXPECT_THAT(predictor->ExpectedRows(1), ElementsAreArray(RowsOf(zero, 2, 1)));
  EXPECT_THAT(predictor->ExpectedRows(2), ElementsAreArray(RowsOf(zero, 3, 1)));
  ObserveLayer(*predictor, both, 0, {5, 6});
  EXPECT_THAT(predictor->ExpectedRows(1), ElementsAreArray(RowsOf(both, 2, 2)));
}

}  // namespace
}  // namespace penstock
