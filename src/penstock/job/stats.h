// Numbers about a finished job: the --stats file for machines and the summary table for people.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/engine.h"

namespace penstock {

// The least time in which a machine could do some work (the hierarchical roofline's limit): each of its parts busy with
// what only it can do, all at once.
struct Bound {
  double seconds = 0;
  std::string limited_by;  // "disk", "memory", "host memory", "arithmetic", ...; empty when nothing was asked
};
Bound BoundOf(const EngineStats& stats, const MachineRates& rates);

struct JobNumbers {
  int64_t num_requests = 0;  // answered or failed in this run
  int64_t num_failed = 0;
  int64_t num_resumed = 0;  // done by earlier runs
  double total_s = 0;
  std::string model;
  EngineStats engine;
  MachineRates rates;  // measured after the job; zeros when nobody asked
  MemoryPlan plan;
  double predicted_tokens_per_s = 0;  // OpenedEngine
};

// The JSON of --stats. `hot_accuracy` is the share of the experts fetched ahead that were then wanted. `bound` is what
// the measured rates would have allowed; null when they were not measured. Nor is there a predicted rate without a
// plan.
std::string FormatStats(const JobNumbers& numbers);

std::string FormatSummary(const JobNumbers& numbers);

// Most memory that this process ever had resident; 0 when /proc does not tell.
uint64_t PeakRssBytes();

}  // namespace penstock
