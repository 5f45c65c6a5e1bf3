// The flags of commands that describe a model and a machine instead of using them.
#pragma once

#include <string>

#include "penstock/base/json.h"
#include "penstock/cli/commands.h"
#include "penstock/plan/described_model.h"

namespace penstock::cli {

// What they stand for.
struct Described {
  DescribedModel model;
  Hardware hardware;
  Workload workload;
  EngineOptions options;
};
// kUsage for what does not go together; kModel, kInput and kIo of the files that they name.
absl::StatusOr<Described> Describe(const DescribedFlags& flags);

// One line each: the model, the memory of `options`, the workload.
std::string ModelLine(const DescribedModel& model);
std::string WorkloadLine(const Workload& workload);

// Of model, budgets and workload, for --json.
json::object ToJson(const Described& described);

// The presets and where their numbers come from, for --hardware list.
std::string PresetTable();

}  // namespace penstock::cli
