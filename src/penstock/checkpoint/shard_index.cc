#include "penstock/checkpoint/shard_index.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/json_events.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/model_folder.h"

namespace penstock {
namespace {

class IndexListener final : public JsonListener {
 public:
  absl::Status OnObjectBegin() override {
    PENSTOCK_RETURN_IF_ERROR(BeginValue("an object"));
    in_map_ = in_map_ || (depth_ == 1 && map_is_next_);
    map_is_next_ = false;
    ++depth_;
    return absl::OkStatus();
  }
  absl::Status OnObjectEnd() override {
    --depth_;
    if (depth_ == 1) in_map_ = false;
    return absl::OkStatus();
  }
  absl::Status OnArrayBegin() override {
    PENSTOCK_RETURN_IF_ERROR(BeginValue("an array"));
    ++depth_;
    return absl::OkStatus();
  }
  absl::Status OnArrayEnd() override { return OnObjectEnd(); }

  absl::Status OnKey(std::string_view key) override {
    if (in_map_) {
      if (index_.entries.size() == kMaxTensors) return ModelError("weight_map has more than {} tensors", kMaxTensors);
      index_.entries.push_back({.tensor = std::string(key)});
      return absl::OkStatus();
    }
    if (depth_ != 1 || key != "weight_map") return absl::OkStatus();
    if (has_map_) return ModelError("key 'weight_map' appears twice");
    has_map_ = map_is_next_ = true;
    return absl::OkStatus();
  }

  absl::Status OnString(std::string_view text) override {
    if (!in_map_) return BeginValue("a string");
    const std::string& tensor = index_.entries.back().tensor;
    if (const auto known = shards_.find(std::string(text)); known != shards_.end()) {
      index_.entries.back().shard_idx = known->second;
      return absl::OkStatus();
    }
    if (!IsSafeFileName(text)) {
      return ModelError("unsafe shard name '{}' for tensor '{}': expected the bare name of a file in the folder",
                        Excerpt(text), Excerpt(tensor));
    }
    if (!text.ends_with(".safetensors")) {
      return ModelError("shard '{}' of tensor '{}' is not a .safetensors file", text, Excerpt(tensor));
    }
    if (shards_.size() == static_cast<size_t>(kMaxShards)) return ModelError("more than {} shards", kMaxShards);
    index_.entries.back().shard_idx = static_cast<int>(shards_.size());
    shards_.emplace(text, static_cast<int>(shards_.size()));
    return absl::OkStatus();
  }
  absl::Status OnNumber(std::optional<uint64_t>) override { return BeginValue("a number"); }
  absl::Status OnLiteral() override { return BeginValue("true, false or null"); }

  absl::StatusOr<ShardIndex> Finish() {
    if (!has_map_) return ModelError("expected an object with the field 'weight_map', which is missing");
    if (index_.entries.empty()) return ModelError("weight_map lists no tensor");
    index_.shards.resize(shards_.size());
    for (const auto& [name, shard_idx] : shards_) index_.shards[shard_idx] = name;
    SortShards();
    std::sort(index_.entries.begin(), index_.entries.end(),
              [](const ShardIndex::Entry& a, const ShardIndex::Entry& b) { return a.tensor < b.tensor; });
    const auto twin =
        std::adjacent_find(index_.entries.begin(), index_.entries.end(),
                           [](const ShardIndex::Entry& a, const ShardIndex::Entry& b) { return a.tensor == b.tensor; });
    if (twin != index_.entries.end()) return ModelError("weight_map lists tensor '{}' twice", Excerpt(twin->tensor));
    return std::move(index_);
  }

 private:
  // Called where a value other than a shard name begins.
  absl::Status BeginValue(std::string_view kind) {
    if (depth_ == 0 && kind != "an object") return ModelError("expected an object, found {}", kind);
    if (in_map_) {
      return ModelError("the shard of tensor '{}' must be a string, found {}", Excerpt(index_.entries.back().tensor),
                        kind);
    }
    if (map_is_next_ && kind != "an object") return ModelError("weight_map must be an object, found {}", kind);
    return absl::OkStatus();
  }

  // Numbers the shards by name instead of by the order of tensors in the index.
  void SortShards() {
    std::vector<std::string> sorted = index_.shards;
    std::sort(sorted.begin(), sorted.end());
    std::vector<int> rank(sorted.size());
    for (size_t i = 0; i < sorted.size(); ++i) {
      const auto at = std::lower_bound(sorted.begin(), sorted.end(), index_.shards[i]);
      rank[i] = static_cast<int>(at - sorted.begin());
    }
    for (ShardIndex::Entry& entry : index_.entries) entry.shard_idx = rank[entry.shard_idx];
    index_.shards = std::move(sorted);
  }

  ShardIndex index_;
  absl::flat_hash_map<std::string, int> shards_;
  int depth_ = 0;             // open objects and arrays
  bool in_map_ = false;       // inside weight_map
  bool map_is_next_ = false;  // the key weight_map has been read
  bool has_map_ = false;
};

}  // namespace

absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view text) {
  IndexListener listener;
  PENSTOCK_RETURN_IF_ERROR(ParseJsonEvents(text, Fault::kModel, {}, listener));
  return listener.Finish();
}

}  // namespace penstock
