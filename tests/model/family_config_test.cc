// Proves that configs of published models whose layers differ in heads, norms or order give the published number of
// weights and the rules of each layer, and that fields which Penstock cannot follow are refused by name.
#include <cmath>

#include <gmock/gmock.h>

#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/model/family.h"
#include "penstock/model/weight_map.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string TextOfConfig(std::string_view name) {
  return ReadFile(fmt::format("{}/tests/data/configs/{}.json", PENSTOCK_SOURCE_DIR, name), kMaxConfigBytes).value();
}

ModelConfig ConfigIn(std::string_view name) { return ParseModelConfig(TextOfConfig(name)).value(); }

// Returns the text of a config with `fields` (the inside of an object) replacing its own.
std::string WithFields(const std::string& config, std::string_view fields) {
  json::object changed = ParseJson(config, Fault::kInternal)->get_object();
  const json::value changes = ParseJson(fmt::format("{{{}}}", fields), Fault::kInternal).value();
  for (const auto& [key, value] : changes.get_object()) changed[key] = value;
  return std::string(json::serialize(changed));
}

// Returns billions of weights, with the embedding.
double BillionsIn(const ModelConfig& config) {
  double count = 0;
  for (const TensorInfo& tensor : DescribeWeights(config, WeightFormat::kBF16).own) {
    double values = 1;
    for (const int64_t dim : tensor.shape) values *= static_cast<double>(dim);
    count += values;
  }
  return count / 1e9;
}

struct PublishedSizes {
  const char* name;
  const Family* family;
  double billions;  // as published
  int64_t num_layers, num_moe;
};

class PublishedFamilyTest : public testing::TestWithParam<PublishedSizes> {};

TEST_P(PublishedFamilyTest, HasItsSizes) {
  const PublishedSizes& p = GetParam();
  const auto config = ParseModelConfig(TextOfConfig(p.name));
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_EQ(config->family, p.family);
  EXPECT_NEAR(BillionsIn(*config), p.billions, 0.015 * p.billions);
  EXPECT_EQ(config->num_layers, p.num_layers);
  EXPECT_EQ(config->num_moe_layers(), p.num_moe);
}

INSTANTIATE_TEST_SUITE_P(Models, PublishedFamilyTest,
                         testing::Values(PublishedSizes{"mimo-v2-flash", &kMimoV2Flash, 309, 48, 47},
                                         PublishedSizes{"step-3.5-flash", &kStep3p5, 196, 45, 42},
                                         PublishedSizes{"kimi-k2.5", &kKimiK25, 1026, 61, 60},
                                         PublishedSizes{"mistral-small-4", &kMistral4, 119, 36, 36},
                                         PublishedSizes{"a.x-k1", &kAxk1, 519, 61, 60},
                                         PublishedSizes{"llama-4-maverick", &kLlama4, 400, 48, 24},
                                         PublishedSizes{"minimax-m2.7", &kMinimaxM2, 229, 62, 62},
                                         PublishedSizes{"kimi-k2", &kDeepseekV3, 1026, 61, 60},
                                         PublishedSizes{"longcat-flash", &kLongcatFlash, 560, 56, 28},
                                         PublishedSizes{"trinity-mini", &kAfmoe, 26.1, 32, 30},
                                         PublishedSizes{"flexolmo-7x7b", &kFlexOlmo, 33.3, 32, 32}),
                         [](const auto& model) {
                           std::string name = model.param.name;
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           return name;
                         });

