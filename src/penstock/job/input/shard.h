// A shard of a job: every N-th request, for runs on several machines that do not know of each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

// The shard I/N has the requests I, I + N, I + 2N, ... of the whole input, counted from 1 without blank lines.
struct Shard {
  int64_t index = 1;  // 1 to count
  int64_t count = 1;  // 1: the whole job

  bool is_whole() const { return count == 1; }
  // Returns whether the shard has the request that follows `num_before` others.
  bool Has(int64_t num_before) const { return num_before % count == index - 1; }
  std::string Text() const;    // "2/16"
  std::string Suffix() const;  // " of shard 2/16"; nothing for a whole job
  bool operator==(const Shard&) const = default;
};

// Reads "2/16". kUsage unless 1 <= I <= N <= kMaxJobShards.
absl::StatusOr<Shard> ParseShard(std::string_view text);

}  // namespace penstock
