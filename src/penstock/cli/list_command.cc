// penstock list: the tables of choices, so that people need not search the help texts.
#include <unistd.h>

#include <span>
#include <string>
#include <vector>

#include "penstock/base/choices.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/flags/described_flags.h"
#include "penstock/memory/eviction.h"
#include "penstock/plan/formats.h"
#include "penstock/plan/policy.h"
#include "penstock/plan/workload.h"
#include "penstock/routing/expert_predictor.h"
#include "penstock/schedule/expert_split.h"
#include "penstock/schedule/schedule.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock::cli {
namespace {

struct Table {
  std::string_view name;
  std::string_view use;  // the flag, or the key of a policy file, that takes these names
  std::string text;
};

std::vector<Table> Tables() {
  return {{"schedules", "--schedule", ChoiceList(Schedules())},
          {"predictors", "--predictor", ChoiceList(Predictors())},
          {"evictions", "policy: eviction", ChoiceList(Evictions())},
          {"rules", "policy: hybrid_rule", ChoiceList(HybridRules())},
          {"kv-tiers", "policy: kv_tier", ChoiceList(KvTiers())},
          {"pinned-experts", "policy: pinned_experts", ChoiceList(PinnedExpertsTable())},
          {"prompt-attentions", "policy: prompt_attention", ChoiceList(PromptAttentions())},
          {"attention-parallel", "--parallel attention=", ChoiceList(AttentionParallels())},
          {"expert-parallel", "--parallel experts=", ChoiceList(ExpertParallels())},
          {"dtypes", "--dtype", ChoiceList(ComputeDtypes())},
          {"activations", "--activations", ChoiceList(ActivationFormats())},
          {"kv-dtypes", "--kv-dtype", ChoiceList(KvFormats())},
          {"comm-dtypes", "--comm-dtype", ChoiceList(CommFormats())},
          {"weights", "--weights", ChoiceList(std::span<const WeightFormatTraits>(kWeightFormats))},
          {"hardware", "--hardware", PresetTable()},
          {"workloads", "--workload", WorkloadList()}};
}

}  // namespace

std::string ListNames() {
  std::string names;
  for (const Table& table : Tables()) names += (names.empty() ? "" : ", ") + std::string(table.name);
  return names;
}

absl::StatusOr<int> ListCommand(const ListFlags& flags) {
  std::string text;
  for (const Table& table : Tables()) {
    if (flags.table.empty())
      text += fmt::format("{}{} ({})\n{}", text.empty() ? "" : "\n", table.name, table.use, table.text);
    if (flags.table == table.name) text = table.text;
  }
  if (text.empty()) return UsageError("list '{}' is unknown: expected one of {}", Printable(flags.table), ListNames());
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, text, "stdout"));
  return 0;
}

}  // namespace penstock::cli