// A pair of layers shares a number, and the last experts have no weights.
TEST(FamilyConfigTest, LongcatFlashHasPairsOfLayers) {
  const ModelConfig config = ConfigIn("longcat-flash");
  EXPECT_EQ(config.num_experts, 768);
  EXPECT_EQ(config.num_stored_experts(), 512);
  EXPECT_EQ(config.num_topk, 12);
  EXPECT_THAT(config.moe_layers(), testing::Contains(54));
  for (const int64_t layer_idx : {0, 2, 54}) EXPECT_FALSE(config.takes_deferred(layer_idx)) << layer_idx;
  for (const int64_t layer_idx : {1, 3, 55}) EXPECT_TRUE(config.takes_deferred(layer_idx)) << layer_idx;
  EXPECT_EQ(config.num_kv_layers(), 56);
  EXPECT_FLOAT_EQ(config.attention_scale, 2 / std::sqrt(192.0f));
  EXPECT_FLOAT_EQ(config.mla.kv_scale, std::sqrt(12.0f));
  const WeightMap map = DescribeWeights(config, WeightFormat::kBF16);
  EXPECT_EQ(map.layers[0].experts.size(), 512u);
  EXPECT_THAT(map.layers[0].router_proj->shape, ElementsAre(768, 6144));
  EXPECT_THAT(map.layers[0].shared_ffn.up_proj->shape, ElementsAre(12288, 6144));
  EXPECT_THAT(map.layers[1].dense_ffn.up_proj->shape, ElementsAre(12288, 6144));
  EXPECT_TRUE(map.layers[1].experts.empty());
  const std::string text = TextOfConfig("longcat-flash");
  for (const auto& [fields, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("zero_expert_type": "copy")", "'zero_expert_type': expected 'identity', found 'copy'"},
           {R"("zero_expert_num": -1)", "'zero_expert_num'"},
           {R"("router_bias": true)", "'router_bias': expected false"},
           {R"("norm_topk_prob": true)", "'norm_topk_prob': expected false"},
           {R"("mla_scale_q_lora": false)", "'mla_scale_q_lora': expected true"},
           {R"("q_lora_rank": null)", "'q_lora_rank': expected an integer"},
           {R"("qk_head_dim": 128)", "'qk_head_dim': expected an integer from 192 to 192"},
           {R"("num_layers": 0)", "'num_hidden_layers': expected an integer"},
           {R"("num_layers": 9223372036854775807)", "'num_hidden_layers': expected an integer"},
           {R"("num_layers": null, "num_hidden_layers": 27)", "an odd number of layers"}}) {
    const auto refused = ParseModelConfig(WithFields(text, fields));
    ASSERT_FALSE(refused.ok()) << fields;
    EXPECT_THAT(Message(refused.status()), HasSubstr(message)) << fields;
  }
}

TEST(FamilyConfigTest, LayersOfMimoHaveHeadsOfTheirOwn) {
  const ModelConfig config = ConfigIn("mimo-v2-flash");
  EXPECT_EQ(config.window_of(0), 0);
  EXPECT_EQ(config.window_of(1), 129);
  EXPECT_EQ(config.window_of(5), 0);
  EXPECT_EQ(config.heads_of(0).num_kv_heads, 4);
  EXPECT_EQ(config.heads_of(1).num_kv_heads, 8);
  EXPECT_EQ(config.kv_dim(1), 8 * 192);
  EXPECT_EQ(config.v_dim(1), 8 * 128);
  EXPECT_EQ(config.v_dim(), 8 * 128);
  EXPECT_EQ(config.attended_dim(1), 64 * 128);
  EXPECT_EQ(config.attended_dim(), 64 * 128);
  EXPECT_FALSE(config.has_sinks(0));
  EXPECT_TRUE(config.has_sinks(1));
  EXPECT_EQ(config.rotary_dim_of(1), 64);
  EXPECT_EQ(config.rope.theta, 5e6);
  ASSERT_EQ(config.other_ropes.size(), 1u);
  EXPECT_EQ(config.other_ropes[0].theta, 1e4);
  EXPECT_FLOAT_EQ(config.value_scale, 0.707f);
  EXPECT_EQ(config.router.scale, 1);
}

