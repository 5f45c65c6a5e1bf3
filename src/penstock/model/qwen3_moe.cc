// Qwen3-MoE (Yang et al. 2025): RMSNorm on each head of q and k, some layers may have a dense FFN instead of experts.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

void ReadConfig(ConfigReader& reader, ModelConfig& config) {
  // Published folders say num_experts; transformers 5 saves the same number as num_local_experts.
  const bool new_name = reader.Find("num_experts") == nullptr && reader.Find("num_local_experts") != nullptr;
  config.num_experts = reader.Int(new_name ? "num_local_experts" : "num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("moe_intermediate_size", 1, kMaxModelDim);
  config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.norm_topk_prob = reader.BoolOr("norm_topk_prob", false);
  config.attention_bias = reader.BoolOr("attention_bias", false);
  config.qk_norm = QkNorm::kPerHead;
  if (reader.BoolOr("use_sliding_window", false)) {
    // null is full attention; only a field that is not there has the default.
    config.sliding_window = reader.IntOr("sliding_window", reader.Has("sliding_window") ? 0 : 4096, 1, kMaxContext);
  }
  // A layer has experts when (layer_idx + 1) is a multiple of the sparse step and it is not listed as dense.
  const int64_t sparse_step = reader.IntOr("decoder_sparse_step", 1, 1, kMaxLayers);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    config.layer_has_experts[layer_idx] = (layer_idx + 1) % sparse_step == 0;
  }
  const json::value* dense_layers = reader.Find("mlp_only_layers");
  if (dense_layers == nullptr) return;
  if (!dense_layers->is_array()) {
    reader.Fail("mlp_only_layers", "a list of layer indices", JsonTypeName(*dense_layers));
    return;
  }
  for (const json::value& entry : dense_layers->get_array()) {
    if (!entry.is_int64() || entry.get_int64() < 0 || entry.get_int64() >= config.num_layers) {
      reader.Fail("mlp_only_layers", "layer indices below num_hidden_layers", json::serialize(entry));
      return;
    }
    config.layer_has_experts[entry.get_int64()] = false;
  }
}

}  // namespace

const Family kQwen3Moe = {
    .name = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .default_rms_norm_eps = 1e-6,
    .router = "mlp.gate.weight",
    .expert_gate_proj = "mlp.experts.{expert}.gate_proj.weight",
    .expert_up_proj = "mlp.experts.{expert}.up_proj.weight",
    .expert_down_proj = "mlp.experts.{expert}.down_proj.weight",
    .read_config = ReadConfig,
};

}  // namespace penstock
