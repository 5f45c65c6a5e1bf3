// Klotski's expert correlation table: how often each expert of a layer was chosen by tokens that came along a path of
// experts through the layers before it, and from this which experts the tokens at hand will want.
//
// A path of length l names one expert in each of the l layers before a layer, the nearest first. Klotski draws top-1
// and says nothing of top-k; here a token with top-k choices goes along all num_topk^l paths of their cross product,
// and each of its choices is counted once for each of these. The table keeps the paths of all lengths up to
// `path_length`: the first layers, and tokens whose long paths are unknown, use shorter ones; length 0 is the
// popularity in the layer.
//
// A token's tendency is a distribution over the experts: the mean over its known paths of their counts divided by their
// sum, so that neither a frequent path nor a frequent token drowns the others. The longest length of which one
// of the token's paths is known decides; a token of which nothing is known tends to nothing (zeros).
//
// Cost of Update and Tendency: num_rows * num_topk^l look-ups, and num_topk additions for each (Update) or num_experts
// for each distinct path (Tendency). Update measured in us for one layer, on one thread of a Xeon of 2.5 GHz, random
// routings:
//
//                             l = 0   l = 1   l = 2
//   256 rows, top-2 of 8          4       9      22
//   64 rows, top-8 of 128         2      15     645
//   256 rows, top-8 of 256               66
//
// As in the paper a warm-up run saves the table; later runs load it and keep their updates in memory, so that one
// task's habits do not lead the next. Deterministic: the same calls give the same bits. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

class ByteReader;

inline constexpr std::string_view kCorrelationMagic = "penstock correlation 1\n";
inline constexpr int64_t kMaxPathLength = 3;
inline constexpr int64_t kDefaultMaxPaths = 1 << 16;
inline constexpr uint64_t kMaxCorrelationModelBytes = 512;

// What a table is of. Two tables with equal shapes can stand for each other.
struct CorrelationShape {
  int64_t num_layers = 0;  // those with experts; layer_idx counts these
  int64_t num_experts = 0;
  int64_t num_topk = 0;
  int64_t path_length = 1;  // 0 to kMaxPathLength
  std::string model;        // its name: UTF-8, 1 to kMaxCorrelationModelBytes bytes

  bool operator==(const CorrelationShape&) const = default;
};

// What the rows of a pass chose in the layers before one: choices[d] is [num_rows, num_topk] of layer_idx - 1 - d, as
// the router wrote it, or empty where that is not known. What comes after an empty one or before layer 0 is not used.
struct RoutingHistory {
  int64_t num_rows = 0;
  std::array<std::span<const int32_t>, kMaxPathLength> choices;
};

class CorrelationTable {
 public:
  // An empty table. At most `max_paths` paths of length 1 and more are kept: once there are so many, new ones are not
  // added, and only those that are known are still counted. A path takes 4 * num_experts + about 150 bytes.
  // REQUIRES: the shape is within the limits (base/limits.h), 0 <= max_paths <= 2^32.
  explicit CorrelationTable(CorrelationShape shape, int64_t max_paths = kDefaultMaxPaths);

  const CorrelationShape& shape() const { return shape_; }
  int64_t num_paths() const { return static_cast<int64_t>(rows_.size()) - shape_.num_layers; }  // of length >= 1
  bool full() const { return num_paths() >= max_paths_; }

  // Counts the choices `topk_idx` [num_rows, num_topk] of a layer. A count that would pass 2^32 - 1 first halves all
  // counts of its path. REQUIRES: shapes fit, each expert is below num_experts.
  void Update(int64_t layer_idx, const RoutingHistory& history, std::span<const int32_t> topk_idx);

  // The sum of the rows' tendencies, [num_experts]. Rounding aside it adds up to the number of rows of which
  // something is known. REQUIRES: as Update.
  std::vector<double> Tendency(int64_t layer_idx, const RoutingHistory& history) const;

  // The `count` experts (all, if there are fewer) with the largest sums of tendencies, largest first; of equals the
  // lower index first. Of an empty table the first ones. REQUIRES: as Update, count >= 0.
  std::vector<int32_t> Hottest(int64_t layer_idx, const RoutingHistory& history, int64_t count) const;

  // The file's bytes: equal tables give equal bytes.
  //
  //   magic, num_layers u32, num_experts u32, num_topk u32, path_length u32, model_bytes u32, model, num_paths u64,
  //   for each path in ascending order of (layer_idx, length, experts):
  //     layer_idx u16, length u16, experts u16 [length], num_counts u16,
  //     (expert_idx u16, count u32) [num_counts], ascending, counts > 0
  //   checksum u64 (XXH3 of all before it); all little-endian
  std::string Serialize() const;
  // kInput, naming file, path, field, expected and found, when the bytes are damaged, of another model or shape, or
  // have more than `max_paths` paths. `name` stands for the file's.
  static absl::StatusOr<CorrelationTable> Parse(std::string_view bytes, std::string_view name,
                                                const CorrelationShape& expected, int64_t max_paths = kDefaultMaxPaths);

  // Replaces the file in one step (a temporary file beside it, fsync, rename); kIo when that fails.
  absl::Status Save(const std::string& path) const;
  static absl::StatusOr<CorrelationTable> Load(const std::string& path, const CorrelationShape& expected,
                                               int64_t max_paths = kDefaultMaxPaths);

 private:
  // The counts of one path.
  struct Row {
    uint64_t total = 0;
    std::vector<uint32_t> counts;  // [num_experts]
  };

  int64_t LongestPath(int64_t layer_idx, const RoutingHistory& history) const;
  void CheckRows(const RoutingHistory& history, std::span<const int32_t> topk_idx) const;
  template <typename Function>
  void ForEachPath(int64_t layer_idx, int64_t length, const RoutingHistory& history, int64_t row_idx,
                   Function function) const;
  Row* FindOrAdd(uint64_t key);
  absl::Status ParsePath(ByteReader& fields, uint64_t& last_key);

  CorrelationShape shape_;
  int64_t max_paths_;
  absl::flat_hash_map<uint64_t, Row> rows_;  // by PathKey; those of length 0 are always there
};

}  // namespace penstock
