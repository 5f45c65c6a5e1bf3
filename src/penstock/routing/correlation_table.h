// Klotski's expert correlation table. It counts how often tokens chose each expert of a layer after a certain path of
// experts through the layers before. From these counts it predicts the experts that the present tokens will choose.
//
// A path of length l names one expert in each of the l layers before a layer, the nearest first. The paper draws top-1
// and does not describe top-k. Here a token with top-k choices follows all num_topk^l paths of their cross product.
// Each of its choices is counted once for each path. The table keeps paths of all lengths up to `path_length`. Shorter
// paths serve the first layers, and tokens whose longer paths are unknown. Length 0 is the popularity in the layer.
//
// A token's tendency is a distribution over the experts. For each known path of the token, the counts are divided by
// their sum; the tendency is the mean of these quotients. So neither a frequent path nor a frequent token drowns the
// others. The longest length with a known path is used. If no path is known, the tendency is zero for all experts.
//
// Cost of Update and Tendency: num_rows * num_topk^l look-ups. Update adds num_topk additions for each look-up;
// Tendency adds num_experts additions for each distinct path. Time of Update in us, for one layer and random routings,
// on one thread of a 2.5 GHz Xeon:
//
//                             l = 0   l = 1   l = 2
//   256 rows, top-2 of 8          4       9      22
//   64 rows, top-8 of 128         2      15     645
//   256 rows, top-8 of 256               66
//
// As in the paper, a warm-up run saves the table. Later runs load it and keep their updates in memory, so that one
// task's routings do not mislead the next. Deterministic: the same calls give the same bits. One thread at a time.
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

// The model and the dimensions of a table. Tables with equal shapes are interchangeable.
struct CorrelationShape {
  int64_t num_layers = 0;  // number of layers with experts; layer_idx counts only these
  int64_t num_experts = 0;
  int64_t num_topk = 0;
  int64_t path_length = 1;  // 0 to kMaxPathLength
  std::string model;        // name of the model: UTF-8, 1 to kMaxCorrelationModelBytes bytes

  bool operator==(const CorrelationShape&) const = default;
};

// The choices that the rows of a pass made in the layers before one layer. choices[d] is [num_rows, num_topk], as the
// router wrote it in layer layer_idx - 1 - d, or empty if it is not known. Entries after an empty one or before layer 0
// are not used.
struct RoutingHistory {
  int64_t num_rows = 0;
  std::array<std::span<const int32_t>, kMaxPathLength> choices;
};

class CorrelationTable {
 public:
  // Creates an empty table with at most `max_paths` paths of length >= 1. A full table adds no new paths but still
  // counts the known ones. A path takes 4 * num_experts + about 150 bytes. REQUIRES: the shape is within the limits
  // (base/limits.h), 0 <= max_paths <= 2^32.
  explicit CorrelationTable(CorrelationShape shape, int64_t max_paths = kDefaultMaxPaths);

  const CorrelationShape& shape() const { return shape_; }
  // Returns the number of paths of length >= 1.
  int64_t num_paths() const { return static_cast<int64_t>(rows_.size()) - shape_.num_layers; }
  bool full() const { return num_paths() >= max_paths_; }

  // Counts the choices `topk_idx` [num_rows, num_topk] of a layer. Before a count would pass 2^32 - 1, all counts of
  // its path are halved. REQUIRES: shapes fit, each expert is below num_experts.
  void Update(int64_t layer_idx, const RoutingHistory& history, std::span<const int32_t> topk_idx);

  // Returns the sum of the rows' tendencies, [num_experts]. Apart from rounding, its elements add up to the number of
  // rows that have a known path. REQUIRES: as Update.
  std::vector<double> Tendency(int64_t layer_idx, const RoutingHistory& history) const;

  // Returns the `count` experts (or all, if there are fewer) with the largest sums of tendencies, largest first. Among
  // equals the lower index comes first, so an empty table gives the first experts. REQUIRES: as Update, count >= 0.
  std::vector<int32_t> Hottest(int64_t layer_idx, const RoutingHistory& history, int64_t count) const;

  // Returns the bytes of the file; equal tables give equal bytes.
  //
  //   magic, num_layers u32, num_experts u32, num_topk u32, path_length u32, model_bytes u32, model, num_paths u64,
  //   for each path in ascending order of (layer_idx, length, experts):
  //     layer_idx u16, length u16, experts u16 [length], num_counts u16,
  //     (expert_idx u16, count u32) [num_counts], ascending, counts > 0
  //   checksum u64 (XXH3 of all before it); all little-endian
  std::string Serialize() const;
  // Reads a table from the bytes of a file; `name` is the file's name in messages. kInput when the bytes are damaged,
  // belong to another model or shape, or hold more than `max_paths` paths. The message gives file, path, field,
  // expected and found values.
  static absl::StatusOr<CorrelationTable> Parse(std::string_view bytes, std::string_view name,
                                                const CorrelationShape& expected, int64_t max_paths = kDefaultMaxPaths);

  // Replaces the file atomically (a temporary file beside it, fsync, rename); kIo when that fails.
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
  // By PathKey; paths of length 0 are always present.
  absl::flat_hash_map<uint64_t, Row> rows_;
};

}  // namespace penstock
