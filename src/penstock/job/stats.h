// Statistics of a finished job: the --stats file for machines and the summary table for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "penstock/engine.h"
#include "penstock/job/result_line.h"

namespace penstock {

// The least time in which a machine can do the work, by the hierarchical roofline model. The model assumes that disk,
// memory and processors all work at the same time.
struct Bound {
  double seconds = 0;
  std::string limited_by;  // "disk", "memory", "host memory", "arithmetic", ...; empty when there was no work
};
Bound BoundOf(const EngineStats& stats, const MachineRates& rates);

// Failed requests with one error code.
struct Failures {
  std::string code;
  int64_t num_requests = 0;
  std::string first_place;
  std::string first_message;
};

// The process's resident memory at some moments of a run, at equal distances: at most kMaxSamples, so that the distance
// doubles when a run goes on.
class MemoryLog {
 public:
  struct Sample {
    double seconds = 0;  // since the run began
    uint64_t resident_bytes = 0;
  };
  static constexpr size_t kMaxSamples = 240;

  // Takes a sample if the last one is old enough.
  void Update(double seconds);
  const std::vector<Sample>& samples() const { return samples_; }

 private:
  double distance_s_ = 1;
  std::vector<Sample> samples_;
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
  LabelCounts labels = {};              // also of earlier runs
  MemoryLog memory;
};

// Returns the JSON of --stats. `hot_accuracy` is the share of the prefetched experts that were then wanted. `bound` is
// the limit at the measured rates; null when they were not measured. Without a plan the predicted rate is null, too.
std::string FormatStats(const JobNumbers& numbers);

// Returns the JSON of --stats for a run that ended with an error before it could count anything.
std::string FormatStatsOfError(const absl::Status& error);

std::string FormatSummary(const JobNumbers& numbers);
// Returns "71.3% (713 of 1000), by log-likelihood per character 70.1%". REQUIRES: there are labels.
std::string AccuracyText(const LabelCounts& labels);
// Returns the same as a line of the summary; nothing without labels.
std::string FormatAccuracy(const LabelCounts& labels);

// Returns the most memory that this process ever had resident; 0 when /proc does not tell.
uint64_t PeakRssBytes();
// The same for the present moment.
uint64_t ResidentBytes();

}  // namespace penstock
