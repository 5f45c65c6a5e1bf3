#include "penstock/simulate/simulated_ranks.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "penstock/base/status.h"

namespace penstock {

// Passes the tasks of a rank on to a sink that all ranks share.
class SimulatedRanks::RankSink : public TaskSink {
 public:
  RankSink(TaskSink& all, std::mutex& mutex, int rank) : all_(&all), mutex_(&mutex), rank_(rank) {}

  void AddLane(LaneIdx lane, std::string_view name) override {
    const std::lock_guard<std::mutex> lock(*mutex_);
    all_->AddLane(LaneOf(lane), rank_ == 0 ? std::string(name) : fmt::format("rank {}: {}", rank_, name));
  }
  void AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) override {
    const std::lock_guard<std::mutex> lock(*mutex_);
    all_->AddTask(LaneOf(lane), label, cost, begin_s, end_s);
  }

 private:
  static constexpr LaneIdx kMaxLanes = 16;  // of a rank
  LaneIdx LaneOf(LaneIdx lane) const { return rank_ * kMaxLanes + lane; }

  TaskSink* all_;
  std::mutex* mutex_;
  int rank_;
};

SimulatedRanks::~SimulatedRanks() = default;

absl::StatusOr<std::unique_ptr<SimulatedRanks>> SimulatedRanks::Create(const PassSimulator::Args& args, int num_ranks) {
  auto all = std::unique_ptr<SimulatedRanks>(new SimulatedRanks());
  if (num_ranks > 1) all->communicators_ = MakeLocalCommunicators(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    PassSimulator::Args own = args;
    if (num_ranks > 1) {
      own.ranks.rank = rank;
      own.ranks.num_ranks = num_ranks;
      own.communicator = all->communicators_[rank].get();
      if (args.sink != nullptr) {
        all->sinks_.push_back(std::make_unique<RankSink>(*args.sink, all->sink_mutex_, rank));
        own.sink = all->sinks_.back().get();
      }
    }
    PENSTOCK_ASSIGN_OR_RETURN(auto simulator, PassSimulator::Create(std::move(own)));
    all->ranks_.push_back(std::move(simulator));
  }
  return all;
}

double SimulatedRanks::Time(std::vector<RankPass>& passes, absl::FunctionRef<void(PassSimulator&, RankPass&)> run) {
  const double begin_s = ranks_.front()->now_s();  // that of all ranks
  std::vector<std::thread> threads;
  for (int rank = 1; rank < num_ranks(); ++rank) {
    threads.emplace_back([&, rank] { run(*ranks_[rank], passes[rank]); });
  }
  run(*ranks_.front(), passes.front());
  for (std::thread& thread : threads) thread.join();
  double end_s = begin_s;
  for (const auto& rank : ranks_) end_s = std::max(end_s, rank->now_s());
  for (const auto& rank : ranks_) rank->AdvanceTo(end_s);
  return end_s - begin_s;
}

double SimulatedRanks::Run(std::vector<RankPass> passes) {
  return Time(passes, [](PassSimulator& rank, RankPass& pass) {
    (void)rank.Run(pass.batch, std::move(pass.micro_batches), pass.routing);
  });
}

double SimulatedRanks::RunLogits(std::vector<RankPass> passes) {
  return Time(passes, [](PassSimulator& rank, RankPass& pass) { (void)rank.RunLogits(pass.batch, pass.routing); });
}

ExpertCounters SimulatedRanks::counters() const {
  ExpertCounters sum;
  for (const auto& rank : ranks_) {
    const ExpertCounters& own = rank->counters();
    sum.hits += own.hits;
    sum.misses += own.misses;
    sum.prefetched += own.prefetched;
    sum.prefetch_used += own.prefetch_used;
    sum.named_hot += own.named_hot;
    sum.named_right += own.named_right;
    sum.bytes_read += own.bytes_read;
  }
  return sum;
}

void SimulatedRanks::ResetUsage() {
  for (const auto& rank : ranks_) rank->ResetUsage();
}

}  // namespace penstock
