// Parses model.safetensors.index.json, which says in which shard each tensor lies.
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

// Parses the index and skips other fields. Refuses with kModel:
// - a missing, empty or repeated weight_map, and a tensor that is listed twice;
// - shard names that are not strings, are unsafe or are not .safetensors files;
// - more than kMaxShards shards, or more than kMaxTensors tensors.
absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view text);

}  // namespace penstock
