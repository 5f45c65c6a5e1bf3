// Proves in virtual time what naming the experts of a whole pass is worth to hybrid. With a network that is always
// right, the disk reads for all layers while earlier ones are computed, and what it reads is used. It also reads for
// the next pass, if that pass's tokens are known. Fetching for late layers throws out no expert that an earlier layer
// wants. If the network is always wrong, little is lost.
#include <gmock/gmock.h>

#include "penstock/simulate/pass_simulator.h"
#include "tests/sida_file.h"

namespace penstock {
namespace {

constexpr int64_t kNumLayers = 12, kNumExperts = 8, kNumTopk = 2, kNumTokens = 5;

// Token t chooses two neighbouring experts in each layer. Its successor chooses others.
int64_t FirstChoice(int64_t token, int64_t layer_idx) { return (3 * token + layer_idx * layer_idx) % kNumExperts; }

class TokenRouting : public RoutingSource {
 public:
  explicit TokenRouting(const RowBatch& batch) : batch_(&batch) {}
  std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) override {
    choices_.clear();
    for (int64_t row = first_row; row < first_row + num_rows; ++row) {
      for (int64_t k = 0; k < kNumTopk; ++k) {
        const int64_t first = FirstChoice(batch_->token_ids[row], layer_idx);
        choices_.push_back(static_cast<int32_t>((first + k) % kNumExperts));
      }
    }
    return choices_;
  }

