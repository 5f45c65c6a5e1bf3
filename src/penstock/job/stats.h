// Statistics of a finished job: the --stats file for machines and the summary table for people.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/engine.h"

namespace penstock {

// The least time in which a machine can do the work, by the hierarchical roofline model. All parts of the machine work
// at the same time, each on the work that only it can do.
struct Bound {
  double seconds = 0;
  std::string limited_by;  // "disk", "memory", "host memory", "arithmetic", ...; empty when there was no work
};
Bound BoundOf(const EngineStats& stats, const MachineRates& rates);

// Failed requests with one error code.
struct Failures {
  std::string code;
  int64_t num_requests = 0;
  int64_t first_line = 0;
  std::string first_message;
};

struct JobNumbers {
  int64_t num_requests = 0;  // answered or failed in this run
  int64_t num_failed = 0;
  int64_t num_resumed = 0;  // done by earlier runs
  double total_s = 0;
  std::string model;
  EngineStats engine;
  MachineRates rates;  // measured after the job; zeros if not measured
  MemoryPlan plan;
  double predicted_tokens_per_s = 0;    // from OpenedEngine
  std::vector<Failures> failures = {};  // of this run
};

// Returns the JSON of --stats. `hot_accuracy` is the share of the prefetched experts that were then wanted. `bound` is
// the limit at the measured rates; null when they were not measured. Without a plan the predicted rate is null, too.
std::string FormatStats(const JobNumbers& numbers);

std::string FormatSummary(const JobNumbers& numbers);

// Returns the most memory that this process ever had resident; 0 when /proc does not tell.
uint64_t PeakRssBytes();

}  // namespace penstock
