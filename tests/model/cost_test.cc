// Proves the costs of operations on a model small enough for sums by hand.
#include "penstock/model/cost.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

ModelConfig Config() {
  ModelConfig config;
  config.vocab_size = 320;
  config.model_dim = 64;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.num_experts = 8;
  config.num_topk = 2;
  config.expert_dim = 96;
  return config;
}

TEST(ModelCost, WeightsCountOnceAndRowsMultiply) {
  const ModelCost cost(Config(), {.attention = WeightFormat::kF32, .ffn = WeightFormat::kBF16});
  // q and o 64 x 64, k and v 32 x 64.
  constexpr double kAttention = 2 * 64 * 64 + 2 * 32 * 64;
  EXPECT_EQ(cost.Attention(0, 3, {}).flops, 2 * 3 * kAttention);
  EXPECT_EQ(cost.Attention(0, 3, {}).bytes, static_cast<uint64_t>(4 * kAttention));
  constexpr double kExpert = 3 * 64 * 96;
  EXPECT_EQ(cost.Expert(5).flops, 2 * 5 * kExpert);
  EXPECT_EQ(cost.Expert(5).bytes, static_cast<uint64_t>(2 * kExpert));
  EXPECT_EQ(cost.expert_bytes(), cost.Expert(1).bytes);
  EXPECT_EQ(cost.Logits(1).flops, 2.0 * 320 * 64);
  EXPECT_EQ(cost.Route(2).flops, 2.0 * 2 * 8 * 64);
  EXPECT_EQ(cost.Draw(3).drawn_entries, 3.0 * 320);
  EXPECT_EQ(cost.Draw(3).drawn_rows, 3);
  EXPECT_EQ(cost.Attention(0, 3, {}).attention_rows, 3);
  EXPECT_EQ(cost.Route(2).routed_rows, 2);
}

TEST(ModelCost, AttentionReadsTheContext) {
  const ModelCost cost(Config(), {});
  // K and V of two heads of 16 f32 values.
  EXPECT_EQ(cost.kv_bytes_per_token(0), 2u * 2 * 16 * 4);
  EXPECT_EQ(cost.Attention(0, 1, {.read_tokens = 100}).bytes - cost.Attention(0, 1, {}).bytes,
            100 * cost.kv_bytes_per_token(0));
  EXPECT_EQ(cost.Attention(0, 1, {.seen_tokens = 100}).flops - cost.Attention(0, 1, {}).flops, 100 * 4.0 * 4 * 16);
}

TEST(ModelCost, LayersMayHaveHeadsOfTheirOwn) {
  ModelConfig config = Config();
  config.num_layers = 2;
  config.layer_heads = {{.num_kv_heads = 2, .head_dim = 16},
                        {.num_kv_heads = 1, .head_dim = 48, .keys_are_values = true}};
  const ModelCost cost(config, {});
  EXPECT_EQ(cost.kv_bytes_per_token(0), 2u * 2 * 16 * 4);
  EXPECT_EQ(cost.kv_bytes_per_token(1), 2u * 48 * 4);
  EXPECT_EQ(cost.PreAttention(0, 1, {}).flops, 2 * (64.0 * 64 + 2 * 32 * 64));
  EXPECT_EQ(cost.PreAttention(1, 1, {}).flops, 2 * (192.0 * 64 + 48 * 64));  // no projection of V
  EXPECT_EQ(cost.PostAttention(1, 1).flops, 2 * 192.0 * 64);
  EXPECT_EQ(cost.AttentionCore(1, {.seen_tokens = 100}).flops, 100 * 4.0 * 4 * 48);
}

TEST(ModelCost, AnIndexerMakesAttentionEndAtItsTopk) {
  ModelConfig config = Config();
  config.num_kv_heads = 1;
  config.mla = {.q_lora_rank = 24, .kv_lora_rank = 16, .nope_dim = 8, .rope_dim = 8, .value_dim = 12};
  config.head_dim = 24;
  config.indexer = {.num_heads = 3, .head_dim = 16, .num_topk = 50, .is_shared = {}};
  const ModelCost cost(config, {});
  // Up to 50 positions nothing is scored.
  const OperationCost few = cost.AttentionCore(0, cost.ContextOfRows(2, 50));
  EXPECT_EQ(few.flops, 2 * 50 * 2.0 * 4 * (24 + 16));
  EXPECT_EQ(few.bytes, 2 * 50 * cost.kv_bytes_per_token(0));
  // Beyond them each position costs the products of its index key, and attention costs no more.
  const OperationCost many = cost.AttentionCore(0, cost.ContextOfRows(2, 1000));
  EXPECT_EQ(many.flops - few.flops, 2 * 1000 * 2.0 * 3 * 16);
  EXPECT_EQ(many.bytes - few.bytes, 2u * 1000 * 16 * 4);
  EXPECT_EQ(many.kv_bytes, many.bytes);
  // q_b, k and weights of the index heads.
  const ModelCost::Context own{.has_indexer = true};
  EXPECT_EQ(cost.PreAttention(0, 1, own).flops - cost.PreAttention(0, 1, {}).flops, 2.0 * (48 * 24 + 16 * 64 + 3 * 64));
}

}  // namespace
}  // namespace penstock
