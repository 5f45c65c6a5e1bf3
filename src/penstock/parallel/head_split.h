// Attention by heads: each rank computes some of the KV heads, and the query heads that belong to them, for the rows of
// all ranks. It is the "attention=tp" of `--parallel`.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "penstock/model/model_config.h"
#include "penstock/parallel/rank_split.h"

namespace penstock {

// Neighbouring KV heads, `first` to `end`, of `total`.
struct HeadRange {
  int64_t first = 0;
  int64_t end = 1;
  int64_t total = 1;

  // Returns the first of `count` things, equally many for each head, that belong to these heads, and their number. All
  // heads have all things, whatever their number: recurrent layers have heads of their own.
  int64_t FirstOf(int64_t count) const { return count / total * first; }
  int64_t NumOf(int64_t count) const { return is_all() ? count : count / total * (end - first); }
  bool is_all() const { return end - first == total; }
};

// Returns the KV heads of a rank: all of them, unless the ranks share them. The numbers of heads differ by one at most,
// and the last rank has the most.
HeadRange HeadsOf(const ModelConfig& config, const RankSplit& split);

// Returns the config of a model that has only these heads.
ModelConfig ConfigOfHeads(const ModelConfig& config, const HeadRange& heads);

// kUsage when the heads cannot be shared by so many ranks.
absl::Status CheckSharesHeads(const ModelConfig& config, int num_ranks);

}  // namespace penstock
