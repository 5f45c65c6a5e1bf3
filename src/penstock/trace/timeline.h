// A page for people: the last tasks of a run, drawn lane by lane, with the share of time that each lane was busy.
//
// Timeline keeps the last tasks and totals of all tasks. The memory for the tasks is allocated at once: 160 bytes each,
// 3.2 MB for 20,000. The page is one HTML file without external parts (timeline_page.h).
//
// All methods may be called from any thread. AddTask does not allocate.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "penstock/runtime/runtime.h"
#include "penstock/trace/timeline_page.h"

namespace penstock {

inline constexpr size_t kTimelineTasks = 20'000;
inline constexpr double kTimelineWindowSeconds = 2;

class Timeline : public TaskSink {
 public:
  // REQUIRES: num_kept > 0.
  explicit Timeline(size_t num_kept = kTimelineTasks);

  void AddLane(LaneIdx lane, std::string_view name) override;
  // REQUIRES: the lane was added.
  void AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) override;

  // Returns a page of the last `window_s` seconds, or of the whole run if it is shorter. REQUIRES: window_s > 0.
  std::string Html(std::string_view title, double window_s = kTimelineWindowSeconds) const;
  // Replaces an existing file. kIo when it cannot be written.
  absl::Status WriteHtml(const std::string& path, std::string_view title,
                         double window_s = kTimelineWindowSeconds) const;

 private:
  const size_t num_kept_;
  mutable std::mutex mutex_;
  TimelineRecord record_;  // guarded by mutex_
};

}  // namespace penstock
