// Proves that the published forms of models with towers for images or sound are read as their text part, that rules
// which only one family has are read as published, and that families which are not computed are refused by what is
// lacking.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/model/family.h"
#include "penstock/model/model_config.h"
#include "penstock/model/unsupported.h"

namespace penstock {
namespace {

using testing::HasSubstr;

TEST(MultimodalConfigTest, ReadsLlama4Scout) {
  const auto text = ReadFile(PENSTOCK_SOURCE_DIR "/tests/data/configs/llama-4-scout.json", kMaxConfigBytes);
  ASSERT_TRUE(text.ok()) << Message(text.status());
  const auto config = ParseModelConfig(*text);
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_EQ(config->family, &kLlama4);
  EXPECT_EQ(config->num_layers, 48);
  EXPECT_EQ(config->model_dim, 5120);
  EXPECT_EQ(config->num_experts, 16);
  EXPECT_EQ(config->num_topk, 1);
  EXPECT_EQ(config->expert_dim, 8192);
  EXPECT_EQ(config->shared_ffn_dim, 8192);
  EXPECT_EQ(config->num_moe_layers(), 48);
  EXPECT_EQ(config->qk_norm, QkNorm::kUnitAfterRope);
  EXPECT_TRUE(config->router_scales_input);
  EXPECT_TRUE(config->rope.is_interleaved);
  // Three layers with RoPE and chunks, then one that sees all positions, with a temperature.
  EXPECT_EQ(config->rope_of(2), 0);
  EXPECT_EQ(config->rope_of(3), kNoRope);
  EXPECT_EQ(config->window_of(2), 8192);
  EXPECT_EQ(config->window_of(3), 0);
  EXPECT_EQ(config->first_of_chunk(2, 8191), 0);
  EXPECT_EQ(config->first_of_chunk(2, 20000), 16384);
  EXPECT_EQ(config->first_of_chunk(3, 20000), 0);
  EXPECT_FALSE(config->has_query_scale(2));
  EXPECT_TRUE(config->has_query_scale(3));
  EXPECT_EQ(config->query_scale.At(8190), 1);
  EXPECT_FLOAT_EQ(config->query_scale.At(8191), 1.0693147f);  // 1 + 0.1 log 2
  // Both factors of the frequencies are 1: waves longer than 8192 positions are 16 times slower.
  EXPECT_FLOAT_EQ(config->rope.usual.frequencies[0], 1);
  EXPECT_FLOAT_EQ(config->rope.usual.frequencies[63], static_cast<float>(std::pow(5e5, -126.0 / 128) / 16));
}

// Assembled: the fields of the published config.json that Penstock reads.
TEST(MultimodalConfigTest, ReadsQwen3Vl30b) {
  const auto config = ParseModelConfig(R"({"architectures": ["Qwen3VLMoeForConditionalGeneration"],
      "model_type": "qwen3_vl_moe", "image_token_id": 151655, "tie_word_embeddings": false, "vision_config": {"depth": 27},
      "text_config": {"model_type": "qwen3_vl_moe_text", "hidden_size": 2048, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-06, "attention_bias": false, "hidden_act": "silu", "eos_token_id": 151645,
        "rope_theta": 5000000,
        "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"}}})");
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_EQ(config->family, &kQwen3VlMoe);
  EXPECT_EQ(config->num_experts, 128);
  EXPECT_EQ(config->expert_dim, 768);
  EXPECT_EQ(config->rope.theta, 5e6);
  EXPECT_EQ(config->rope.rotary_dim, 128);
  EXPECT_TRUE(config->router.renormalises);
  EXPECT_EQ(config->qk_norm, QkNorm::kPerHead);
}

// Assembled, too.
TEST(MultimodalConfigTest, ReadsGlm45v) {
  const auto config = ParseModelConfig(R"({"architectures": ["Glm4vMoeForConditionalGeneration"],
      "model_type": "glm4v_moe", "vision_config": {"depth": 24},
      "text_config": {"model_type": "glm4v_moe_text", "hidden_size": 4096, "num_hidden_layers": 46,
        "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
        "vocab_size": 151552, "max_position_embeddings": 65536, "rms_norm_eps": 1e-05, "attention_bias": true,
        "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "hidden_act": "silu",
        "rope_scaling": {"mrope_section": [8, 12, 12], "rope_type": "default"}}})");
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_EQ(config->family, &kGlm4vMoe);
  EXPECT_EQ(config->num_moe_layers(), 45);
  EXPECT_EQ(config->rope.rotary_dim, 64);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->o_bias);
}

TEST(MultimodalConfigTest, PartsThatAreNoObjectsAreNamed) {
  for (const std::string_view parts :
       {"", R"(, "thinker_config": 1)", R"(, "thinker_config": {})", R"(, "thinker_config": {"text_config": []})"}) {
    const auto config =
        ParseModelConfig(fmt::format(R"({{"architectures": ["Qwen3OmniMoeForConditionalGeneration"]{}}})", parts));
    ASSERT_FALSE(config.ok()) << parts;
    EXPECT_THAT(Message(config.status()), HasSubstr("'thinker_config.text_config': expected an object"));
  }
}

TEST(MultimodalConfigTest, DenseModelsOfAnArchitectureAreRefused) {
  const auto config = ParseModelConfig(R"({"architectures": ["Mistral3ForConditionalGeneration"],
      "text_config": {"model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 32768, "vocab_size": 131072,
        "max_position_embeddings": 131072}})");
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(Message(config.status()), HasSubstr("num_experts_per_tok"));
}

TEST(UnsupportedFamiliesTest, AreRefusedByWhatIsLacking) {
  EXPECT_FALSE(UnsupportedFamilies().empty());
  int64_t num_refused = 0;
  for (const UnsupportedFamily& family : UnsupportedFamilies()) {
    const auto config =
        ParseModelConfig(fmt::format(R"({{"architectures": ["{}"], "auto_map": {{}}}})", family.architecture));
    ASSERT_FALSE(config.ok()) << family.architecture;
    if (FindFamily(family.architecture) != nullptr) continue;
    ++num_refused;
    EXPECT_THAT(Message(config.status()), HasSubstr(fmt::format("'{}' is not supported: Penstock does not compute {};",
                                                                family.architecture, family.lack)));
  }
  EXPECT_GT(num_refused, 20);
  EXPECT_EQ(LackOf(""), "");
  EXPECT_EQ(LackOf("Qwen3ForCausalLM"), "");
  EXPECT_THAT(LackOf("minimax-m3"), HasSubstr("blocks of positions"));
}

}  // namespace
}  // namespace penstock
