#include "penstock/trace/timeline.h"

#include <algorithm>

#include "penstock/base/check.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"

namespace penstock {

Timeline::Timeline(size_t num_kept) : num_kept_(num_kept) {
  PENSTOCK_CHECK(num_kept > 0);
  record_.slices.reserve(num_kept);
}

void Timeline::AddLane(LaneIdx lane, std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (static_cast<size_t>(lane) >= record_.lanes.size()) record_.lanes.resize(lane + 1);
  record_.lanes[lane].name = name;
}

void Timeline::AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) {
  const std::lock_guard lock(mutex_);
  PENSTOCK_CHECK(lane >= 0 && static_cast<size_t>(lane) < record_.lanes.size());
  record_.first_begin_s = record_.slices.empty() ? begin_s : std::min(record_.first_begin_s, begin_s);
  record_.last_end_s = std::max(record_.last_end_s, end_s);
  LaneUsage& usage = record_.lanes[lane];
  usage.busy_s += end_s - begin_s;
  ++usage.num_tasks;
  usage.cost.flops += cost.flops;
  usage.cost.memory_bytes += cost.memory_bytes;
  usage.cost.link_bytes += cost.link_bytes;
  const TaskSlice slice{lane, label, cost, begin_s, end_s};
  if (record_.slices.size() < num_kept_) {
    record_.slices.push_back(slice);
    return;
  }
  TaskSlice& dropped = record_.slices[record_.oldest];
  record_.dropped_until_s = std::max(record_.dropped_until_s, dropped.end_s);
  dropped = slice;
  record_.oldest = (record_.oldest + 1) % num_kept_;
}

std::string Timeline::Html(std::string_view title, double window_s) const {
  TimelineRecord record;
  {
    const std::lock_guard lock(mutex_);
    record = record_;
  }
  return TimelinePage(record, title, window_s);
}

absl::Status Timeline::WriteHtml(const std::string& path, std::string_view title, double window_s) const {
  return WriteFile(path, Html(title, window_s));
}

}  // namespace penstock
