#include "penstock/job/input/shard.h"

#include <charconv>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"

namespace penstock {

std::string Shard::Text() const { return fmt::format("{}/{}", index, count); }
std::string Shard::Suffix() const { return is_whole() ? "" : " of shard " + Text(); }

absl::StatusOr<Shard> ParseShard(std::string_view text) {
  Shard shard;
  const char* const end = text.data() + text.size();
  const auto index = std::from_chars(text.data(), end, shard.index);
  const bool has_slash = index.ec == std::errc() && index.ptr != end && *index.ptr == '/';
  if (has_slash) {
    const auto count = std::from_chars(index.ptr + 1, end, shard.count);
    const bool is_read = count.ec == std::errc() && count.ptr == end;
    if (is_read && 1 <= shard.index && shard.index <= shard.count && shard.count <= kMaxJobShards) return shard;
  }
  return UsageError("expected I/N with 1 <= I <= N <= {}, such as 2/16, found '{}'", kMaxJobShards, text);
}

}  // namespace penstock
