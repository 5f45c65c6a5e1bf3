// Proves that the predictor `sida` names the experts of all layers before the first one is routed, that each sequence
// goes on where it was, in whatever passes its tokens come, that a gap or a step back begins it anew, that its memory
// is bounded (the sequence absent longest is forgotten first), and that prompts can be worked on ahead.
#include "penstock/routing/sida_predictor.h"

#include <cmath>
#include <numeric>
#include <string>

#include <gmock/gmock.h>

#include "penstock/kernels/kernels.h"

namespace penstock {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

const std::string kNetworkPath = std::string(PENSTOCK_SOURCE_DIR) + "/tests/routing/sida/network.safetensors";
constexpr int64_t kLayers = 3, kExperts = 5;  // of the network

// Rows of a pass: sequence, position, token.
struct TokenRow {
  uint32_t sequence_id;
  int64_t pos;
  TokenId token_id;
};

class SidaPredictorTest : public testing::Test {
 protected:
  std::unique_ptr<ExpertPredictor> MakePredictor(int64_t max_sequences = 8) {
    return MakeSidaPredictor({.layers = {0, 2, 3},  // the second layer of the model has no experts
                              .num_experts = kExperts,
                              .num_topk = 2,
                              .max_bytes = static_cast<uint64_t>(max_sequences) * network_->shape().state_bytes(),
                              .network = network_,
                              .max_ahead = 2});
  }

  static void Begin(ExpertPredictor& predictor, const std::vector<TokenRow>& rows) {
    WithTokens(rows, [&](const PassTokens& tokens) { predictor.BeginPass(tokens); });
  }

  static void WithTokens(const std::vector<TokenRow>& rows, absl::FunctionRef<void(const PassTokens&)> use) {
    std::vector<uint32_t> ids;
    std::vector<int64_t> positions;
    std::vector<TokenId> tokens;
    for (const TokenRow& row : rows) {
      ids.push_back(row.sequence_id);
      positions.push_back(row.pos);
      tokens.push_back(row.token_id);
    }
    use({.sequence_ids = ids, .positions = positions, .token_ids = tokens});
  }

  // Names rows that come later. The work is done before or after the memory for the rows is gone.
  static ExpertPredictor::Work PrepareAhead(ExpertPredictor& predictor, const std::vector<TokenRow>& rows) {
    ExpertPredictor::Work work;
    WithTokens(rows, [&](const PassTokens& tokens) { work = predictor.Prepare(tokens, /*ahead=*/true); });
    return work;
  }

  // Returns the network's logits for each of the tokens.
  std::vector<std::vector<float>> LogitsOf(const std::vector<TokenId>& tokens) const {
    std::vector<std::vector<float>> all;
    SidaNetwork::State state = network_->NewState();
    SidaNetwork::Scratch scratch = network_->NewScratch(kernels::KernelsFor(kernels::BestIsa()));
    network_->Run(tokens, 1, state, scratch,
                  [&](size_t, std::span<const float> logits) { all.emplace_back(logits.begin(), logits.end()); });
    return all;
  }

  // Returns the expectations of a layer for the tokens from `first` on.
  std::vector<float> SumOf(const std::vector<TokenId>& tokens, size_t first, size_t place) {
    std::vector<float> sum(kExperts);
    for (size_t end = first + 1; end <= tokens.size(); ++end) {
      const std::vector<float> of_token = Alone({tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(end)})[place];
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += of_token[i];
    }
    return sum;
  }

  // Returns the expectations for each layer, before the first one.
  static std::vector<std::vector<float>> AllOf(ExpertPredictor& predictor) {
    std::vector<std::vector<float>> all;
    for (int64_t ahead = 1; ahead <= predictor.distance(); ++ahead) {
      const std::span<const float> rows = predictor.ExpectedRows(ahead);
      all.emplace_back(rows.begin(), rows.end());
    }
    return all;
  }

