// The dims and switches of a model, in the words of this project, whatever its family calls them.
//
// Immutable after LoadModelConfig: every value has been checked against base/limits.h and against the others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/model/rope.h"
#include "penstock/model/rules.h"
#include "penstock/token_id.h"

namespace penstock {

struct Family;

enum class QkNorm : uint8_t {
  kNone,
  kPerHead,           // RMSNorm over head_dim of each head (Qwen3)
  kPerHeadAfterRope,  // the same of what RoPE has rotated (Hunyuan); the others come before it
  kWhole,             // RMSNorm over all heads of a row at once (OLMoE)
};

// Multi-head latent attention (DeepSeek-V2, section 2.1). A position's K and V are kept as one compressed vector for
// all heads, [kv_lora_rank], and a part with its position, [rope_dim]: that is K with one KV head of kv_lora_rank +
// rope_dim dimensions, of which the first kv_lora_rank are V. Queries come to it, and values from it, through the
// up-projections of K and V ("absorbed"), for prompts as for single tokens, so that both have the same bits.
struct Mla {
  int64_t q_lora_rank = 0;   // 0: q is projected at once
  int64_t kv_lora_rank = 0;  // 0: no MLA
  int64_t nope_dim = 0;      // of a head's q, without positions
  int64_t rope_dim = 0;
  int64_t value_dim = 0;  // of a head's V
  float norm_eps = 1e-6f;

  bool is_on() const { return kv_lora_rank > 0; }
};

// Codes that a checkpoint has instead of floats, with their scales in tensors of their own (quantization_config).
enum class CodedWeights : uint8_t {
  kNone,
  kFp8,    // E4M3, a scale for each fp8_block_rows x 128 weights in NAME_scale_inv (DeepSeek-V3)
  kMxfp4,  // E2M1, a power of two for each 32 weights; NAME_blocks and NAME_scales (gpt-oss)
};

inline constexpr int8_t kNoRope = -1;

struct ModelConfig {
  const Family* family = nullptr;
  int64_t vocab_size = 0;
  int64_t model_dim = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t num_experts = 0;
  int64_t num_topk = 0;
  int64_t expert_dim = 0;      // FFN width of one expert
  int64_t dense_ffn_dim = 0;   // FFN width of the layers without experts
  int64_t shared_ffn_dim = 0;  // FFN width of what all rows take beside their experts; 0: nothing
  int64_t max_positions = 0;
  int64_t num_mtp_layers = 0;  // behind the others in a checkpoint, to predict further tokens; they are not used

  Norm norm = Norm::kRms;  // of layers and of what lm_head takes
  bool norm_bias = false;
  float norm_eps = 0;

  Mla mla;
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool o_bias = false;
  float clip_qkv = 0;  // q, k and v are clamped to +-clip_qkv; 0: not
  Rope rope;
  std::vector<Rope> other_ropes;       // of some layers; as many dims rotate, in the same way
  std::vector<int8_t> layer_rope;      // [num_layers]: 0 for `rope`, i for other_ropes[i - 1], or kNoRope; empty: all 0
  float attention_scale = 0;           // of q . k; 1 / sqrt(head_dim) in most models
  bool attention_sinks = false;        // a learned number for each head that takes part in its softmax
  int64_t sliding_window = 0;          // a position sees this many positions, itself included; 0: all before it
  std::vector<bool> layer_has_window;  // [num_layers]; empty: all of them

  RouterRule router;
  bool router_bias = false;            // is added to logits
  bool router_selection_bias = false;  // is added to scores, to choose by
  GluRule glu;
  bool expert_bias = false;
  bool shared_gate = false;             // shared_ffn is scaled by 1 / (1 + exp(-gate . x))
  std::vector<bool> layer_has_experts;  // [num_layers]; false: a dense FFN
  // Snowflake Arctic: the residual takes a dense FFN (shared_ffn_dim) of itself after attention, with a norm of its
  // own, and experts of what the layer began with.
  bool parallel_experts = false;

  // What an operation's output is multiplied by (Granite); 1 elsewhere.
  float embedding_scale = 1;
  float residual_scale = 1;  // of attention and FFNs, before they are added
  float logit_scale = 1;
  bool lm_head_bias = false;
  bool tie_embeddings = false;
  CodedWeights coded = CodedWeights::kNone;
  int32_t fp8_block_rows = 128;
  std::vector<TokenId> eos_ids;

  int64_t q_dim() const { return num_heads * head_dim; }
  int64_t kv_dim() const { return num_kv_heads * head_dim; }
  // Of K's dimensions, those that are V; 0: V lies beside it.
  int64_t values_in_key() const { return mla.kv_lora_rank; }
  int64_t value_dim() const { return mla.is_on() ? mla.kv_lora_rank : head_dim; }
  int64_t v_dim() const { return mla.is_on() ? 0 : kv_dim(); }
  int64_t attended_dim() const { return num_heads * value_dim(); }
  int64_t rope_of(int64_t layer_idx) const {
    return layer_rope.empty() ? 0 : layer_rope[static_cast<size_t>(layer_idx)];
  }
  // Of a head's dims, how many rotate in a layer.
  int64_t rotary_dim_of(int64_t layer_idx) const { return rope_of(layer_idx) == kNoRope ? 0 : rope.rotary_dim; }
  // Of a position, for all of its ropes one after the other, and where those of a layer are.
  int64_t num_angles() const { return (1 + static_cast<int64_t>(other_ropes.size())) * rope.rotary_dim / 2; }
  int64_t first_angle_of(int64_t layer_idx) const {
    return std::max<int64_t>(0, rope_of(layer_idx)) * rope.rotary_dim / 2;
  }
  // What a position sees in a layer; 0: all before it.
  int64_t window_of(int64_t layer_idx) const {
    return layer_has_window.empty() || layer_has_window[static_cast<size_t>(layer_idx)] ? sliding_window : 0;
  }
  int64_t num_moe_layers() const;
  std::vector<int64_t> moe_layers() const;
};

// Reads config.json and generation_config.json. Every failure is kModel and names file and field.
absl::StatusOr<ModelConfig> LoadModelConfig(const ModelFolder& folder);

// The same from the text of config.json.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json);

// From fields of config.json, wherever they come from.
class ConfigReader;
absl::StatusOr<ModelConfig> ReadModelConfig(ConfigReader& reader, const Family& family);

}  // namespace penstock
