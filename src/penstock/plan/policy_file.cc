#include "penstock/plan/policy_file.h"

#include <algorithm>
#include <concepts>
#include <type_traits>
#include <vector>

#include "penstock/base/choices.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/plan/formats.h"
#include "penstock/plan/policy.h"

namespace penstock {
namespace {

class PolicyReader {
 public:
  PolicyReader(const json::object& object, const std::string& name) : object_(&object), name_(&name) {}

  void Read(std::string_view key, std::string& value) {
    const json::value* found = Find(key);
    if (found == nullptr) return;
    if (!found->is_string()) return Refuse(key, "a string", *found);
    value = std::string(found->get_string());
  }
  void Read(std::string_view key, bool& value) {
    const json::value* found = Find(key);
    if (found == nullptr) return;
    if (!found->is_bool()) return Refuse(key, "true or false", *found);
    value = found->get_bool();
  }
  template <std::integral Integer>
  void Read(std::string_view key, Integer& value) {
    const json::value* found = Find(key);
    if (found == nullptr) return;
    const int64_t* number = found->if_int64();
    if (number == nullptr || *number < 0) return Refuse(key, "a whole number of 0 or more", *found);
    value = static_cast<Integer>(*number);
  }
  template <class Value, class Row>
  void Read(std::string_view key, std::optional<Value>& value, std::span<const Row> rows) {
    std::string name(ChoiceName(value, rows));
    Read(key, name);
    const absl::StatusOr<std::optional<Value>> choice = ParseChoice(key, name, rows);
    if (choice.ok()) {
      value = *choice;
    } else {
      status_.Update(Annotate(choice.status(), Printable(*name_)));
    }
  }
  // The policy's predictor, with its file.
  void Read(std::string_view key, Policy& policy) {
    std::string text = PredictorText(policy);
    Read(key, text);
    const absl::Status status = ParsePredictor(text, policy);
    if (!status.ok()) status_.Update(Annotate(status, Printable(*name_)));
  }
  absl::Status Finish() {
    if (status_.ok() && num_found_ < object_->size()) {
      for (const auto& [key, value] : *object_) {
        if (std::find(known_.begin(), known_.end(), std::string_view(key)) != known_.end()) continue;
        return UsageError("{}: unknown key '{}'; known are {}", Printable(*name_), Printable(std::string(key)),
                          fmt::join(known_, ", "));
      }
    }
    return status_;
  }

 private:
  const json::value* Find(std::string_view key) {
    known_.push_back(key);
    const json::value* found = object_->if_contains(json::string_view(key.data(), key.size()));
    num_found_ += found == nullptr ? 0 : 1;
    return found;
  }
  void Refuse(std::string_view key, std::string_view expected, const json::value& found) {
    status_.Update(UsageError("{}: '{}': expected {}, found {}", Printable(*name_), key, expected,
                              Printable(std::string(json::serialize(found)))));
  }

  const json::object* object_;
  const std::string* name_;
  std::vector<std::string_view> known_;
  size_t num_found_ = 0;
  absl::Status status_;
};

// Visits every key with the field that it sets and, if there is one, the table of its choices.
template <typename Options, typename Visitor>
void VisitPolicy(Options& options, Visitor visit) {
  auto& policy = options.policy;
  visit("schedule", policy.schedule, Schedules());
  visit("eviction", policy.eviction, Evictions());
  visit("batch_size", options.batch_size);
  visit("micro_batch_size", policy.micro_batch_size);
  visit("kv_tier", policy.kv_tier, KvTiers());
  visit("prompt_attention", policy.prompt_attention, PromptAttentions());
  visit("pinned_experts", policy.pinned_experts, PinnedExpertsTable());
  visit("prefill_chunk", options.prefill_chunk);
  visit("expert_slots", policy.expert_slots);
  visit("streaming_slots", policy.streaming_slots);
  visit("disk_window", policy.disk_window);
  visit("hot_experts", policy.hot_experts);
  visit("path_length", policy.path_length);
  visit("attention_parallel", policy.attention_parallel, AttentionParallels());
  visit("expert_parallel", policy.expert_parallel, ExpertParallels());
  visit("expert_placement", policy.expert_placement);
  visit("expert_replicas", policy.expert_replicas);
  visit("expert_groups", policy.expert_groups);
  visit("correlation_table", policy.correlation_table);
  visit("multi_batch", policy.multi_batch);
  visit("hot_prefetch", policy.hot_prefetch);
  visit("reorder", policy.reorder);
  visit("hybrid_rule", policy.hybrid_rule, HybridRules());
  visit("predictor", policy);
  visit("memory_bytes", options.memory_bytes);
  visit("context_length", options.context_length);
  visit("planned_positions", options.planned_positions);
  visit("activations", options.activations, ActivationFormats());
  visit("kv_dtype", options.kv_dtype, KvFormats());
  visit("comm_dtype", options.comm_dtype, CommFormats());
}

json::object AllOf(const EngineOptions& options) {
  json::object all;
  VisitPolicy(options, [&](std::string_view key, const auto& value, auto... rows) {
    if constexpr (std::is_same_v<decltype(value), const Policy&>) {
      all[key] = PredictorText(value);
    } else if constexpr (sizeof...(rows) > 0) {
      all[key] = json::value_from(ChoiceName(value, rows...));
    } else {
      all[key] = json::value_from(value);
    }
  });
  return all;
}

}  // namespace

json::object PolicyJson(const EngineOptions& options) {
  const json::object defaults = AllOf({});
  json::object policy;
  for (const auto& [key, value] : AllOf(options)) {
    if (defaults.at(key) != value) policy[key] = value;
  }
  return policy;
}

absl::Status ApplyPolicy(std::string_view text, const std::string& name, EngineOptions& options) {
  const absl::StatusOr<json::value> document = ParseJson(text, Fault::kUsage);
  if (!document.ok()) return Annotate(document.status(), Printable(name));
  if (!document->is_object()) return UsageError("{}: expected a JSON object", Printable(name));
  PolicyReader reader(document->get_object(), name);
  VisitPolicy(options, [&](std::string_view key, auto& value, auto... rows) { reader.Read(key, value, rows...); });
  return reader.Finish();
}

absl::Status ApplyPolicyFile(const std::string& path, EngineOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigBytes));
  return ApplyPolicy(text, path, options);
}

}  // namespace penstock