  // Returns those of a new predictor for the last of these tokens of one sequence.
  std::vector<std::vector<float>> Alone(const std::vector<TokenId>& tokens) {
    const auto predictor = MakePredictor();
    for (size_t pos = 0; pos < tokens.size(); ++pos) {
      Begin(*predictor, {{77, static_cast<int64_t>(pos), tokens[pos]}});
    }
    return AllOf(*predictor);
  }

  std::shared_ptr<const SidaNetwork> network_ = SidaNetwork::Load(kNetworkPath).value();
};

// In place of routers, every row of a long prompt gets its own experts, and their probabilities as weights.
TEST_F(SidaPredictorTest, MakesTablesOfAllRows) {
  constexpr int64_t kRows = 100;
  std::vector<TokenRow> rows;
  for (int64_t pos = 0; pos < kRows; ++pos) rows.push_back({5, pos, static_cast<TokenId>(pos * 7 % 11)});
  for (const bool renormalises : {false, true}) {
    const auto predictor = MakeSidaPredictor({.layers = {0, 2, 3},
                                              .num_experts = kExperts,
                                              .num_topk = 2,
                                              .network = network_,
                                              .makes_tables = true,
                                              .renormalises_weights = renormalises});
    Begin(*predictor, rows);
    std::vector<TokenId> tokens;
    for (const TokenRow& row : rows) tokens.push_back(row.token_id);
    const std::vector<std::vector<float>> logits_of_rows = LogitsOf(tokens);
    std::vector<std::vector<float>> chosen(kLayers, std::vector<float>(kExperts));
    for (int64_t row = 0; row < kRows; ++row) {
      const std::vector<float>& logits = logits_of_rows[row];
      for (int64_t place = 0; place < kLayers; ++place) {
        const std::span<const float> of_layer = std::span<const float>(logits).subspan(place * kExperts, kExperts);
        const ExpertTable table = predictor->TableOf(place);
        ASSERT_EQ(std::ssize(table.choices), 2 * kRows);
        const int32_t first = table.choices[2 * row], second = table.choices[2 * row + 1];
        for (int32_t expert = 0; expert < kExperts; ++expert) {
          EXPECT_LE(of_layer[expert], of_layer[first]);
          if (expert == first) continue;
          EXPECT_LE(of_layer[expert], of_layer[second]);
        }
        double all = 0;
        for (const float logit : of_layer) all += std::exp(logit);
        if (renormalises) all = std::exp(of_layer[first]) + std::exp(of_layer[second]);
        EXPECT_NEAR(table.weights[2 * row], std::exp(of_layer[first]) / all, 1e-5);
        EXPECT_NEAR(table.weights[2 * row + 1], std::exp(of_layer[second]) / all, 1e-5);
        ++chosen[place][first];
        ++chosen[place][second];
      }
    }
    EXPECT_THAT(AllOf(*predictor), ElementsAreArray(chosen));  // what is fetched is what will be computed
  }
}

TEST_F(SidaPredictorTest, NamesAllLayersBeforeTheFirst) {
  const auto predictor = MakePredictor();
  EXPECT_EQ(predictor->distance(), kLayers);
  EXPECT_THAT(predictor->ExpectedRows(1), IsEmpty());  // no pass yet
  Begin(*predictor, {{1, 0, 4}, {1, 1, 9}});
  std::vector<std::vector<float>> expected(kLayers, std::vector<float>(kExperts));
  for (const std::vector<float>& logits : LogitsOf({4, 9})) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      float sum = 0;
      for (size_t e = 0; e < kExperts; ++e) sum += std::exp(logits[layer * kExperts + e]);
      for (size_t e = 0; e < kExperts; ++e) {
        expected[layer][e] += std::min(1.0f, 2 * std::exp(logits[layer * kExperts + e]) / sum);
      }
    }
  }
  const auto all = AllOf(*predictor);
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (size_t e = 0; e < kExperts; ++e) EXPECT_NEAR(all[layer][e], expected[layer][e], 1e-4);
  }
  EXPECT_THAT(predictor->ExpectedRows(kLayers + 1), IsEmpty());
  const std::vector<uint32_t> ids = {1, 1};
  const std::vector<int32_t> choices = {0, 1, 2, 3};
  predictor->Observe({.layer_idx = 0, .sequence_ids = ids, .choices = choices, .scores = {}});
  EXPECT_THAT(predictor->ExpectedRows(1), ElementsAreArray(all[1]));
  EXPECT_THAT(predictor->ExpectedRows(2), ElementsAreArray(all[2]));
  predictor->Observe({.layer_idx = 2, .sequence_ids = ids, .choices = choices, .scores = {}});
  EXPECT_THAT(predictor->ExpectedRows(1), ElementsAreArray(all[2]));
  predictor->Observe({.layer_idx = 3, .sequence_ids = ids, .choices = choices, .scores = {}});
  EXPECT_THAT(predictor->ExpectedRows(1), IsEmpty());  // nothing is known of the next token
}

