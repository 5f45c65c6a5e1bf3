#include "penstock/runtime/lane_account.h"

#include <algorithm>
#include <utility>

namespace penstock {

void LaneAccount::AddLane(std::string name) {
  if (sink_ != nullptr) sink_->AddLane(static_cast<LaneIdx>(usage_.size()), name);
  usage_.emplace_back();
  usage_.back().name = std::move(name);
  last_end_s_.push_back(0);
}

void LaneAccount::AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) {
  begin_s = std::max(begin_s, last_end_s_[lane]);
  last_end_s_[lane] = end_s;
  LaneUsage& usage = usage_[lane];
  usage.busy_s += end_s - begin_s;
  ++usage.num_tasks;
  usage.cost.flops += cost.flops;
  usage.cost.memory_bytes += cost.memory_bytes;
  usage.cost.link_bytes += cost.link_bytes;
  if (sink_ != nullptr) sink_->AddTask(lane, label, cost, begin_s, end_s);
}

void LaneAccount::ResetUsage() {
  for (LaneUsage& usage : usage_) {
    LaneUsage fresh;
    fresh.name = std::move(usage.name);
    usage = std::move(fresh);
  }
}

void LaneAccount::SetSink(TaskSink* sink) {
  sink_ = sink;
  if (sink_ == nullptr) return;
  for (size_t lane = 0; lane < usage_.size(); ++lane) sink_->AddLane(static_cast<LaneIdx>(lane), usage_[lane].name);
}

}  // namespace penstock
