// A runtime without threads: it skips bodies and reads, and advances a virtual clock by the costs of tasks.
//
// A task starts when its lane is free, its events have happened and it has been issued. Its duration is given by the
// lane's cost function. The simulation is deterministic.
//
// A lane with a delay is a disk. Reads that are under way together share its rate, so they end together. The delay
// passes beside earlier reads.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "penstock/runtime/lane_account.h"
#include "penstock/runtime/runtime.h"

namespace penstock {

class SimulatedRuntime : public Runtime {
 public:
  using Duration = TaskDuration;
  // With a delay, at most `max_reading` tasks share the lane's rate.
  LaneIdx AddLane(std::string name, Duration duration, Duration delay = {}, int64_t max_reading = kAnyReading);

  Event Issue(Task task) override;
  // When a task runs, in virtual seconds. Empty events happen at 0.
  struct Times {
    double begin_s = 0;
    double end_s = 0;
  };
  static Times TimesOf(const Event& event);
  // Issues the arrival of a message that another runtime with the same clock sends in these times. It ends no sooner
  // than the sending. It may begin before this moment, because nobody needs to wait for it to begin.
  Event IssueArrival(Task task, const Times& sent);
  // Tasks of `lane`, which uses all CPUs, last longer by so many seconds for each task of the disk lane that ends
  // meanwhile: the thread that reads takes the time of a CPU.
  void Interrupt(LaneIdx lane, LaneIdx disk_lane, double seconds);
  // Moves the clock forward.
  void AdvanceTo(double now_s) { now_s_ = std::max(now_s_, now_s); }
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
    Duration delay;  // empty: none
    int64_t max_reading = kAnyReading;
    double free_s = 0;                // when all work is done
    double end_s = 0;                 // when the last task ends, which may be later
    std::deque<double> ends_s;        // of tasks that may still be under way
    std::deque<int64_t> nums_before;  // of the last tasks: earlier ones that were under way
    LaneIdx interrupted_by = -1;
    double interrupt_s = 0;
    bool interrupts = false;
    std::deque<double> interruptions_s;  // ends of tasks that may still interrupt another lane

    // Returns how many tasks share the lane's rate with a task that is ready now.
    int64_t NumBeside(uint64_t bytes, double ready_s);
  };
  static double EndOf(const Event& event);
  // Returns how much longer a task of the lane lasts for what ends meanwhile.
  double Interruptions(const Lane& lane, double begin_s, double end_s);

  std::vector<Lane> lanes_;
  LaneAccount account_;
  double now_s_ = 0;
};

}  // namespace penstock
