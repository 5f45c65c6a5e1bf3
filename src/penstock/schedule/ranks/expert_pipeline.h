// EPS-MoE's expert pipeline: how many groups a rank's experts are cut into.
//
// A layer on ranks has three parts: rows travel to the ranks of their experts, experts are computed, outputs travel
// back. With several groups, the rows of a group travel while the group before it is computed, and outputs leave as
// soon as their group is done. Each further group costs messages.
#pragma once

#include <cstdint>

namespace penstock {

// The seconds of a layer's parts on the slowest rank, each on its own.
struct PipelineTimes {
  double rows_s = 0;
  double compute_s = 0;
  double outputs_s = 0;
  double group_s = 0;  // what each group costs besides, in each of the three parts
  // Experts of the rank that a row chooses, 1 or more. A row comes with the first group that needs it. So with more
  // choices the first groups have more rows.
  double choices_per_row = 1;
};

// Returns the seconds of the layer with this number of groups of equal size. Links carry rows before outputs.
double PipelineSeconds(const PipelineTimes& times, int64_t num_groups);

// Returns the number of groups, from 1 to max_groups, with the fewest seconds.
int64_t BestExpertGroups(const PipelineTimes& times, int64_t max_groups);

}  // namespace penstock
