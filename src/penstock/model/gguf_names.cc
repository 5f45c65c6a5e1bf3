// The tensors of GGUF files that hold a model's weights: llama.cpp's names, and how its converter differs by family.
#include <algorithm>

#include "penstock/model/gguf_model.h"

namespace penstock {
namespace {

constexpr StoredName kNames[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"model.norm.bias", "output_norm.bias"},
    {"lm_head.weight", "output.weight"},
    {"lm_head.bias", "output.bias"},
    {"input_layernorm.weight", "attn_norm.weight"},
    {"input_layernorm.bias", "attn_norm.bias"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"post_attention_layernorm.weight", "attn_output_norm.weight"},
    {"post_attention_layernorm.bias", "ffn_norm.bias"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.q_proj.weight", "attn_qkv.weight"},
    {"self_attn.k_proj.weight", "attn_qkv.weight"},
    {"self_attn.v_proj.weight", "attn_qkv.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.o_proj.bias", "attn_output.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"self_attn.sinks", "attn_sinks.weight"},
    {"self_attn.q_a_proj.weight", "attn_q_a.weight"},
    {"self_attn.q_a_proj.bias", "attn_q_a.bias"},
    {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"},
    {"self_attn.q_b_proj.weight", "attn_q_b.weight"},
    {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
    {"self_attn.kv_a_proj_with_mqa.bias", "attn_kv_a_mqa.bias"},
    {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
    {"self_attn.indexer.q_proj.weight", "indexer.attn_q_b.weight"},
    {"self_attn.indexer.k_proj.weight", "indexer.attn_k.weight"},
    {"self_attn.indexer.weights_proj.weight", "indexer.proj.weight"},
    {"self_attn.indexer.k_norm.weight", "indexer.k_norm.weight"},
    {"self_attn.indexer.k_norm.bias", "indexer.k_norm.bias"},
    {"self_attn.k_up_proj.weight", "attn_k_b.weight"},
    {"self_attn.v_up_proj.weight", "attn_v_b.weight"},
    {"self_attn.k_up_proj.weight", "attn_kv_b.weight", /*is_transposed=*/true},  // older files
    {"self_attn.v_up_proj.weight", "attn_kv_b.weight"},
    {"linear_attn.gate_proj.weight", "ssm_in.weight"},
    {"linear_attn.v_proj.weight", "ssm_in.weight"},
    {"linear_attn.k_proj.weight", "ssm_in.weight"},
    {"linear_attn.q_proj.weight", "ssm_in.weight"},
    {"linear_attn.decay_proj.weight", "ssm_in.weight"},
    {"linear_attn.beta_proj.weight", "ssm_beta.weight"},
    {.name = "linear_attn.conv.weight", .stored = "ssm_conv1d.weight", .is_transposed = true},
    {"linear_attn.conv.bias", "ssm_conv1d.bias"},
    {"linear_attn.decay_bias", "ssm_dt.bias"},
    {"linear_attn.decay_log", "ssm_a"},
    {"linear_attn.skip", "ssm_d"},
    {"linear_attn.norm.weight", "ssm_norm.weight"},
    {"linear_attn.o_proj.weight", "ssm_out.weight"},
    {"mlp.latent_in_proj.weight", "ffn_latent_down.weight"},
    {"mlp.latent_out_proj.weight", "ffn_latent_up.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.gate.bias", "ffn_gate_inp.bias"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b"},  // hy_v3
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_up_shexp.weight"},  // with the rows of up_proj behind it
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "ffn_gate_exps.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "ffn_up_exps.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "ffn_down_exps.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "ffn_gate_up_exps.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "ffn_gate_up_exps.weight"},
    {"mlp.experts.{expert}.gate_proj.weight", "ffn_gate.{expert}.weight"},  // older files
    {"mlp.experts.{expert}.up_proj.weight", "ffn_up.{expert}.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "ffn_down.{expert}.weight"},
    {"mlp.experts.gate_proj.bias", "ffn_gate_exps.bias"},
    {"mlp.experts.up_proj.bias", "ffn_up_exps.bias"},
    {"mlp.experts.down_proj.bias", "ffn_down_exps.bias"},
};

}  // namespace

std::vector<StoredName> GgufNames(const Family& family) {
  const std::span<const StoredName> own = family.gguf.stored_names;
  std::vector<StoredName> names(own.begin(), own.end());
  for (StoredName usual : kNames) {
    const auto is_own = [&](const StoredName& name) { return name.name == usual.name && name.stored == usual.stored; };
    if (std::any_of(own.begin(), own.end(), is_own)) continue;
    // A converter that puts rows of heads into pairs does so before it joins them with other weights.
    usual.is_paired = std::any_of(own.begin(), own.end(),
                                  [&](const StoredName& name) { return name.name == usual.name && name.is_paired; });
    names.push_back(usual);
  }
  return names;
}

}  // namespace penstock
