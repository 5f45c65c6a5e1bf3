// Feeds bytes as config.json, generation_config.json and hf_quant_config.json. Accepted input must be within the limits
// and consistent.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/model/family.h"
#include "penstock/model/generation_config.h"
#include "penstock/model/model_config.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

bool Within(int64_t value, int64_t min, int64_t max) { return value >= min && value <= max; }

void CheckModelConfig(std::string_view text) {
  const auto config = penstock::ParseModelConfig(text);
  if (!config.ok()) {
    Require(penstock::FaultOf(config.status()) == penstock::Fault::kModel);
    return;
  }
  Require(config->family != nullptr);
  Require(Within(config->vocab_size, 1, penstock::kMaxVocabSize) &&
          Within(config->model_dim, 1, penstock::kMaxModelDim));
  Require(Within(config->num_layers, 1, penstock::kMaxLayers) && Within(config->head_dim, 1, penstock::kMaxHeadDim));
  Require(Within(config->num_heads, 1, penstock::kMaxHeads) && Within(config->num_kv_heads, 1, config->num_heads));
  Require(config->num_heads % config->num_kv_heads == 0);
  Require(Within(config->num_experts, 1, penstock::kMaxExperts) && Within(config->num_topk, 1, config->num_experts));
  Require(Within(config->expert_dim, 1, penstock::kMaxModelDim) &&
          Within(config->max_positions, 1, penstock::kMaxContext));
  Require(config->layer_has_experts.size() == static_cast<size_t>(config->num_layers));
  Require(Within(config->num_moe_layers(), 0, config->num_layers));
  // Rows of codes become blocks: groups are whole blocks, or all inputs (tensor/block_formats.h).
  Require(Within(config->coded.group, 0, penstock::kMaxModelDim) && config->coded.group % 16 == 0);
  Require(!config->coded.is_int() || config->coded.group % 32 == 0);
  Require(config->rope.theta > 0 || config->family->layer_ropes == penstock::LayerRopes::kNone);
  // A layer without experts has a dense FFN.
  Require(config->num_moe_layers() == config->num_layers || config->dense_ffn_dim >= 1);
  for (const penstock::TokenId id : config->eos_ids) Require(Within(id, 0, config->vocab_size - 1));
}

void CheckGenerationConfig(std::string_view text) {
  constexpr int64_t kVocabSize = 1000;
  const auto config = penstock::ParseGenerationConfig(text, kVocabSize);
  if (!config.ok()) {
    Require(penstock::FaultOf(config.status()) == penstock::Fault::kModel);
    return;
  }
  for (const penstock::TokenId id : config->eos_ids) Require(Within(id, 0, kVocabSize - 1));
  Require(config->temperature >= 0 && config->top_p > 0 && config->top_p <= 1 && config->top_k >= 0);
  Require(config->min_p >= 0 && config->min_p <= 1 && config->repetition_penalty > 0);
}

void CheckModeloptFile(std::string_view text) {
  const auto coded = penstock::ParseModeloptFile(text);
  if (!coded.ok()) {
    Require(penstock::FaultOf(coded.status()) == penstock::Fault::kModel);
    return;
  }
  Require(coded->group == 0 || coded->group == 16);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckModelConfig(text);
  CheckGenerationConfig(text);
  CheckModeloptFile(text);
  return 0;
}
