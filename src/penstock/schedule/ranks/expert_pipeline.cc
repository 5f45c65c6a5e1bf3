#include "penstock/schedule/ranks/expert_pipeline.h"

#include <algorithm>
#include <cmath>

namespace penstock {

double PipelineSeconds(const PipelineTimes& times, int64_t num_groups) {
  const auto part = [&](double seconds) { return seconds / static_cast<double>(num_groups) + times.group_s; };
  // Returns when the rows of the first groups are here. A row needs none of them if all its choices are in the others.
  const auto rows_here = [&](int64_t groups) {
    const double later = static_cast<double>(num_groups - groups) / static_cast<double>(num_groups);
    return times.rows_s * (1 - std::pow(later, times.choices_per_row)) + static_cast<double>(groups) * times.group_s;
  };
  double computed = 0, outputs_end = rows_here(num_groups);
  for (int64_t group = 1; group <= num_groups; ++group) {
    computed = std::max(computed, rows_here(group)) + part(times.compute_s);
    outputs_end = std::max(outputs_end, computed) + part(times.outputs_s);
  }
  return outputs_end;
}

int64_t BestExpertGroups(const PipelineTimes& times, int64_t max_groups) {
  int64_t best = 1;
  double best_s = PipelineSeconds(times, 1);
  for (int64_t num_groups = 2; num_groups <= max_groups; ++num_groups) {
    const double seconds = PipelineSeconds(times, num_groups);
    if (seconds >= best_s) continue;
    best = num_groups;
    best_s = seconds;
  }
  return best;
}

}  // namespace penstock
