// The page of a Timeline, as text.
//
// Above, a table of the lanes; below it a row for each lane, in which each task of the window is drawn, however thin
// (about 200 bytes of page for each). The page can be read without a script; the script zooms and moves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "penstock/runtime/runtime.h"

namespace penstock {

// A task that ended.
struct TaskSlice {
  LaneIdx lane = 0;
  TaskLabel label = {};
  TaskCost cost = {};
  double begin_s = 0;
  double end_s = 0;
};
static_assert(sizeof(TaskSlice) == 104);

// What a Timeline knows.
struct TimelineRecord {
  std::vector<LaneUsage> lanes;   // totals of all tasks
  std::vector<TaskSlice> slices;  // of the last tasks; a ring
  size_t oldest = 0;              // of slices, once the ring is full
  double dropped_until_s = 0;     // no task that ended later was dropped
  double first_begin_s = 0;       // of all tasks
  double last_end_s = 0;
};

// An HTML document of the last `window_s` seconds, or of what there is of them. REQUIRES: window_s > 0; lanes' slices
// do not overlap and are in the order of their ends.
std::string TimelinePage(const TimelineRecord& record, std::string_view title, double window_s);

}  // namespace penstock