 private:
  const RowBatch* batch_;
  std::vector<int32_t> choices_;
};

// A network whose LSTM and attention are off: token t names its experts, or with `shift` others.
std::shared_ptr<const SidaNetwork> NetworkOfTokens(int64_t shift) {
  const SidaShape shape = {.vocab_size = kNumTokens,
                           .dim = kNumTokens,
                           .window = 2,
                           .num_layers = kNumLayers,
                           .num_experts = kNumExperts,
                           .fingerprint = std::string(32, 'a')};
  const std::string bytes = SidaFile(shape, [&](const std::string& name, int64_t i) {
    if (name == "table") return i / kNumTokens == i % kNumTokens ? 1.0f : 0.0f;
    if (name != "output.weight") return 0.0f;
    const int64_t token = i % kNumTokens, expert = i / kNumTokens % kNumExperts, layer = i / kNumTokens / kNumExperts;
    const int64_t after = (expert - FirstChoice(token, layer) - shift + 2 * kNumExperts) % kNumExperts;
    return after < kNumTopk ? 20.0f : 0.0f;
  });
  return SidaNetwork::OfBytes(bytes, "test").value();
}

struct SidaOutcome {
  double seconds = 0;
  double ahead_s = 0;  // in which the predictor worked ahead
  ExpertCounters counters;
};

// With `ahead`, the token of the next step is known.
SidaOutcome SimulateTokens(PredictorKind predictor, int64_t num_slots, int64_t shift = 0, bool ahead = false) {
  ModelConfig config;
  config.vocab_size = 32000;
  config.model_dim = 2048;
  config.num_layers = kNumLayers;
  config.num_heads = 16;
  config.num_kv_heads = 4;
  config.head_dim = 128;
  config.num_experts = kNumExperts;
  config.num_topk = kNumTopk;
  config.expert_dim = 5632;
  config.layer_has_experts.assign(kNumLayers, true);
  const ModelFormats formats = {.attention = WeightFormat::kInt8,
                                .ffn = WeightFormat::kInt8,
                                .lm_head = WeightFormat::kInt8,
                                .kv = KvFormat::kBF16};
  PassSimulator::Args args{.config = config,
                           .formats = formats,
                           .expert_bytes = ModelCost(config, formats).expert_bytes(),
                           .schedule = {.kind = ScheduleKind::kHybrid, .predictor = predictor},
                           .eviction = Eviction::kMrs,
                           .dram = {.num_slots = num_slots},
                           .rates = {.host_compute =
                                         [](const TaskCost& task) {
                                           return static_cast<double>(task.memory_bytes) / 8e9 + task.flops / 1e12;
                                         },
                                     .disk_to_dram = TransferTime(8e9)}};
  if (TraitsOf(predictor).needs_network) {
    args.schedule.network = NetworkOfTokens(shift);
    args.schedule.network_state_bytes = args.schedule.network->shape().state_bytes();
    args.schedule.max_ahead = ahead ? 1 : 0;
  }
  const auto simulator = PassSimulator::Create(args).value();
  SidaOutcome outcome;
  for (int64_t step = 0; step < 40; ++step) {
    RowBatch batch;
    batch.AddRow(static_cast<TokenId>(step % kNumTokens), step, {}, 1, {});
    batch.logit_rows.push_back(0);
    const auto next_token = static_cast<TokenId>((step + 1) % kNumTokens);
    if (ahead) batch.next_rows.push_back({.sequence_id = 1, .first_pos = step + 1, .token_ids = {&next_token, 1}});
    TokenRouting routing(batch);
    outcome.seconds += simulator->Run(batch, {{0, 1}}, routing);
  }
  outcome.counters = simulator->counters();
  for (const LaneUsage& lane : simulator->Usage()) {
    if (lane.name == "predict") outcome.ahead_s = lane.busy_s;
  }
  return outcome;
}

TEST(SidaSchedule, FetchesWhatAllLayersWillNeed) {
  for (const int64_t num_slots : {24, 48}) {
    SCOPED_TRACE(num_slots);
    const SidaOutcome none = SimulateTokens(PredictorKind::kNone, num_slots);
    const SidaOutcome oracle = SimulateTokens(PredictorKind::kOracle, num_slots);
    const SidaOutcome sida = SimulateTokens(PredictorKind::kSida, num_slots);
    EXPECT_EQ(none.counters.prefetched, 0);
    EXPECT_GT(sida.counters.prefetched, 0);
    // Fetched experts stayed until they were used, but for those that the last step may leave.
    EXPECT_GE(sida.counters.prefetch_used, sida.counters.prefetched - kNumTopk);
    EXPECT_GT(sida.counters.hits, none.counters.hits + oracle.counters.prefetched / 2);
    EXPECT_LT(1.1 * sida.seconds, none.seconds);
    // The oracle sees three layers ahead, and only from the first layer's routing on.
    EXPECT_LE(sida.seconds, 1.01 * oracle.seconds);
    EXPECT_LE(sida.counters.bytes_read, none.counters.bytes_read * 105 / 100);
  }
}

// If the next tokens are known, the disk goes on reading for them when this pass's experts are there.
TEST(SidaSchedule, FetchesForLaterPasses) {
  for (const int64_t num_slots : {24, 48}) {
    SCOPED_TRACE(num_slots);
    const SidaOutcome sida = SimulateTokens(PredictorKind::kSida, num_slots);
    const SidaOutcome ahead = SimulateTokens(PredictorKind::kSida, num_slots, 0, /*ahead=*/true);
    EXPECT_EQ(sida.ahead_s, 0);
    EXPECT_GT(ahead.ahead_s, 0);
    EXPECT_LT(ahead.seconds, sida.seconds);
    EXPECT_GT(ahead.counters.hits, sida.counters.hits);
    EXPECT_GE(ahead.counters.prefetch_used, ahead.counters.prefetched - 2 * kNumTopk * kNumLayers);
  }
}

TEST(SidaSchedule, WrongNamesCostLittle) {
  const SidaOutcome none = SimulateTokens(PredictorKind::kNone, 48);
  const SidaOutcome wrong = SimulateTokens(PredictorKind::kSida, 48, /*shift=*/kNumTopk);
  EXPECT_LT(wrong.seconds, 1.15 * none.seconds);
  EXPECT_LT(wrong.counters.prefetched, none.counters.misses / 5);
}

}  // namespace
}  // namespace penstock
