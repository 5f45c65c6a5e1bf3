// A runtime without threads: it skips bodies and reads, and advances a virtual clock by the costs of tasks.
//
// A task starts when its lane is free, its events have happened and it has been issued. Its duration is given by the
// lane's cost function. The simulation is deterministic.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "penstock/runtime/lane_account.h"
#include "penstock/runtime/runtime.h"

namespace penstock {

class SimulatedRuntime : public Runtime {
 public:
  using Duration = TaskDuration;
  LaneIdx AddLane(std::string name, Duration duration);

  Event Issue(Task task) override;
  absl::Status Wait(const Event& event) override;
  size_t WaitAny(std::span<const Event> events) override;
  bool Done(const Event& event) const override;
  double Seconds(const Event& event) const override;
  void Cancel() override;
  double now_s() const override { return now_s_; }
  std::vector<LaneUsage> Usage() const override { return account_.usage(); }
  void ResetUsage() override { account_.ResetUsage(); }
  void SetSink(TaskSink* sink) override { account_.SetSink(sink); }

 private:
  struct TaskEnd;
  struct Lane {
    Duration duration;
    double free_s = 0;
  };
  static double EndOf(const Event& event);

  std::vector<Lane> lanes_;
  LaneAccount account_;
  double now_s_ = 0;
};

}  // namespace penstock