TEST_F(SidaPredictorTest, SequencesGoOnInWhateverPassesTheirTokensCome) {
  const auto chunks = MakePredictor();
  Begin(*chunks, {{1, 0, 3}, {1, 1, 4}, {2, 0, 8}});
  Begin(*chunks, {{2, 1, 9}, {1, 2, 5}});
  Begin(*chunks, {{1, 3, 6}});
  EXPECT_EQ(AllOf(*chunks), Alone({3, 4, 5, 6}));
  Begin(*chunks, {{2, 2, 10}});
  EXPECT_EQ(AllOf(*chunks), Alone({8, 9, 10}));
}

TEST_F(SidaPredictorTest, SomeRowsOfALongPromptStandForAll) {
  std::vector<TokenRow> rows;
  std::vector<TokenId> tokens;
  for (int64_t pos = 0; pos < 70; ++pos) {
    tokens.push_back(static_cast<TokenId>(pos * pos % 31));
    rows.push_back({1, pos, tokens.back()});
  }
  const auto predictor = MakePredictor();
  Begin(*predictor, rows);
  for (const std::vector<float>& layer : AllOf(*predictor)) {
    const float sum = std::accumulate(layer.begin(), layer.end(), 0.0f);
    EXPECT_GT(sum, 70);
    EXPECT_LE(sum, 2 * 70 + 1e-3);
  }
  // The sequence goes on as if all rows had been asked.
  Begin(*predictor, {{1, 70, 5}});
  tokens.push_back(5);
  EXPECT_EQ(AllOf(*predictor), Alone(tokens));
}

TEST_F(SidaPredictorTest, AGapOrAStepBackBeginsASequenceAnew) {
  const auto predictor = MakePredictor();
  Begin(*predictor, {{1, 0, 3}, {1, 1, 4}});
  Begin(*predictor, {{1, 3, 5}});
  EXPECT_EQ(AllOf(*predictor), Alone({5}));
  Begin(*predictor, {{1, 4, 6}});
  EXPECT_EQ(AllOf(*predictor), Alone({5, 6}));
  Begin(*predictor, {{1, 4, 7}});
  EXPECT_EQ(AllOf(*predictor), Alone({7}));
}

TEST_F(SidaPredictorTest, TheSequenceAbsentLongestIsForgotten) {
  const auto predictor = MakePredictor(/*max_sequences=*/2);
  Begin(*predictor, {{1, 0, 3}});
  Begin(*predictor, {{2, 0, 4}});
  Begin(*predictor, {{1, 1, 5}});
  Begin(*predictor, {{3, 0, 6}});  // takes the room of sequence 2
  Begin(*predictor, {{1, 2, 7}});
  EXPECT_EQ(AllOf(*predictor), Alone({3, 5, 7}));
  Begin(*predictor, {{2, 1, 8}});
  EXPECT_EQ(AllOf(*predictor), Alone({8}));
}

TEST_F(SidaPredictorTest, SequencesOfAPassKeepTheirRoom) {
  const auto predictor = MakePredictor(/*max_sequences=*/1);
  Begin(*predictor, {{1, 0, 3}});
  for (int64_t pos = 1; pos < 3; ++pos) Begin(*predictor, {{9, pos - 1, 2}, {1, pos, 4}});
  Begin(*predictor, {{1, 3, 5}});
  EXPECT_EQ(AllOf(*predictor), Alone({3, 4, 4, 5}));
  Begin(*predictor, {{9, 2, 6}});  // had no room, and begins anew now
  EXPECT_EQ(AllOf(*predictor), Alone({6}));
  // A pass without rows, as ranks have them, expects nothing.
  Begin(*predictor, {});
  EXPECT_THAT(predictor->ExpectedRows(1), IsEmpty());
}

