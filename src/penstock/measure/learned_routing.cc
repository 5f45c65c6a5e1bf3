#include "penstock/measure/learned_routing.h"

#include <utility>
#include <vector>

#include "penstock/base/json.h"
#include "penstock/base/logging.h"
#include "penstock/measure/measurement_cache.h"

namespace penstock {
namespace {

constexpr std::string_view kKind = "choices";
constexpr int64_t kMaxCount = int64_t{1} << 40;  // sums of counts stay far below 2^63

json::object IdentityOf(const std::string& fingerprint) { return {{"model", fingerprint}}; }

std::optional<int64_t> CountIn(const json::value* value) {
  if (value == nullptr || !value->is_int64()) return std::nullopt;
  const int64_t count = value->get_int64();
  return count >= 0 && count <= kMaxCount ? std::optional(count) : std::nullopt;
}

// Reads one layer's counts. Returns false when they are not counts of `counts.size()` experts.
bool ReadCounts(const json::value& value, std::vector<int64_t>& counts) {
  if (!value.is_array() || value.get_array().size() != counts.size()) return false;
  for (size_t i = 0; i < counts.size(); ++i) {
    const std::optional<int64_t> count = CountIn(&value.get_array()[i]);
    if (!count.has_value()) return false;
    counts[i] = *count;
  }
  return true;
}

}  // namespace

void LearnRouting(const std::string& fingerprint, const ModelConfig& config, RoutingCounts counts) {
  if (counts.num_choices() == 0) return;
  if (const std::optional<RoutingCounts> earlier = LearnedRouting(fingerprint, config)) counts.AddEarlier(*earlier);
  json::array layers;
  for (const std::vector<int64_t>& of_layer : counts.chosen) {
    layers.emplace_back(json::array(of_layer.begin(), of_layer.end()));
  }
  Keep(kKind, IdentityOf(fingerprint),
       {{"chosen", std::move(layers)}, {"following", counts.num_following}, {"repeated", counts.num_repeated}});
}

RoutingSpec ExpectedRouting(const DescribedModel& model) {
  if (model.loaded() == nullptr) return TypicalRouting();
  const std::optional<RoutingCounts> counts = LearnedRouting(model.loaded()->fingerprint, model.config());
  if (!counts.has_value()) return TypicalRouting();
  LogInfo("plans assume the experts that this model chose in earlier runs with --policy auto");
  return counts->ToSpec(model.config().num_topk);
}

std::optional<RoutingCounts> LearnedRouting(const std::string& fingerprint, const ModelConfig& config) {
  const std::optional<json::object> kept = ReadKept(kKind, IdentityOf(fingerprint));
  if (!kept.has_value()) return std::nullopt;
  RoutingCounts counts(config.num_moe_layers(), config.num_experts);
  const json::value* layers = kept->if_contains("chosen");
  const std::optional<int64_t> following = CountIn(kept->if_contains("following"));
  const std::optional<int64_t> repeated = CountIn(kept->if_contains("repeated"));
  if (layers == nullptr || !layers->is_array() || layers->get_array().size() != counts.chosen.size() ||
      !following.has_value() || !repeated.has_value() || *repeated > *following) {
    return std::nullopt;
  }
  for (size_t i = 0; i < counts.chosen.size(); ++i) {
    if (!ReadCounts(layers->get_array()[i], counts.chosen[i])) return std::nullopt;
  }
  counts.num_following = *following;
  counts.num_repeated = *repeated;
  if (counts.num_choices() == 0) return std::nullopt;
  return counts;
}

}  // namespace penstock
