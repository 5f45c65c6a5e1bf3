// Switch Transformers (Fedus et al. 2022): T5's encoder and decoder, with top-1 experts of two matrices in some layers.
#include <cmath>

#include "penstock/base/limits.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

constexpr StoredName kEncoderNames[] = {
    {"input_layernorm.weight", "layer.0.layer_norm.weight"},
    {"self_attn.q_proj.weight", "layer.0.SelfAttention.q.weight"},
    {"self_attn.k_proj.weight", "layer.0.SelfAttention.k.weight"},
    {"self_attn.v_proj.weight", "layer.0.SelfAttention.v.weight"},
    {"self_attn.o_proj.weight", "layer.0.SelfAttention.o.weight"},
    {"post_attention_layernorm.weight", "layer.1.layer_norm.weight"},
    {"mlp.gate.weight", "layer.1.mlp.router.classifier.weight"},
    {"mlp.gate.bias", "layer.1.mlp.router.classifier.bias"},
    {"mlp.up_proj.weight", "layer.1.mlp.wi.weight"},
    {"mlp.down_proj.weight", "layer.1.mlp.wo.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "layer.1.mlp.experts.expert_{expert}.wi.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "layer.1.mlp.experts.expert_{expert}.wo.weight"},
};

constexpr StoredName kSwitchTransformersStoredNames[] = {
    {"model.embed_tokens.weight", "shared.weight"},
    {"model.norm.weight", "decoder.final_layer_norm.weight"},
    {"model.encoder.norm.weight", "encoder.final_layer_norm.weight"},
    {"model.encoder.relative_bias.weight", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"},
    {"model.decoder.relative_bias.weight", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"},
    {"input_layernorm.weight", "layer.0.layer_norm.weight"},
    {"self_attn.q_proj.weight", "layer.0.SelfAttention.q.weight"},
    {"self_attn.k_proj.weight", "layer.0.SelfAttention.k.weight"},
    {"self_attn.v_proj.weight", "layer.0.SelfAttention.v.weight"},
    {"self_attn.o_proj.weight", "layer.0.SelfAttention.o.weight"},
    {"cross_layernorm.weight", "layer.1.layer_norm.weight"},
    {"cross_attn.q_proj.weight", "layer.1.EncDecAttention.q.weight"},
    {"cross_attn.k_proj.weight", "layer.1.EncDecAttention.k.weight"},
    {"cross_attn.v_proj.weight", "layer.1.EncDecAttention.v.weight"},
    {"cross_attn.o_proj.weight", "layer.1.EncDecAttention.o.weight"},
    {"post_attention_layernorm.weight", "layer.2.layer_norm.weight"},
    {"mlp.gate.weight", "layer.2.mlp.router.classifier.weight"},
    {"mlp.gate.bias", "layer.2.mlp.router.classifier.bias"},
    {"mlp.up_proj.weight", "layer.2.mlp.wi.weight"},
    {"mlp.down_proj.weight", "layer.2.mlp.wo.weight"},
    {"mlp.experts.{expert}.up_proj.weight", "layer.2.mlp.experts.expert_{expert}.wi.weight"},
    {"mlp.experts.{expert}.down_proj.weight", "layer.2.mlp.experts.expert_{expert}.wo.weight"},
};

constexpr std::string_view kIgnoredNames[] = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};

constexpr FieldName kSwitchTransformersFieldNames[] = {
    {"hidden_size", "d_model"},
    {"num_hidden_layers", "num_layers"},
    {"num_attention_heads", "num_heads"},
    {"head_dim", "d_kv"},
    {"intermediate_size", "d_ff"},
    {"num_experts_per_tok", "num_selected_experts"},
    {"max_position_embeddings", "n_positions"},
    {"rms_norm_eps", "layer_norm_epsilon"},
    {"hidden_act", "dense_act_fn"},
    {"hidden_act", "feed_forward_proj"},
};

// Appends which of a stack's layers have experts. transformers spaces them by whole numbers of layers, and begins with
// the second layer.
void AddSparseLayers(int64_t num_layers, int64_t num_sparse, std::vector<bool>& has_experts) {
  const int64_t step = num_sparse > 0 ? num_layers / num_sparse : num_layers;
  for (int64_t i = 0; i < num_layers; ++i) {
    has_experts.push_back(step == 1 || (step > 1 && i % step == 1));
  }
}

void ReadSwitchTransformersConfig(ConfigReader& reader, ModelConfig& config) {
  Encoder& encoder = config.encoder;
  encoder.num_layers = config.num_layers;
  const int64_t num_decoder_layers = reader.IntOr("num_decoder_layers", encoder.num_layers, 1, kMaxLayers);
  config.num_layers += num_decoder_layers;
  if (config.num_layers > kMaxLayers) {
    reader.FailRelation(
        fmt::format("{} layers in encoder and decoder: expected at most {}", config.num_layers, kMaxLayers));
    return;
  }
  config.layer_has_experts.clear();
  AddSparseLayers(encoder.num_layers, reader.IntOr("num_sparse_encoder_layers", 3, 0, kMaxLayers),
                  config.layer_has_experts);
  AddSparseLayers(num_decoder_layers, reader.IntOr("num_sparse_decoder_layers", 3, 0, kMaxLayers),
                  config.layer_has_experts);
  if (config.num_moe_layers() == 0) reader.FailRelation("no layer has experts");
  config.num_experts = reader.Int("num_experts", 1, kMaxExperts);
  config.expert_dim = config.dense_ffn_dim = reader.Int("intermediate_size", 1, kMaxModelDim);
  if (config.num_topk != 1) reader.FailRelation("num_selected_experts: expected 1");
  config.is_gated = false;
  config.router.renormalises = false;
  config.router_bias = reader.BoolOr("router_bias", false);
  if (const std::string dtype = reader.StringOr("router_dtype", "float32"); dtype != "float32") {
    reader.Fail("router_dtype", "'float32'", fmt::format("'{}'", dtype));
  }
  encoder.expert_capacity = reader.IntOr("expert_capacity", 64, 1, kMaxContext);
  encoder.num_buckets = reader.IntOr("relative_attention_num_buckets", 32, 4, 4096);
  encoder.max_distance = reader.IntOr("relative_attention_max_distance", 128, 2, 4096);
  if (encoder.num_buckets >= 2 * encoder.max_distance) {
    reader.FailRelation(
        fmt::format("relative_attention_num_buckets {}: expected fewer than twice the maximum distance, {}",
                    encoder.num_buckets, encoder.max_distance));
  }
  encoder.start_id = static_cast<TokenId>(reader.IntOr(
      "decoder_start_token_id", reader.IntOr("pad_token_id", 0, 0, config.vocab_size - 1), 0, config.vocab_size - 1));
  // Without ties, encoder and decoder would have embeddings of their own; no published model has.
  config.tie_embeddings = reader.BoolOr("tie_word_embeddings", true);
  if (!config.tie_embeddings) reader.FailRelation("tie_word_embeddings: expected true");
  config.logit_scale = 1 / std::sqrt(static_cast<float>(config.model_dim));
  config.attention_scale = 1;
}

}  // namespace

const Family kSwitch = {
    .name = "switch_transformers",
    .architecture = "SwitchTransformersForConditionalGeneration",
    .default_max_positions = 512,
    .default_norm_eps = 1e-6,
    .layer_ropes = LayerRopes::kNone,
    .field_names = kSwitchTransformersFieldNames,
    .layer_prefix = "decoder.block.{layer}.",
    .stored_names = kSwitchTransformersStoredNames,
    .encoder_prefix = "encoder.block.{layer}.",
    .encoder_names = kEncoderNames,
    .ignored_names = kIgnoredNames,
    .hidden_act = "relu",
    .default_topk = 1,
    .read_config = ReadSwitchTransformersConfig,
};

}  // namespace penstock
