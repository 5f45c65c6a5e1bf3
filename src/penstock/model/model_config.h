// The dims and switches of a model, in the words of this project, whatever its family calls them.
//
// Immutable after LoadModelConfig: every value has been checked against base/limits.h and against the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/token_id.h"

namespace penstock {

struct Family;

enum class QkNorm : uint8_t {
  kNone,
  kPerHead,  // RMSNorm over head_dim of each head (Qwen3)
  kWhole,    // RMSNorm over all heads of a row at once (OLMoE)
};

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
  int64_t expert_dim = 0;     // FFN width of one expert
  int64_t dense_ffn_dim = 0;  // FFN width of the layers without experts
  int64_t max_positions = 0;
  int64_t sliding_window = 0;  // a position sees this many positions, itself included; 0: all before it
  float rms_norm_eps = 0;
  float clip_qkv = 0;  // q, k and v are clamped to +-clip_qkv; 0: not
  double rope_theta = 0;
  QkNorm qk_norm = QkNorm::kNone;
  bool norm_topk_prob = true;  // the top-k weights are divided by their sum
  bool attention_bias = false;
  bool tie_embeddings = false;
  std::vector<bool> layer_has_experts;  // [num_layers]; false: a dense FFN
  std::vector<TokenId> eos_ids;

  int64_t q_dim() const { return num_heads * head_dim; }
  int64_t kv_dim() const { return num_kv_heads * head_dim; }
  int64_t num_moe_layers() const;
  std::vector<int64_t> moe_layers() const;
};

// Reads config.json and generation_config.json. Every failure is kModel and names file and field.
absl::StatusOr<ModelConfig> LoadModelConfig(const ModelFolder& folder);

// The same from the text of config.json.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json);

}  // namespace penstock
