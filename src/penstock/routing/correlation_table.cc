#include "penstock/routing/correlation_table.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <numeric>
#include <utility>

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include "penstock/base/check.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/routing/byte_fields.h"

namespace penstock {
namespace {

constexpr int kExpertBits = 12;
constexpr int kLengthBits = 2;
constexpr int kPathBits = kExpertBits * kMaxPathLength;
static_assert(kMaxExperts <= 1 << kExpertBits && kMaxPathLength < 1 << kLengthBits);
static_assert(kMaxLayers < int64_t{1} << (64 - kPathBits - kLengthBits) && kMaxLayers <= 1 << 16);

constexpr uint64_t kNoKey = std::numeric_limits<uint64_t>::max();  // not a path: its layer would be beyond the limit
constexpr uint32_t kMaxCount = std::numeric_limits<uint32_t>::max();
constexpr size_t kTableHeaderBytes = kCorrelationMagic.size() + 5 * sizeof(uint32_t);

// Returns a key that sorts by (layer_idx, length, experts). `experts` holds `length` numbers of kExpertBits each, the
// nearest layer's in the highest bits.
uint64_t PathKey(int64_t layer_idx, int64_t length, uint64_t experts) {
  return (static_cast<uint64_t>(layer_idx) << kLengthBits | static_cast<uint64_t>(length)) << kPathBits | experts;
}

absl::Status CheckShape(const CorrelationShape& shape) {
  PENSTOCK_RETURN_IF_ERROR(CheckField("num_layers", shape.num_layers, 1, kMaxLayers));
  PENSTOCK_RETURN_IF_ERROR(CheckField("num_experts", shape.num_experts, 1, kMaxExperts));
  PENSTOCK_RETURN_IF_ERROR(CheckField("num_topk", shape.num_topk, 1, std::min(kMaxTopk, shape.num_experts)));
  PENSTOCK_RETURN_IF_ERROR(CheckField("path_length", shape.path_length, 0, kMaxPathLength));
  PENSTOCK_RETURN_IF_ERROR(CheckField("bytes of the model's name", static_cast<int64_t>(shape.model.size()), 1,
                                      static_cast<int64_t>(kMaxCorrelationModelBytes)));
  if (!IsUtf8(shape.model)) return InputError("the model's name: expected UTF-8, found '{}'", Excerpt(shape.model));
  return absl::OkStatus();
}

std::string Describe(const CorrelationShape& shape) {
  return fmt::format("'{}' ({} layers of {} experts, top-{}, path length {})", Excerpt(shape.model), shape.num_layers,
                     shape.num_experts, shape.num_topk, shape.path_length);
}

}  // namespace

CorrelationTable::CorrelationTable(CorrelationShape shape, int64_t max_paths)
    : shape_(std::move(shape)), max_paths_(max_paths) {
  PENSTOCK_CHECK(CheckShape(shape_).ok());
  PENSTOCK_CHECK(max_paths >= 0 && max_paths <= int64_t{1} << 32);
  for (int64_t layer_idx = 0; layer_idx < shape_.num_layers; ++layer_idx) {
    rows_[PathKey(layer_idx, 0, 0)].counts.resize(shape_.num_experts);
  }
}

// ---- counting and predicting

int64_t CorrelationTable::LongestPath(int64_t layer_idx, const RoutingHistory& history) const {
  PENSTOCK_CHECK(layer_idx >= 0 && layer_idx < shape_.num_layers);
  const int64_t max = std::min(shape_.path_length, layer_idx);
  int64_t length = 0;
  while (length < max && !history.choices[length].empty()) {
    CheckRows(history, history.choices[length]);
    ++length;
  }
  return length;
}

void CorrelationTable::CheckRows(const RoutingHistory& history, std::span<const int32_t> topk_idx) const {
  PENSTOCK_CHECK(history.num_rows >= 0);
  PENSTOCK_CHECK(topk_idx.size() == static_cast<size_t>(history.num_rows * shape_.num_topk));
  const bool fit = std::all_of(topk_idx.begin(), topk_idx.end(), [this](int32_t expert_idx) {
    return expert_idx >= 0 && expert_idx < shape_.num_experts;
  });
  PENSTOCK_CHECK(fit);
}

// Calls function(key) for each of the row's num_topk^length paths.
template <typename Function>
void CorrelationTable::ForEachPath(int64_t layer_idx, int64_t length, const RoutingHistory& history, int64_t row_idx,
                                   Function function) const {
  const size_t num_topk = static_cast<size_t>(shape_.num_topk);
  const size_t row_begin = static_cast<size_t>(row_idx) * num_topk;
  std::array<size_t, kMaxPathLength> ranks{};
  for (;;) {
    uint64_t experts = 0;
    for (size_t d = 0; d < static_cast<size_t>(length); ++d) {
      experts = experts << kExpertBits | static_cast<uint64_t>(history.choices[d][row_begin + ranks[d]]);
    }
    function(PathKey(layer_idx, length, experts));
    size_t d = 0;
    while (d < static_cast<size_t>(length) && ++ranks[d] == num_topk) ranks[d++] = 0;
    if (d == static_cast<size_t>(length)) return;
  }
}

CorrelationTable::Row* CorrelationTable::FindOrAdd(uint64_t key) {
  const auto found = rows_.find(key);
  if (found != rows_.end()) return &found->second;
  if (full()) return nullptr;
  Row& row = rows_[key];
  row.counts.resize(shape_.num_experts);
  return &row;
}

void CorrelationTable::Update(int64_t layer_idx, const RoutingHistory& history, std::span<const int32_t> topk_idx) {
  const int64_t longest = LongestPath(layer_idx, history);
  CheckRows(history, topk_idx);
  const size_t num_topk = static_cast<size_t>(shape_.num_topk);
  for (int64_t row_idx = 0; row_idx < history.num_rows; ++row_idx) {
    const auto chosen = topk_idx.subspan(static_cast<size_t>(row_idx) * num_topk, num_topk);
    for (int64_t length = 0; length <= longest; ++length) {
      ForEachPath(layer_idx, length, history, row_idx, [&](uint64_t key) {
        Row* row = FindOrAdd(key);
        if (row == nullptr) return;
        for (const int32_t expert_idx : chosen) {
          uint32_t& count = row->counts[expert_idx];
          if (count == kMaxCount) {
            for (uint32_t& other : row->counts) other /= 2;
            row->total = std::accumulate(row->counts.begin(), row->counts.end(), uint64_t{0});
          }
          ++count;
          ++row->total;
        }
      });
    }
  }
}

std::vector<double> CorrelationTable::Tendency(int64_t layer_idx, const RoutingHistory& history) const {
  const int64_t longest = LongestPath(layer_idx, history);
  PENSTOCK_CHECK(history.num_rows >= 0);
  // Collects the weight of each path in the order of first use, so that sums do not depend on addresses.
  std::vector<std::pair<const Row*, double>> weights;
  absl::flat_hash_map<const Row*, size_t> place_of;
  std::vector<const Row*> known;
  for (int64_t row_idx = 0; row_idx < history.num_rows; ++row_idx) {
    known.clear();
    for (int64_t length = longest; length >= 0 && known.empty(); --length) {
      ForEachPath(layer_idx, length, history, row_idx, [&](uint64_t key) {
        const auto found = rows_.find(key);
        if (found != rows_.end() && found->second.total > 0) known.push_back(&found->second);
      });
    }
    for (const Row* row : known) {
      const auto [place, is_new] = place_of.try_emplace(row, weights.size());
      if (is_new) weights.emplace_back(row, 0);
      weights[place->second].second += 1.0 / static_cast<double>(known.size());
    }
  }
  std::vector<double> sums(shape_.num_experts);
  for (const auto& [row, weight] : weights) {
    const double scale = weight / static_cast<double>(row->total);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += scale * row->counts[i];
  }
  return sums;
}

std::vector<int32_t> CorrelationTable::Hottest(int64_t layer_idx, const RoutingHistory& history, int64_t count) const {
  PENSTOCK_CHECK(count >= 0);
  const std::vector<double> sums = Tendency(layer_idx, history);
  std::vector<int32_t> hottest(sums.size());
  std::iota(hottest.begin(), hottest.end(), 0);
  const int64_t num_hottest = std::min(count, shape_.num_experts);
  std::partial_sort(hottest.begin(), hottest.begin() + num_hottest, hottest.end(), [&sums](int32_t a, int32_t b) {
    const double sum_a = sums[a];
    const double sum_b = sums[b];
    return sum_a > sum_b || (sum_a == sum_b && a < b);
  });
  hottest.resize(num_hottest);
  return hottest;
}

// ---- the file

std::string CorrelationTable::Serialize() const {
  std::vector<uint64_t> keys;
  for (const auto& [key, row] : rows_) {
    if (row.total > 0) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  std::string out(kCorrelationMagic);
  for (const int64_t dim : {shape_.num_layers, shape_.num_experts, shape_.num_topk, shape_.path_length}) {
    AppendField(out, static_cast<uint32_t>(dim));
  }
  AppendField(out, static_cast<uint32_t>(shape_.model.size()));
  out.append(shape_.model);
  AppendField(out, uint64_t{keys.size()});
  for (const uint64_t key : keys) {
    const std::vector<uint32_t>& counts = rows_.at(key).counts;
    const int length = static_cast<int>(key >> kPathBits & ((1 << kLengthBits) - 1));
    AppendField(out, static_cast<uint16_t>(key >> (kPathBits + kLengthBits)));
    AppendField(out, static_cast<uint16_t>(length));
    for (int d = length - 1; d >= 0; --d) {
      AppendField(out, static_cast<uint16_t>(key >> (d * kExpertBits) & ((1 << kExpertBits) - 1)));
    }
    const auto num_zeros = std::count(counts.begin(), counts.end(), uint32_t{0});
    AppendField(out, static_cast<uint16_t>(counts.size() - static_cast<size_t>(num_zeros)));
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      AppendField(out, static_cast<uint16_t>(i));
      AppendField(out, counts[i]);
    }
  }
  AppendField(out, static_cast<uint64_t>(XXH3_64bits(out.data(), out.size())));
  return out;
}

absl::Status CorrelationTable::ParsePath(ByteReader& fields, uint64_t& last_key) {
  const int64_t layer_idx = fields.Take<uint16_t>();
  const int64_t length = fields.Take<uint16_t>();
  PENSTOCK_RETURN_IF_ERROR(CheckField("layer_idx", layer_idx, 0, shape_.num_layers - 1));
  PENSTOCK_RETURN_IF_ERROR(CheckField("length", length, 0, std::min(shape_.path_length, layer_idx)));
  uint64_t experts = 0;
  for (int64_t d = 0; d < length; ++d) {
    const uint16_t expert_idx = fields.Take<uint16_t>();
    PENSTOCK_RETURN_IF_ERROR(CheckField("expert of the path", expert_idx, 0, shape_.num_experts - 1));
    experts = experts << kExpertBits | expert_idx;
  }
  const int64_t num_counts = fields.Take<uint16_t>();
  if (!fields.ok()) return InputError("the bytes end in its middle");
  PENSTOCK_RETURN_IF_ERROR(CheckField("num_counts", num_counts, 1, shape_.num_experts));
  const uint64_t key = PathKey(layer_idx, length, experts);
  if (last_key != kNoKey && key <= last_key) return InputError("expected ascending paths, found one that is not");
  last_key = key;
  if (length > 0 && full()) return InputError("paths of length 1 and more: the limit is {}, found more", max_paths_);
  Row& row = *FindOrAdd(key);
  int64_t last_expert_idx = -1;
  for (int64_t i = 0; i < num_counts; ++i) {
    const int64_t expert_idx = fields.Take<uint16_t>();
    const uint32_t count = fields.Take<uint32_t>();
    if (!fields.ok()) return InputError("the bytes end in its middle");
    PENSTOCK_RETURN_IF_ERROR(CheckField("expert", expert_idx, last_expert_idx + 1, shape_.num_experts - 1));
    PENSTOCK_RETURN_IF_ERROR(CheckField("count", count, 1, kMaxCount));
    row.counts[expert_idx] = count;
    row.total += count;
    last_expert_idx = expert_idx;
  }
  return absl::OkStatus();
}

absl::StatusOr<CorrelationTable> CorrelationTable::Parse(std::string_view bytes, std::string_view name,
                                                         const CorrelationShape& expected, int64_t max_paths) {
  if (bytes.substr(0, kCorrelationMagic.size()) != kCorrelationMagic) {
    return InputError("{}: not a correlation table of this version: expected it to begin with 'penstock correlation 1'",
                      name);
  }
  if (bytes.size() < kTableHeaderBytes + kChecksumBytes) return InputError("{}: the header is cut short", name);
  const std::string_view content = bytes.substr(0, bytes.size() - kChecksumBytes);
  const uint64_t stored = ByteReader(bytes.substr(content.size())).Take<uint64_t>();
  const uint64_t computed = XXH3_64bits(content.data(), content.size());
  if (stored != computed) {
    return InputError("{}: checksum: expected {:016x}, found {:016x}: the file is damaged or cut short", name, stored,
                      computed);
  }
  ByteReader fields(content.substr(kCorrelationMagic.size()));
  CorrelationShape shape;
  shape.num_layers = fields.Take<uint32_t>();
  shape.num_experts = fields.Take<uint32_t>();
  shape.num_topk = fields.Take<uint32_t>();
  shape.path_length = fields.Take<uint32_t>();
  shape.model = fields.TakeBytes(fields.Take<uint32_t>());
  const uint64_t num_paths = fields.Take<uint64_t>();
  if (!fields.ok()) return InputError("{}: the header is cut short", name);
  PENSTOCK_RETURN_IF_ERROR(Annotate(CheckShape(shape), name));
  if (shape != expected) {
    return InputError("{}: a correlation table of {}, expected one of {}", name, Describe(shape), Describe(expected));
  }
  CorrelationTable table(expected, max_paths);
  uint64_t last_key = kNoKey;
  for (uint64_t i = 0; i < num_paths; ++i) {
    const absl::Status status = table.ParsePath(fields, last_key);
    if (!status.ok()) return Annotate(status, fmt::format("{}: path {} of {}", name, i, num_paths));
  }
  if (fields.num_left() > 0) {
    return InputError("{}: after the last of {} paths: expected nothing, found {} bytes", name, num_paths,
                      fields.num_left());
  }
  return table;
}

absl::Status CorrelationTable::Save(const std::string& path) const { return ReplaceFile(path, Serialize()); }

absl::StatusOr<CorrelationTable> CorrelationTable::Load(const std::string& path, const CorrelationShape& expected,
                                                        int64_t max_paths) {
  // The longest file that is accepted.
  const uint64_t num_storable = static_cast<uint64_t>(max_paths + expected.num_layers);
  const uint64_t path_bytes = 6 + 2 * kMaxPathLength + 6 * static_cast<uint64_t>(expected.num_experts);
  const uint64_t header_bytes = kTableHeaderBytes + kMaxCorrelationModelBytes + sizeof(uint64_t);
  PENSTOCK_ASSIGN_OR_RETURN(const std::string bytes,
                            ReadFile(path, header_bytes + num_storable * path_bytes + kChecksumBytes));
  return Parse(bytes, path, expected, max_paths);
}

}  // namespace penstock