TEST(FamilyConfigTest, ListsOfStepAreReadAsTypes) {
  const ModelConfig config = ConfigIn("step-3.5-flash");
  EXPECT_EQ(config.num_mtp_layers, 3);
  EXPECT_EQ(config.num_experts, 288);
  EXPECT_EQ(config.num_topk, 8);
  EXPECT_EQ(config.window_of(0), 0);
  EXPECT_EQ(config.window_of(1), 512);
  EXPECT_EQ(config.num_heads_of(0), 64);
  EXPECT_EQ(config.num_heads_of(1), 96);
  EXPECT_EQ(config.q_dim(0), 64 * 128);
  EXPECT_EQ(config.q_dim(), 96 * 128);
  EXPECT_EQ(config.gate_dim(0), 64);
  EXPECT_EQ(config.gate_dim(), 96);
  EXPECT_EQ(config.rotary_dim_of(0), 64);
  EXPECT_EQ(config.rotary_dim_of(1), 128);
  EXPECT_EQ(config.rope.theta, 5e6);
  EXPECT_NE(config.rope.usual.frequencies.back(), static_cast<float>(std::pow(5e6, -62.0 / 64)));  // scaled
  EXPECT_EQ(config.other_ropes[0].theta, 1e4);
  EXPECT_FLOAT_EQ(config.other_ropes[0].usual.frequencies.back(), static_cast<float>(std::pow(1e4, -126.0 / 128)));
  EXPECT_EQ(config.expert_glu(42).output_limit, 0);
  EXPECT_EQ(config.expert_glu(43).output_limit, 7);
  EXPECT_EQ(config.ffn_glu(43).output_limit, 0);
  EXPECT_EQ(config.ffn_glu(44).output_limit, 16);
  // The indices of layers with experts may be a list, too.
  const auto listed = ParseModelConfig(WithFields(TextOfConfig("step-3.5-flash"), R"("moe_layers_enum": [3, 5])"));
  ASSERT_TRUE(listed.ok()) << Message(listed.status());
  EXPECT_THAT(listed->moe_layers(), ElementsAre(3, 5));
}

// The text part may stand alone, in which case lists have no entries for layers of MTP, or in an object.
TEST(FamilyConfigTest, StepMayBeFlat) {
  const std::string text = TextOfConfig("step-3.7-flash");
  const ModelConfig flat = ParseModelConfig(text).value();
  EXPECT_EQ(flat.family, &kStep3p7);
  EXPECT_EQ(flat.num_mtp_layers, 3);
  EXPECT_EQ(flat.num_moe_layers(), 42);
  EXPECT_FALSE(flat.layer_has_experts[2]);
  EXPECT_EQ(flat.num_experts, 288);
  EXPECT_EQ(flat.shared_ffn_dim, 1280);
  EXPECT_EQ(flat.window_of(0), 0);
  EXPECT_EQ(flat.window_of(1), 512);
  EXPECT_FLOAT_EQ(flat.router.scale, 3);
  EXPECT_EQ(ConfigIn("step-3.7-flash-fp8").coded.kind, CodedWeights::Kind::kFp8);
  const auto nested =
      ParseModelConfig(fmt::format(R"({{"architectures": ["Step3p7FlashForCausalLM"], "text_config": {}}})", text));
  ASSERT_TRUE(nested.ok()) << Message(nested.status());
  EXPECT_EQ(nested->num_layers, flat.num_layers);
  EXPECT_EQ(nested->layer_has_experts, flat.layer_has_experts);
  EXPECT_EQ(nested->layer_has_window, flat.layer_has_window);
  const auto list =
      ParseModelConfig(R"({"architectures": ["Step3p7FlashForCausalLM"], "text_config": [], "hidden_size": 16})");
  ASSERT_FALSE(list.ok());
  EXPECT_THAT(Message(list.status()), HasSubstr("'text_config': expected an object"));
}

TEST(FamilyConfigTest, OnlyExpertsOfAxk1AreNormed) {
  const ModelConfig config = ConfigIn("a.x-k1");
  EXPECT_EQ(config.output_norms, OutputNorms::kExperts);
  EXPECT_EQ(config.router.num_groups, 8);
  const WeightMap map = DescribeWeights(config, WeightFormat::kBF16);
  EXPECT_EQ(map.layers[0].ffn_output_norm, nullptr);
  EXPECT_NE(map.layers[1].ffn_output_norm, nullptr);
  EXPECT_EQ(map.layers[1].attention_output_norm, nullptr);
}

