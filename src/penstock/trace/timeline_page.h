// The page of a Timeline, as text.
//
// At the top is a table of the lanes. Below it, each lane has a row that shows every task of the window, however short
// (about 200 bytes of page each). The page can be read without scripts; its script zooms and moves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "penstock/runtime/runtime.h"

namespace penstock {

// A task that has ended.
struct TaskSlice {
  LaneIdx lane = 0;
  TaskLabel label = {};
  TaskCost cost = {};
  double begin_s = 0;
  double end_s = 0;
};
static_assert(sizeof(TaskSlice) == 160);

// The data that a Timeline collects.
struct TimelineRecord {
  std::vector<LaneUsage> lanes;   // totals of all tasks
  std::vector<TaskSlice> slices;  // the last tasks, in a ring
  size_t oldest = 0;              // index in slices, once the ring is full
  double dropped_until_s = 0;     // all tasks that ended later are kept
  double first_begin_s = 0;       // begin of the first task
  double last_end_s = 0;
};

// Returns an HTML document of the last `window_s` seconds, or of the whole run if it is shorter. REQUIRES: window_s >
// 0; the slices of a lane do not overlap and are in the order of their ends.
std::string TimelinePage(const TimelineRecord& record, std::string_view title, double window_s);

}  // namespace penstock
