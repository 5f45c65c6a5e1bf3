// Proves the rule of the virtual clock, start = max(lane free, events, issue), on cases computed by hand. Also checks
// that busy times and slices add up.
#include "penstock/runtime/simulated_runtime.h"

#include <gmock/gmock.h>

namespace penstock {
namespace {

struct Slice {
  LaneIdx lane;
  double begin_s, end_s;
  bool operator==(const Slice&) const = default;
};

class Recorder : public TaskSink {
 public:
  void AddLane(LaneIdx, std::string_view name) override { names.emplace_back(name); }
  void AddTask(LaneIdx lane, const TaskLabel&, const TaskCost&, double begin_s, double end_s) override {
    slices.push_back({lane, begin_s, end_s});
  }
  std::vector<std::string> names;
  std::vector<Slice> slices;
};

class SimulatedRuntimeTest : public testing::Test {
 protected:
  SimulatedRuntime runtime_;
  // A processor of one operation per second and a link of one byte per second.
  LaneIdx compute_ = runtime_.AddLane("compute", [](const TaskCost& cost) { return cost.flops; });
  LaneIdx link_ = runtime_.AddLane("link", [](const TaskCost& cost) { return static_cast<double>(cost.link_bytes); });
  Event Compute(double seconds, Events after = {}) {
    return runtime_.Issue({.lane = compute_, .cost = {.flops = seconds}, .after = std::move(after), .body = [] {
                             ADD_FAILURE() << "a body ran";
                             return absl::OkStatus();
                           }});
  }
  Event Load(uint64_t seconds, Events after = {}) {
    return runtime_.Issue({.lane = link_, .cost = {.link_bytes = seconds}, .after = std::move(after)});
  }
};

TEST_F(SimulatedRuntimeTest, LanesRunSideBySideAndInOrder) {
  // Three weights of 2 s each; each is computed for 3 s once it has arrived: 2 + 3 * 3.
  std::vector<Event> ends;
  for (int i = 0; i < 3; ++i) ends.push_back(Compute(3, {Load(2)}));
  EXPECT_EQ(runtime_.now_s(), 0);
  EXPECT_FALSE(runtime_.Done(ends[0]));
  EXPECT_TRUE(runtime_.WaitAll(ends).ok());
  EXPECT_EQ(runtime_.now_s(), 11);
  EXPECT_TRUE(runtime_.Done(ends[2]));
}

TEST_F(SimulatedRuntimeTest, ATaskStartsNoEarlierThanItWasIssued) {
  EXPECT_TRUE(runtime_.Wait(Compute(5)).ok());
  EXPECT_TRUE(runtime_.Wait(Load(1)).ok());
  EXPECT_EQ(runtime_.now_s(), 6);
}

TEST_F(SimulatedRuntimeTest, ReadsOfABurstEndTogetherAndADelayPassesBesideThem) {
  const LaneIdx disk = runtime_.AddLane(
      "disk", [](const TaskCost& cost) { return static_cast<double>(cost.link_bytes); },
      [](const TaskCost&) { return 0.5; });
  const auto read = [&](Events after) {
    return runtime_.Issue({.lane = disk, .cost = {.link_bytes = 2}, .after = std::move(after)});
  };
  const auto end_of = [&](const Event& event) {
    EXPECT_TRUE(runtime_.Wait(event).ok());
    return runtime_.now_s();
  };
  // Two reads at once. The first does not know yet that reads come in pairs.
  const Event first = read({}), second = read({});
  EXPECT_EQ(end_of(first), 2.5);
  EXPECT_EQ(end_of(second), 4.5);
  // Each read of the next pair takes as long as both, and the delay.
  const Event freed = Compute(1);
  const Event third = read({freed}), fourth = read({freed});
  EXPECT_EQ(end_of(freed), 5.5);
  EXPECT_EQ(end_of(third), 10);
  EXPECT_EQ(end_of(fourth), 10);
  EXPECT_EQ(runtime_.Usage().back().busy_s, 6);  // the last two share two seconds
}

TEST_F(SimulatedRuntimeTest, ReadsThatMayNotBeUnderWayTogetherEndOneAfterTheOther) {
  const LaneIdx disk = runtime_.AddLane(
      "disk", [](const TaskCost& cost) { return static_cast<double>(cost.link_bytes); },
      [](const TaskCost&) { return 0.5; }, /*max_reading=*/1);
  const auto end_of_read = [&](const Event& freed) {
    const Event end = runtime_.Issue({.lane = disk, .cost = {.link_bytes = 2}, .after = {freed}});
    return SimulatedRuntime::TimesOf(end).end_s;
  };
  const Event start = Compute(1);
  EXPECT_EQ(end_of_read(start), 3.5);
  EXPECT_EQ(end_of_read(start), 5);
  EXPECT_EQ(end_of_read(start), 7);
}

TEST_F(SimulatedRuntimeTest, ReadsInterruptWhatIsComputedMeanwhile) {
  runtime_.Interrupt(compute_, link_, 0.5);
  const Event first = Load(1), second = Load(2), third = Load(4);  // end at 1, 3 and 7
  const Event begins = Compute(2);                                 // is interrupted once: until 2.5
  const Event goes_on = Compute(4);  // at 3, which makes it end at 7, when it is interrupted again
  const Event last = Compute(1, {third});
  EXPECT_EQ(SimulatedRuntime::TimesOf(begins).end_s, 2.5);
  EXPECT_EQ(SimulatedRuntime::TimesOf(goes_on).end_s, 7.5);
  EXPECT_EQ(SimulatedRuntime::TimesOf(last).end_s, 8.5);
  EXPECT_EQ(SimulatedRuntime::TimesOf(third).end_s, 7);  // reads are not
  const Event alone = Load(1);  // ends at 8, while another task computes that was issued before
  EXPECT_EQ(SimulatedRuntime::TimesOf(Compute(1)).end_s, 9.5);
}

TEST_F(SimulatedRuntimeTest, WaitAnyTakesTheFirstToHappen) {
  const Event events[] = {Compute(5), Load(2), Load(1)};
  EXPECT_EQ(runtime_.WaitAny(events), 1u);
  EXPECT_EQ(runtime_.now_s(), 2);
  EXPECT_EQ(runtime_.WaitAny(std::span(events).first(1)), 0u);
  EXPECT_EQ(runtime_.now_s(), 5);
  EXPECT_TRUE(runtime_.Done(events[2]));
}

TEST_F(SimulatedRuntimeTest, UsageAndSlicesAreTheTasks) {
  Recorder recorder;
  runtime_.SetSink(&recorder);
  EXPECT_TRUE(runtime_.Wait(Compute(3, {Load(2), Load(2)})).ok());
  EXPECT_THAT(recorder.names, testing::ElementsAre("compute", "link"));
  EXPECT_THAT(recorder.slices, testing::ElementsAre(Slice{link_, 0, 2}, Slice{link_, 2, 4}, Slice{compute_, 4, 7}));
  const std::vector<LaneUsage> usage = runtime_.Usage();
  EXPECT_EQ(usage[link_].busy_s, 4);
  EXPECT_EQ(usage[link_].num_tasks, 2);
  EXPECT_EQ(usage[link_].cost.link_bytes, 4u);
  EXPECT_EQ(usage[compute_].busy_s, 3);
  runtime_.ResetUsage();
  EXPECT_EQ(runtime_.Usage()[link_].busy_s, 0);
  EXPECT_EQ(runtime_.Usage()[link_].name, "link");
}

}  // namespace
}  // namespace penstock