TEST(FamilyConfigTest, KimiK25IsDeepseekV3WithCodesOfExperts) {
  const ModelConfig config = ConfigIn("kimi-k2.5");
  EXPECT_EQ(config.mla.kv_lora_rank, 512);
  EXPECT_EQ(config.coded.kind, CodedWeights::Kind::kIntRows);
  EXPECT_EQ(config.coded.group, 32);
  EXPECT_FALSE(config.tie_embeddings);
  EXPECT_FLOAT_EQ(config.router.scale, 2.827f);
  EXPECT_EQ(FindFamily("Kimi_K25ForConditionalGeneration"), &kKimiK25);
}

TEST(FamilyConfigTest, OutputsAreNormed) {
  const ModelConfig trinity = ConfigIn("trinity-mini");
  EXPECT_EQ(trinity.output_norms, OutputNorms::kAll);
  EXPECT_TRUE(trinity.attention_gate);
  EXPECT_EQ(trinity.gate_dim(), 32 * 128);
  EXPECT_FLOAT_EQ(trinity.embedding_scale, std::sqrt(2048.0f));
  EXPECT_EQ(trinity.window_of(3), 0);
  EXPECT_EQ(trinity.rope_of(3), kNoRope);
  EXPECT_EQ(trinity.window_of(4), 2048);
  const ModelConfig flex = ConfigIn("flexolmo-7x7b");
  EXPECT_EQ(flex.output_norms, OutputNorms::kAll);
  EXPECT_FALSE(flex.input_norms);
}

constexpr std::string_view kCohere =
    R"({"architectures": ["Cohere2MoeForCausalLM"], "vocab_size": 300, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "num_experts": 4, "num_shared_experts": 2, "first_k_dense_replace": 2})";

TEST(FamilyConfigTest, CohereHasAnFfnBesideAttention) {
  const ModelConfig config = ParseModelConfig(kCohere).value();
  EXPECT_TRUE(config.parallel_ffn);
  EXPECT_EQ(config.norm, Norm::kLayer);
  EXPECT_TRUE(config.tie_embeddings);
  EXPECT_EQ(config.shared_ffn_dim, 48);
  EXPECT_EQ(config.router.scale, 0.5f);
  EXPECT_EQ(config.shared_scale, 0.5f);
  // Dense layers see everything, and rotate; of the others every fourth sees everything, and does not.
  EXPECT_THAT(config.layer_has_window, ElementsAre(false, false, true, true, true, false));
  EXPECT_THAT(config.layer_rope, ElementsAre(0, 0, 0, 0, 0, kNoRope));
  const ModelConfig other =
      ParseModelConfig(
          WithFields(std::string(kCohere),
                     R"("prefix_dense_sliding_window_pattern": 2, "rms_norm_eps": 1e-6, "sliding_window": null,
                               "shared_expert_combination_strategy": "sum", "expert_selection_fn": "sigmoid")"))
          .value();
  EXPECT_THAT(other.layer_rope, ElementsAre(kNoRope, kNoRope, kNoRope, kNoRope, kNoRope, kNoRope));
  EXPECT_EQ(other.norm, Norm::kRms);
  EXPECT_EQ(other.shared_scale, 1);
  EXPECT_EQ(other.router.scoring, RouterRule::Scoring::kSigmoid);
}

constexpr std::string_view kLagunaText =
    R"({"architectures": ["LagunaForCausalLM"], "vocab_size": 300, "hidden_size": 16,
    "intermediate_size": 24, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2})";

TEST(FamilyConfigTest, LayersOfLagunaHaveHeadsOfTheirOwn) {
  const ModelConfig plain = ParseModelConfig(kLagunaText).value();
  EXPECT_TRUE(plain.gate_is_per_head);
  EXPECT_TRUE(plain.gate_is_softplus);
  EXPECT_EQ(plain.gate_dim(2), 4);
  EXPECT_EQ(plain.rotary_dim_of(0), 4);
  EXPECT_THAT(plain.moe_layers(), ElementsAre(1, 2));
  const ModelConfig config = ParseModelConfig(WithFields(std::string(kLagunaText),
                                                         R"("num_attention_heads_per_layer": [4, 6, 2],
                                                      "gating": "per-element")"))
                                 .value();
  EXPECT_EQ(config.q_dim(1), 48);
  EXPECT_EQ(config.gate_dim(1), 48);
  EXPECT_EQ(config.attended_dim(2), 16);
  EXPECT_EQ(config.attended_dim(), 48);
}

constexpr std::string_view kLing =
    R"({"architectures": ["BailingHybridForCausalLM"], "vocab_size": 300, "hidden_size": 16,
    "intermediate_size": 24, "moe_intermediate_size": 8, "num_hidden_layers": 7, "num_attention_heads": 4, "head_dim": 8,
    "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "num_experts": 16, "n_group": 4,
    "topk_group": 2, "num_experts_per_tok": 2})";