TEST_F(SidaPredictorTest, WorksAheadOnPrompts) {
  const auto predictor = MakePredictor();
  Begin(*predictor, {{1, 0, 3}, {1, 1, 4}});
  const ExpertPredictor::Work work = PrepareAhead(*predictor, {{2, 0, 5}, {2, 1, 6}});
  ASSERT_TRUE(work.run);
  EXPECT_GT(work.flops, 0);
  EXPECT_FALSE(PrepareAhead(*predictor, {{2, 0, 5}, {2, 1, 6}}).run);  // once is enough
  Begin(*predictor, {{1, 2, 9}});                                      // passes may come between
  work.run();
  EXPECT_EQ(AllOf(*predictor), Alone({3, 4, 9}));
  // Nothing is left to do when the prompt's pass begins.
  WithTokens({{2, 0, 5}, {2, 1, 6}},
             [&](const PassTokens& tokens) { EXPECT_FALSE(predictor->Prepare(tokens, /*ahead=*/false).run); });
  Begin(*predictor, {{2, 0, 5}, {2, 1, 6}});
  Begin(*predictor, {{2, 2, 7}});
  EXPECT_EQ(AllOf(*predictor), Alone({5, 6, 7}));
}

TEST_F(SidaPredictorTest, WorkAheadIsDoneAgainWhenOtherRowsCome) {
  const auto predictor = MakePredictor();
  PrepareAhead(*predictor, {{2, 0, 5}, {2, 1, 6}, {2, 2, 7}}).run();
  Begin(*predictor, {{2, 0, 5}, {2, 1, 6}});
  Begin(*predictor, {{2, 2, 8}});
  EXPECT_EQ(AllOf(*predictor), Alone({5, 6, 8}));
  // Also where the sequence has a past.
  PrepareAhead(*predictor, {{2, 3, 9}, {2, 4, 10}}).run();
  EXPECT_THAT(predictor->ExpectedAhead(2, 1), ElementsAreArray(SumOf({5, 6, 8, 9, 10}, 3, 1)));
  EXPECT_THAT(predictor->ExpectedAhead(3, 1), IsEmpty());
  Begin(*predictor, {{2, 3, 9}});
  EXPECT_EQ(AllOf(*predictor), Alone({5, 6, 8, 9}));
  Begin(*predictor, {{2, 4, 11}});
  EXPECT_EQ(AllOf(*predictor), Alone({5, 6, 8, 9, 11}));
}

TEST_F(SidaPredictorTest, TheOldestWorkAheadIsDroppedFirst) {
  const auto predictor = MakePredictor();
  std::vector<ExpertPredictor::Work> works;
  for (uint32_t id = 1; id <= 3; ++id) works.push_back(PrepareAhead(*predictor, {{id, 0, static_cast<TokenId>(id)}}));
  for (const ExpertPredictor::Work& work : works) work.run();
  const auto needs_work = [&](uint32_t id) {
    bool needs = false;
    WithTokens({{id, 0, static_cast<TokenId>(id)}}, [&](const PassTokens& tokens) {
      const ExpertPredictor::Work work = predictor->Prepare(tokens, /*ahead=*/false);
      needs = static_cast<bool>(work.run);
      if (needs) work.run();
    });
    return needs;
  };
  EXPECT_TRUE(needs_work(1));
  EXPECT_FALSE(needs_work(2));
  EXPECT_FALSE(needs_work(3));
  Begin(*predictor, {{1, 0, 1}});
  Begin(*predictor, {{1, 1, 8}});
  EXPECT_EQ(AllOf(*predictor), Alone({1, 8}));
}

}  // namespace
}  // namespace penstock
