// MiniMax-M2: QK norm over all heads at once, RoPE on a part of each head, and experts chosen by sigmoids with a bias.
#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

constexpr FieldName kMinimaxM2FieldNames[] = {{"num_experts", "num_local_experts"}};

constexpr StoredName kMinimaxM2StoredNames[] = {
    {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
    {"mlp.gate.e_score_correction_bias", "block_sparse_moe.e_score_correction_bias"},
    {"mlp.experts.{expert}.gate_proj.weight", "block_sparse_moe.experts.{expert}.w1.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "block_sparse_moe.experts.{expert}.w3.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "block_sparse_moe.experts.{expert}.w2.weight"},
};

void ReadMinimaxM2Config(ConfigReader& reader, ModelConfig& config) {
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  config.qk_norm = QkNorm::kWhole;
  config.router.scoring = RouterRule::Scoring::kSigmoid;
  config.router.renormalises = true;
  config.router_selection_bias = true;
}

}  // namespace

const Family kMinimaxM2 = {
    .name = "minimax_m2",
    .architecture = "MiniMaxM2ForCausalLM",
    .comes_with_code = true,
    .default_head_dim = 128,
    .default_rope_theta = 5e6,
    .default_norm_eps = 1e-6,
    .takes_partial_rotary = true,
    .field_names = kMinimaxM2FieldNames,
    .stored_names = kMinimaxM2StoredNames,
    .gguf = {.architecture = "minimax-m2"},
    .read_config = ReadMinimaxM2Config,
};

}  // namespace penstock
