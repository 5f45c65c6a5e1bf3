// Flags of commands that only describe a model and a machine, and do not use them.
#pragma once

#include <string>
#include <vector>

#include "penstock/base/json.h"
#include "penstock/cli/commands.h"
#include "penstock/plan/described_model.h"

namespace penstock::cli {

// The model, machine, workload and options that the flags describe.
struct Described {
  DescribedModel model;
  Hardware hardware;
  Workload workload;
  EngineOptions options;
  bool all_schedules = false;  // --schedule all: side by side
};
// kUsage unless there is either a folder or a config.
absl::StatusOr<DescribedModel> DescribeModel(const std::string& model_dir, const ConfigFlags& config,
                                             const std::vector<std::string>& mirrors = {});
// kUsage for flags that exclude each other; kModel, kInput or kIo for faults of the files that they name.
absl::StatusOr<Described> Describe(const DescribedFlags& flags);

// Each returns one line: the model, or the workload.
std::string ModelLine(const DescribedModel& model);
std::string WorkloadLine(const Workload& workload);

// Returns model, budgets and workload, for --json.
json::object ToJson(const Described& described);

// Returns the presets with the sources of their numbers, for --hardware list.
std::string PresetTable();

}  // namespace penstock::cli
