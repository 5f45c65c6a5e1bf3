// Joins the outputs of a job's shards (`run --shard`) into the output of the whole job, in the order of the input.
//
// Memory does not grow with the job: a nameless file beside the output says where each result lies.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/job/result_line.h"

namespace penstock {

struct MergeOptions {
  std::vector<std::string> part_paths;  // the outputs of the shards, in any order; their manifests lie beside them
  std::string output_path;              // must not exist
};

struct MergeSummary {
  int64_t num_results = 0;
  int64_t num_failed = 0;  // results that are error records
  LabelCounts labels;      // of results that say whether they are correct
  std::string note;        // why the lines may differ from those of a run of the whole job; usually empty
};

// Writes the output in one step, and its manifest, so that `run --resume` knows the job. Writes no output otherwise:
// kUsage for an output that is no file name; kInput when the parts are not of one job, a shard is missing or there
// twice, or a request has no result; kIo when a part still runs or is damaged, when the output exists, or when reading
// or writing fails; kResources for more parts than the process may open; kStopped when `stop` is set.
absl::StatusOr<MergeSummary> MergeShards(const MergeOptions& options, const std::atomic<bool>& stop);

}  // namespace penstock
