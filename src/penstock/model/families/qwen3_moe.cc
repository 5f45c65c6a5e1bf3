// Qwen3-MoE (Yang et al. 2025): RMSNorm on each head of q and k; some layers may have a dense FFN instead of experts.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"
#include "penstock/model/layer_fields.h"

namespace penstock {
namespace {

// Published folders say num_experts; transformers 5 saves the same number as num_local_experts.
constexpr FieldName kFieldNames[] = {{"num_experts", "num_local_experts"}};

void ReadConfig(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.router.renormalises = reader.BoolOr("norm_topk_prob", false);
  config.qkv_bias = config.o_bias = reader.BoolOr("attention_bias", false);
  config.qk_norm = QkNorm::kPerHead;
  if (reader.BoolOr("use_sliding_window", false)) ReadSlidingWindow(reader, config, 4096);
  ReadSparseLayers(reader, config);
}

}  // namespace

const Family kQwen3Moe = {
    .name = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .default_norm_eps = 1e-6,
    .field_names = kFieldNames,
    .gguf = {.architecture = "qwen3moe"},
    .read_config = ReadConfig,
};

}  // namespace penstock
