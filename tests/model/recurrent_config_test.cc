// Proves that configs of published models with recurrent layers give their published sizes, states and kinds of layers,
// and that fields which Penstock cannot follow are refused by name.
#include <array>

#include <gmock/gmock.h>

#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/model/family.h"
#include "penstock/model/recurrent_state.h"
#include "penstock/model/weight_map.h"

namespace penstock {
namespace {

using testing::HasSubstr;

std::string TextOf(const std::string& name) {
  return ReadFile(PENSTOCK_SOURCE_DIR "/tests/data/configs/" + name + ".json", kMaxConfigBytes).value();
}

// Returns billions of weights.
double BillionsOf(const ModelConfig& config) {
  const WeightMap map = DescribeWeights(config, WeightFormat::kBF16);
  double count = 0;
  const auto add = [&](const TensorInfo& tensor) {
    double values = 1;
    for (const int64_t dim : tensor.shape) values *= static_cast<double>(dim);
    count += values;
  };
  add(*map.embedding);
  if (map.lm_head != map.embedding) add(*map.lm_head);
  for (const LayerTensors& layer : map.layers) {
    layer.ForEachDense(add, [&](const TensorInfo& tensor, MatrixKind) { add(tensor); });
    for (const FfnTensors& expert : layer.experts) expert.ForEach(add);
  }
  return count / 1e9;
}

struct Published {
  const char* name;
  const Family* family;
  double billions;  // as published
  int64_t num_layers, num_moe, num_recurrent, num_kv;
  double state_mib;  // of a sequence
};

class PublishedRecurrentTest : public testing::TestWithParam<Published> {};

TEST_P(PublishedRecurrentTest, HasItsSizes) {
  const Published& p = GetParam();
  const auto config = ParseModelConfig(TextOf(p.name));
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_EQ(config->family, p.family);
  EXPECT_NEAR(BillionsOf(*config), p.billions, 0.02 * p.billions);
  EXPECT_EQ(config->num_layers, p.num_layers);
  EXPECT_EQ(config->num_moe_layers(), p.num_moe);
  EXPECT_EQ(config->num_recurrent_layers(), p.num_recurrent);
  EXPECT_EQ(config->num_kv_layers(), p.num_kv);
  EXPECT_NEAR(static_cast<double>(RecurrentState::Bytes(*config)) / (1 << 20), p.state_mib, 0.005 * p.state_mib);
}

INSTANTIATE_TEST_SUITE_P(
    Models, PublishedRecurrentTest,
    testing::Values(Published{"qwen3.5-35b-a3b", &kQwen35Moe, 34.7, 40, 40, 30, 10, 62.8},
                    Published{"lfm2-8b-a1b", &kLfm2Moe, 8.3, 24, 22, 18, 6, 0.281},
                    Published{"granite-4.0-h-tiny", &kGraniteMoeHybrid, 6.94, 40, 40, 36, 4, 55.5},
                    Published{"granite-4.0-h-small", &kGraniteMoeHybrid, 32.2, 40, 40, 36, 4, 147.6},
                    Published{"nemotron-3-nano-30b-a3b", &kNemotronH, 31.6, 52, 23, 23, 6, 47.6},
                    Published{"nemotron-3-super-120b-a12b", &kNemotronH, 120.6, 88, 40, 40, 8, 164.7},
                    Published{"nemotron-3-ultra-550b-a55b", &kNemotronH, 550, 108, 48, 48, 12, 394.1},
                    Published{"kimi-linear-48b-a3b", &kKimiLinear, 49.1, 27, 26, 20, 7, 42.8},
                    Published{"jamba-1.5-mini", &kJamba, 51.6, 32, 16, 28, 4, 16.6},
                    Published{"minimax-m1", &kMinimaxM1, 456, 80, 80, 70, 10, 280}),
    [](const auto& model) {
      std::string name = model.param.name;
      std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
      return name;
    });

TEST(RecurrentConfigTest, LayersHaveAMixerOrAnFfn) {
  const auto config = ParseModelConfig(TextOf("nemotron-3-nano-30b-a3b"));
  ASSERT_TRUE(config.ok()) << Message(config.status());
  const std::string_view pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
  int64_t num_kv = 0;
  for (int64_t layer_idx = 0; layer_idx < config->num_layers; ++layer_idx) {
    const char letter = pattern[layer_idx];
    EXPECT_EQ(config->is_recurrent(layer_idx), letter == 'M') << layer_idx;
    EXPECT_EQ(config->has_mixer(layer_idx), letter != 'E') << layer_idx;
    EXPECT_EQ(config->has_ffn(layer_idx), letter == 'E') << layer_idx;
    EXPECT_EQ(config->kv_layer_of(layer_idx), num_kv) << layer_idx;
    num_kv += letter == '*' ? 1 : 0;
  }
}

TEST(RecurrentConfigTest, ExpertsOfNemotronSuperHaveNarrowRows) {
  const auto config = ParseModelConfig(TextOf("nemotron-3-super-120b-a12b"));
  ASSERT_TRUE(config.ok()) << Message(config.status());
  const WeightMap map = DescribeWeights(*config, WeightFormat::kBF16);
  const LayerTensors& layer = map.layers[1];
  EXPECT_THAT(layer.latent_in_proj->shape, testing::ElementsAre(1024, 4096));
  EXPECT_THAT(layer.latent_out_proj->shape, testing::ElementsAre(4096, 1024));
  EXPECT_THAT(layer.experts[511].up_proj->shape, testing::ElementsAre(2688, 1024));
  EXPECT_THAT(layer.experts[511].down_proj->shape, testing::ElementsAre(1024, 2688));
  EXPECT_THAT(layer.shared_ffn.up_proj->shape, testing::ElementsAre(5376, 4096));
  EXPECT_EQ(map.layers[0].latent_in_proj, nullptr);
}

TEST(RecurrentConfigTest, LayersOfKimiLinearAreCountedFromOne) {
  const auto config = ParseModelConfig(TextOf("kimi-linear-48b-a3b"));
  ASSERT_TRUE(config.ok()) << Message(config.status());
  for (const int64_t layer_idx : {3, 7, 26}) EXPECT_FALSE(config->is_recurrent(layer_idx)) << layer_idx;
  for (const int64_t layer_idx : {0, 4, 25}) EXPECT_TRUE(config->is_recurrent(layer_idx)) << layer_idx;
  EXPECT_FALSE(config->layer_has_experts[0]);
  EXPECT_EQ(config->rotary_dim_of(3), 0);
}

TEST(RecurrentConfigTest, MiniMaxAddsToNormedInputs) {
  const auto config = ParseModelConfig(TextOf("minimax-m1"));
  ASSERT_TRUE(config.ok()) << Message(config.status());
  for (const int64_t layer_idx : {7, 15, 79}) EXPECT_FALSE(config->is_recurrent(layer_idx)) << layer_idx;
  EXPECT_TRUE(config->is_recurrent(0));
  EXPECT_EQ(config->rotary_dim_of(7), 64);
  EXPECT_EQ(config->recurrent.num_channels(), 0);
  EXPECT_EQ(config->recurrent.decay_cols(), 0);
  EXPECT_FLOAT_EQ(config->normed_residual.of_attention, 3.5565588f);
  EXPECT_FLOAT_EQ(config->normed_residual.of_recurrent, 3.5565588f);
  EXPECT_FLOAT_EQ(config->normed_residual.of_ffn, 3.5565588f);
  EXPECT_EQ(FindFamily("MiniMaxText01ForCausalLM"), &kMinimax);
  EXPECT_EQ(FindFamily("MiniMaxForCausalLM"), &kMinimax);
}

TEST(RecurrentConfigTest, RefusesByName) {
  struct Case {
    const char *name, *field, *message;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"lfm2-8b-a1b", R"("conv_bias": true)", "'conv_bias'"},
           {"lfm2-8b-a1b", R"("layer_types": null)", "'layer_types'"},
           {"lfm2-8b-a1b", R"("layer_types": ["conv"])", "24 times 'conv' or 'full_attention'"},
           {"lfm2-8b-a1b", R"("conv_L_cache": 17)", "'conv_L_cache'"},
           {"granite-4.0-h-tiny", R"("num_local_experts": 0)", "'num_local_experts'"},
           {"granite-4.0-h-tiny", R"("mamba_proj_bias": true)", "'mamba_proj_bias'"},
           {"granite-4.0-h-tiny", R"("mamba_d_head": 32)", "48 Mamba heads of 32 dims: expected 3072 in total"},
           {"granite-4.0-h-tiny", R"("mamba_n_groups": 5)", "48 value heads are not a multiple of 5 key heads"},
           {"nemotron-3-nano-30b-a3b", R"("moe_latent_size": 0)", "'moe_latent_size'"},
           {"nemotron-3-nano-30b-a3b", R"("hybrid_override_pattern": "MEM")", "52 letters of 'M*E-'"},
           {"nemotron-3-nano-30b-a3b", R"("mlp_hidden_act": "silu")", "'mlp_hidden_act'"},
           {"nemotron-3-nano-30b-a3b", R"("use_bias": true)", "'use_bias'"},
           {"nemotron-3-nano-30b-a3b", R"("num_hidden_layers": null, "layers_block_type": [])", "'layers_block_type'"},
           {"kimi-linear-48b-a3b", R"("linear_attn_config": {"full_attn_layers": [28]})", "numbers from 1"},
           {"jamba-1.5-mini", R"("num_experts": 1)", "'num_experts'"},
           {"jamba-1.5-mini", R"("mamba_d_state": 257)", "'mamba_d_state'"},
           {"minimax-m1", R"("attn_type_list": [1])", "'attn_type_list': expected a list of 80 numbers"},
           {"minimax-m1", R"("attn_type_list": [2])", "'attn_type_list'"},
           {"minimax-m1", R"("layernorm_mlp_beta": 2)", "'layernorm_mlp_beta'"},
           {"minimax-m1", R"("layernorm_linear_attention_alpha": 0)", "'layernorm_linear_attention_alpha'"},
           {"minimax-m1", R"("postnorm": false)", "'postnorm': expected true"},
           {"minimax-m1", R"("shared_intermediate_size": 4)", "'shared_intermediate_size'"}}) {
    json::object config = ParseJson(TextOf(c.name), Fault::kInternal)->get_object();
    const json::value changes = ParseJson(fmt::format("{{{}}}", c.field), Fault::kInternal).value();
    for (const auto& [key, value] : changes.get_object()) config[key] = value;
    const auto parsed = ParseModelConfig(std::string(json::serialize(config)));
    ASSERT_FALSE(parsed.ok()) << c.field;
    EXPECT_EQ(FaultOf(parsed.status()), Fault::kModel);
    EXPECT_THAT(Message(parsed.status()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace penstock
