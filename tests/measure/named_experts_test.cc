// Proves that the share of experts that predictors name beforehand is counted right: per layer before the step, per
// distance within it, in steps of one row for each sequence only, and no more experts than the rows choose.
#include "penstock/measure/named_experts.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <unistd.h>

#include "penstock/routing/routing_trace.h"
#include "tests/sida_file.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kNumTokens = 3;

class NamedExpertsTest : public testing::Test {
 protected:
  NamedExpertsTest() {
    config_.vocab_size = kNumTokens;
    config_.num_layers = 2;
    config_.num_experts = 4;
    config_.num_topk = 2;
    config_.layer_has_experts = {true, true};
  }
  ~NamedExpertsTest() override { std::filesystem::remove(path_); }

  // Writes a trace in which token t chooses experts t and t + 1 in both layers. The first step is a prompt.
  void WriteTrace(bool has_tokens) {
    std::filesystem::remove(path_);
    RoutingTraceHeader header = {.model = "m", .num_layers = 2, .num_experts = 4, .num_topk = 2};
    if (has_tokens) {
      header.vocab_size = kNumTokens;
      header.fingerprint = std::string(kTraceFingerprintBytes, 'a');
    }
    const auto writer = RoutingTraceWriter::Create(path_, header).value();
    const auto append = [&](int64_t step_idx, const std::vector<uint32_t>& positions, const std::vector<TokenId>& ids) {
      for (int64_t layer_idx = 0; layer_idx < 2; ++layer_idx) {
        std::vector<int32_t> choices;
        for (const TokenId id : ids) {
          choices.push_back(id);
          choices.push_back(id + 1);
        }
        const std::vector<uint32_t> sequence_ids(ids.size(), 1);
        ASSERT_TRUE(writer
                        ->Append({.step_idx = step_idx,
                                  .layer_idx = layer_idx,
                                  .sequence_ids = sequence_ids,
                                  .positions = positions,
                                  .topk_idx = choices,
                                  .token_ids = has_tokens && layer_idx == 0 ? ids : std::vector<TokenId>{}})
                        .ok());
      }
    };
    append(0, {0, 1}, {0, 2});
    for (uint32_t pos = 2; pos < 8; ++pos) append(pos, {pos}, {static_cast<TokenId>(pos % kNumTokens)});
    ASSERT_TRUE(writer->Close().ok());
  }

  // A network that knows both experts of layer 0, and one of those of layer 1.
  static std::shared_ptr<const SidaNetwork> Network() {
    const SidaShape shape = {.vocab_size = kNumTokens,
                             .dim = kNumTokens,
                             .window = 2,
                             .num_layers = 2,
                             .num_experts = 4,
                             .fingerprint = std::string(32, 'a')};
    const std::string bytes = SidaFile(shape, [](const std::string& name, int64_t i) {
      if (name == "table") return i / kNumTokens == i % kNumTokens ? 1.0f : 0.0f;
      if (name != "output.weight") return 0.0f;
      const int64_t token = i % kNumTokens, expert = i / kNumTokens % 4, layer = i / kNumTokens / 4;
      return expert == token || expert == (layer == 0 ? token + 1 : (token + 2) % 4) ? 20.0f : 0.0f;
    });
    return SidaNetwork::OfBytes(bytes, "test").value();
  }

  ModelConfig config_;
  const std::string path_ = testing::TempDir() + "/penstock-named-" + std::to_string(::getpid());
};

const NamedExperts* Of(const std::vector<NamedExperts>& all, std::string_view predictor) {
  for (const NamedExperts& named : all) {
    if (named.predictor == predictor) return &named;
  }
  return nullptr;
}

TEST_F(NamedExpertsTest, CountsLayersAndDistances) {
  WriteTrace(/*has_tokens=*/true);
  const std::vector<NamedExperts> all = CountNamedExperts(path_, config_, Network()).value();
  const NamedExperts* sida = Of(all, "sida");
  ASSERT_NE(sida, nullptr);
  ASSERT_THAT(sida->before_step, SizeIs(2));
  EXPECT_EQ(sida->before_step[0].num_chosen, 12);  // six steps; the prompt does not count
  EXPECT_EQ(sida->before_step[0].share(), 1);
  EXPECT_EQ(sida->before_step[1].share(), 0.5);
  EXPECT_EQ(sida->all_before_step().share(), 0.75);
  EXPECT_EQ(sida->ahead[0].share(), 0.5);
  EXPECT_EQ(sida->ahead[1].num_chosen, 0);
  EXPECT_THAT(Of(all, "correlation")->before_step, IsEmpty());
  EXPECT_GT(Of(all, "correlation")->ahead[0].num_chosen, 0);
  EXPECT_EQ(Of(all, "gate")->ahead[0].num_chosen, 0);  // its guesses were not recorded
  EXPECT_EQ(Of(all, "oracle"), nullptr);
  const std::string table = NamedExpertsTable(all);
  EXPECT_THAT(table, HasSubstr("75.0%"));
  EXPECT_THAT(table, HasSubstr("layer by layer: 100.0% 50.0%"));
}

TEST_F(NamedExpertsTest, WithoutANetworkTokensAreNotNeeded) {
  WriteTrace(/*has_tokens=*/false);
  const std::vector<NamedExperts> all = CountNamedExperts(path_, config_, nullptr).value();
  EXPECT_EQ(Of(all, "sida"), nullptr);
  EXPECT_GT(Of(all, "history")->ahead[0].num_chosen, 0);
  EXPECT_FALSE(CountNamedExperts("/nowhere/trace", config_, nullptr).ok());
}

}  // namespace
}  // namespace penstock
