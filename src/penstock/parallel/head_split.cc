#include "penstock/parallel/head_split.h"

#include "penstock/base/status.h"

namespace penstock {

HeadRange HeadsOf(const ModelConfig& config, const RankSplit& split) {
  const int64_t total = config.num_kv_heads;
  if (!split.by_heads) return {0, total, total};
  return {total * split.rank / split.num_ranks, total * (split.rank + 1) / split.num_ranks, total};
}

ModelConfig ConfigOfHeads(const ModelConfig& config, const HeadRange& heads) {
  ModelConfig own = config;
  own.num_heads = heads.NumOf(config.num_heads);
  own.num_kv_heads = heads.NumOf(config.num_kv_heads);
  return own;
}

absl::Status CheckSharesHeads(const ModelConfig& config, int num_ranks) {
  if (config.mla.is_on()) {
    return UsageError(
        "--parallel attention=tp: all heads of this model share their KV entries (MLA); use attention=dp");
  }
  if (config.num_recurrent_layers() > 0 || config.attention_gate || !config.layer_heads.empty()) {
    return UsageError("--parallel attention=tp: ranks cannot share the heads of this model; use attention=dp");
  }
  if (config.qk_norm == QkNorm::kWhole) {
    return UsageError("--parallel attention=tp: this model norms all heads together; use attention=dp");
  }
  if (config.num_kv_heads < num_ranks) {
    return UsageError("--parallel attention=tp: {} KV heads for {} ranks; use attention=dp", config.num_kv_heads,
                      num_ranks);
  }
  return absl::OkStatus();
}

}  // namespace penstock