TEST(FamilyConfigTest, LingHasDecaysWithAFloor) {
  const ModelConfig config = ParseModelConfig(kLing).value();
  EXPECT_THAT(config.layer_is_recurrent, ElementsAre(true, true, true, true, true, false, true));
  EXPECT_EQ(config.recurrent.decay_floor, -5);
  EXPECT_EQ(config.recurrent.rank, 0);
  EXPECT_EQ(config.num_moe_layers(), 5);
  EXPECT_EQ(config.gate_dim(5), 4);
  EXPECT_EQ(ParseModelConfig(WithFields(std::string(kLing), R"("kda_safe_gate": false)"))->recurrent.decay_floor, 0);
}

TEST(FamilyConfigTest, RefusesByName) {
  const std::string ling(kLing);
  const std::string cohere(kCohere), laguna(kLagunaText), mimo = TextOfConfig("mimo-v2-flash");
  const std::string step = TextOfConfig("step-3.5-flash");
  struct Case {
    const std::string& config;
    std::string_view fields, message;
  };
  for (const Case& c : std::initializer_list<Case>{
           {cohere, R"("expert_selection_fn": "tanh")", "'expert_selection_fn': expected 'softmax' or 'sigmoid'"},
           {cohere, R"("shared_expert_combination_strategy": "max")", "'shared_expert_combination_strategy'"},
           {laguna, R"("moe_router_logit_softcapping": 30.0)", "'moe_router_logit_softcapping'"},
           {laguna, R"("moe_apply_router_weight_on_input": true)", "'moe_apply_router_weight_on_input'"},
           {laguna, R"("gating": "none")", "'gating': expected true, 'per-head' or 'per-element', found none"},
           {laguna, R"("gating": false)", "'gating'"},
           {laguna, R"("num_attention_heads_per_layer": [4])", "'num_attention_heads_per_layer': expected 3 of them"},
           {laguna, R"("num_attention_heads_per_layer": [4, 3, 4])",
            "num_attention_heads 3 is not a multiple of num_key_value_heads 2"},
           {ling, R"("q_lora_rank": 8)", "'q_lora_rank': expected null"},
           {ling, R"("kda_lower_bound": 5)", "'kda_lower_bound'"},
           {mimo, R"("hybrid_layer_pattern": [1])", "'hybrid_layer_pattern': expected 48 of them"},
           {mimo, R"("v_head_dim": 193)", "'v_head_dim'"},
           {mimo, R"("swa_num_key_value_heads": 7)", "64 is not a multiple of num_key_value_heads 7"},
           {step, R"("swiglu_limits": [1])", "'swiglu_limits': expected a list of 45 numbers"},
           {step, R"("swiglu_limits": 7)", "'swiglu_limits'"},
           {step, R"("layer_types": ["full_attention"])", "'layer_types': expected a list of 45 times"},
           {step, R"("mlp_bias": true)", "'mlp_bias': expected false"},
           {step, R"("use_moe_router_bias": false)", "'use_moe_router_bias': expected true"},
           {step, R"("scoring_func": "softmax")", "'scoring_func': expected 'sigmoid'"},
           {step, R"("n_shared_experts": 2)", "'n_shared_experts'"},
           {step, R"("rope_theta": [null, "x"])", "'rope_theta'"}}) {
    const auto parsed = ParseModelConfig(WithFields(c.config, c.fields));
    ASSERT_FALSE(parsed.ok()) << c.fields;
    EXPECT_EQ(FaultOf(parsed.status()), Fault::kModel);
    EXPECT_THAT(Message(parsed.status()), HasSubstr(c.message)) << c.fields;
  }
}

}  // namespace
}  // namespace penstock
