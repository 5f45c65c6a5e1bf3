// gpt-oss (OpenAI 2025): attention sinks, every other layer with a window, clamped SwiGLU, biases everywhere.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

constexpr StoredName kGptOssStoredNames[] = {
    {"mlp.gate.weight", "mlp.router.weight"},
    {"mlp.gate.bias", "mlp.router.bias"},
    {"mlp.experts.{expert}.gate_proj.weight", "mlp.experts.gate_up_proj", /*is_transposed=*/true,
     /*is_interleaved=*/true},
    {"mlp.experts.{expert}.up_proj.weight", "mlp.experts.gate_up_proj", /*is_transposed=*/true,
     /*is_interleaved=*/true},
    {"mlp.experts.{expert}.down_proj.weight", "mlp.experts.down_proj", /*is_transposed=*/true},
    {"mlp.experts.gate_proj.bias", "mlp.experts.gate_up_proj_bias", /*is_transposed=*/false, /*is_interleaved=*/true},
    {"mlp.experts.up_proj.bias", "mlp.experts.gate_up_proj_bias", /*is_transposed=*/false, /*is_interleaved=*/true},
    {"mlp.experts.down_proj.bias", "mlp.experts.down_proj_bias"},
};

void ReadGptOssConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_local_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.attention_sinks = true;
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", true);
  config.router_bias = true;
  config.expert_bias = true;
  config.glu = {.alpha = static_cast<float>(reader.NumberOr("swiglu_alpha", 1.702, 0, 100)),
                .up_offset = 1,
                .limit = static_cast<float>(reader.NumberOr("swiglu_limit", 7, 1e-3, 1e6))};
  ReadSlidingWindow(reader, config, 128);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_has_window.push_back(layer_idx % 2 == 0);
  }
  ReadLayerTypes(reader, config);
}

}  // namespace

const Family kGptOss = {
    .name = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .default_head_dim = 64,
    .default_rope_theta = 150000,
    .default_rope_scaling = R"({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                "truncate": false, "original_max_position_embeddings": 4096})",
    .stored_names = kGptOssStoredNames,
    .gguf = {.architecture = "gpt-oss", .has_default_window = true},
    .read_config = ReadGptOssConfig,
};

}  // namespace penstock
