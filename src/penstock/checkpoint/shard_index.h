// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

struct ShardIndex {
  struct Entry {
    std::string tensor;
    int shard_idx = 0;
  };

  std::vector<std::string> shards;  // bare file names, sorted
  std::vector<Entry> entries;       // sorted by tensor
};

// Parses the index. Refuses (kModel): a missing, empty or repeated weight_map, a tensor that is listed twice,
// shards that are no text, unsafe shard names, shards that are no safetensors files, more than kMaxShards
// shards, more than kMaxTensors tensors. Other fields are skipped.
absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view text);

}  // namespace penstock
