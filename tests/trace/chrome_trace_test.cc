// Proves that a trace is valid JSON whenever it is closed and whatever the names are. Lanes become named tracks in
// their order. Slices carry the labels and rates of their tasks; rounding makes none overlap or leave the span around
// it. The file of a killed process lacks only its end. A full device is an error with its path.
#include "penstock/trace/chrome_trace.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <unistd.h>

#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/runtime/simulated_runtime.h"
#include "penstock/trace/task_sinks.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ChromeTraceTest : public testing::Test {
 protected:
  void SetUp() override { path_ = testing::TempDir() + "/chrome-trace-" + std::to_string(::getpid()) + ".json"; }
  void TearDown() override { std::filesystem::remove(path_); }

  void Open() {
    auto trace = ChromeTrace::Create(path_);
    ASSERT_TRUE(trace.ok()) << trace.status();
    trace_ = std::move(*trace);
  }
  std::string Content() { return ReadFile(path_, 1 << 30).value(); }
  static json::array Parse(std::string_view text) {
    const auto document = ParseJson(text, Fault::kInternal);
    EXPECT_TRUE(document.ok()) << document.status();
    return document.ok() ? document->as_array() : json::array();
  }
  json::array Close() {
    EXPECT_TRUE(trace_->Close().ok());
    return Parse(Content());
  }
  // Returns the slices of each track.
  static std::map<int64_t, std::vector<json::object>> Slices(const json::array& events) {
    std::map<int64_t, std::vector<json::object>> slices;
    for (const json::value& event : events) {
      if (event.at("ph") == "X") slices[event.at("tid").as_int64()].push_back(event.as_object());
    }
    return slices;
  }
  static std::map<std::string, int64_t> Tracks(const json::array& events) {
    std::map<std::string, int64_t> tracks;
    for (const json::value& event : events) {
      if (event.at("name") != "thread_name") continue;
      EXPECT_EQ(event.at("ph"), "M");
      const std::string name(event.at("args").at("name").as_string());
      EXPECT_TRUE(tracks.emplace(name, event.at("tid").as_int64()).second) << name << " twice";
    }
    return tracks;
  }
  static int64_t Nanoseconds(const json::value& microseconds) {
    return std::llround(microseconds.to_number<double>() * 1e3);
  }

  std::string path_;
  std::unique_ptr<ChromeTrace> trace_;
};

TEST_F(ChromeTraceTest, TasksOfARuntimeAreSlicesOnTheTracksOfTheirLanes) {
  Open();
  SimulatedRuntime runtime;
  const LaneIdx compute = runtime.AddLane("compute", [](const TaskCost& cost) { return cost.flops / 1e9; });
  runtime.SetSink(trace_.get());  // learns of the existing lane and of the one added later
  const LaneIdx link = runtime.AddLane("host to device",
                                       [](const TaskCost& cost) { return static_cast<double>(cost.link_bytes) / 4e9; });
  const Event loaded = runtime.Issue(
      {.lane = link, .label = {.name = "load", .layer_idx = 3, .expert_idx = 0}, .cost = {.link_bytes = 1'000'000}});
  const Event done = runtime.Issue({.lane = compute,
                                    .label = {.name = "experts", .micro_batch_idx = 2},
                                    .cost = {.flops = 2e6, .memory_bytes = 3'000'000},
                                    .after = {loaded}});
  ASSERT_TRUE(runtime.Wait(done).ok());

  const json::array events = Close();
  std::map<std::string, int64_t> tracks = Tracks(events);
  ASSERT_EQ(tracks.size(), 3u);
  ASSERT_TRUE(tracks.contains("steps"));
  // Tracks are sorted as the lanes are, after the steps.
  std::map<int64_t, int64_t> sort_index;
  for (const json::value& event : events) {
    EXPECT_EQ(event.at("pid"), 1);
    if (event.at("name") != "thread_sort_index") continue;
    sort_index[event.at("tid").as_int64()] = event.at("args").at("sort_index").as_int64();
  }
  EXPECT_LT(sort_index.at(tracks["steps"]), sort_index.at(tracks["compute"]));
  EXPECT_LT(sort_index.at(tracks["compute"]), sort_index.at(tracks["host to device"]));

  auto slices = Slices(events);
  ASSERT_EQ(slices[tracks["host to device"]].size(), 1u);
  const json::object& load = slices[tracks["host to device"]][0];
  EXPECT_EQ(load.at("name"), "load");
  EXPECT_EQ(load.at("ts").to_number<double>(), 0);
  EXPECT_EQ(load.at("dur").to_number<double>(), 250);
  EXPECT_EQ(load.at("args"), json::value({{"layer", 3}, {"expert", 0}, {"link_gb_per_s", 4}}));
  ASSERT_EQ(slices[tracks["compute"]].size(), 1u);
  const json::object& experts = slices[tracks["compute"]][0];
  EXPECT_EQ(experts.at("name"), "experts");
  EXPECT_EQ(experts.at("ts").to_number<double>(), 250);
  EXPECT_EQ(experts.at("dur").to_number<double>(), 2000);
  EXPECT_EQ(experts.at("args"), json::value({{"micro_batch", 2}, {"flops", 2'000'000}, {"memory_gb_per_s", 1.5}}));
}

TEST_F(ChromeTraceTest, NamesAreEscaped) {
  Open();
  const std::string name = "a\"b\\c\n\x01</script>\xc3\xa9";
  trace_->AddLane(0, name);
  trace_->AddTask(0, {.name = "task \"1\""}, {}, 0, 1);
  trace_->AddSpan("not UTF-8: \xff", 0, 1);
  const json::array events = Close();
  std::map<std::string, int64_t> tracks = Tracks(events);
  EXPECT_TRUE(tracks.contains(name));
  EXPECT_EQ(Slices(events)[tracks[name]][0].at("name"), "task \"1\"");
  EXPECT_EQ(Slices(events)[tracks["steps"]][0].at("name"), "not UTF-8: \xef\xbf\xbd");
}

TEST_F(ChromeTraceTest, ATaskOfNoDurationHasNoRate) {
  Open();
  trace_->AddLane(0, "a");
  trace_->AddTask(0, {.name = "none"}, {.flops = 1e300, .memory_bytes = 5, .link_bytes = 6}, 1, 1);
  trace_->AddTask(0, {.name = "hardly any"}, {.memory_bytes = 5}, 1, 1 + 1e-13);
  const json::array events = Close();
  const std::vector<json::object> slices = Slices(events)[Tracks(events)["a"]];
  EXPECT_EQ(slices[0].at("dur").to_number<double>(), 0);
  EXPECT_EQ(slices[0].at("args"), json::value({{"flops", 1e300}}));
  EXPECT_EQ(slices[1].at("args"), json::value(json::object()));
}

TEST_F(ChromeTraceTest, RoundingMakesNoSlicesOverlapAndNoSpanLeaveItsParent) {
  Open();
  trace_->AddLane(0, "a");
  std::mt19937 random(1);
  std::uniform_real_distribution<double> duration_s(0, 3e-8);
  double now_s = 1234.5;
  std::vector<double> ends_s;
  for (int i = 0; i < 1000; ++i) {
    const double end_s = now_s + duration_s(random);
    trace_->AddTask(0, {.name = "t"}, {}, now_s, end_s);
    now_s = end_s;
    ends_s.push_back(end_s);
  }
  // Adds a span around every ten slices, and one within it for each slice.
  for (size_t i = 0; i + 10 < ends_s.size(); i += 10) {
    for (size_t k = i; k < i + 10; ++k) trace_->AddSpan("inner", ends_s[k], ends_s[k + 1]);
    trace_->AddSpan("outer", ends_s[i], ends_s[i + 10]);
  }
  const json::array events = Close();
  auto slices = Slices(events);
  const auto begin_ns = [](const json::object& slice) { return Nanoseconds(slice.at("ts")); };
  const auto end_ns = [&](const json::object& slice) { return begin_ns(slice) + Nanoseconds(slice.at("dur")); };
  const std::vector<json::object>& tasks = slices[Tracks(events)["a"]];
  ASSERT_EQ(tasks.size(), 1000u);
  EXPECT_EQ(begin_ns(tasks[0]), 1'234'500'000'000);
  for (size_t i = 1; i < tasks.size(); ++i) EXPECT_EQ(begin_ns(tasks[i]), end_ns(tasks[i - 1]));
  const std::vector<json::object>& spans = slices[Tracks(events)["steps"]];
  ASSERT_EQ(spans.size(), 99u * 11);
  for (size_t i = 0; i < spans.size(); i += 11) {
    const json::object& outer = spans[i + 10];
    ASSERT_EQ(outer.at("name"), "outer");
    EXPECT_EQ(begin_ns(spans[i]), begin_ns(outer));
    EXPECT_EQ(end_ns(spans[i + 9]), end_ns(outer));
  }
}

TEST_F(ChromeTraceTest, ClosedBeforeAnythingHappenedItIsADocument) {
  Open();
  const json::array events = Close();
  EXPECT_TRUE(Slices(events).empty());
  // Later calls are dropped.
  trace_->AddLane(0, "late");
  trace_->AddTask(0, {.name = "late"}, {}, 0, 1);
  trace_->AddSpan("late", 0, 1);
  EXPECT_EQ(Close(), events);
  trace_.reset();
  EXPECT_EQ(Parse(Content()), events);
}

TEST_F(ChromeTraceTest, LettingGoOfItCloses) {
  Open();
  trace_->AddSpan("step", 0, 1);
  trace_.reset();
  EXPECT_EQ(Slices(Parse(Content())).size(), 1u);
}

TEST_F(ChromeTraceTest, TheFileGrowsMeanwhileAndLacksOnlyItsEnd) {
  std::ofstream(path_) << std::string(1 << 20, 'x');  // to be replaced
  Open();
  trace_->AddLane(0, "a");
  const int num_tasks = 5000;
  for (int i = 0; i < num_tasks; ++i) trace_->AddTask(0, {.name = "t", .layer_idx = i}, {}, i, i + 1);
  const std::string so_far = Content();
  EXPECT_GT(so_far.size(), 100'000u);
  const size_t num_written = Slices(Parse(so_far + "]")).begin()->second.size();
  const json::array events = Close();
  const std::vector<json::object> slices = Slices(events)[Tracks(events)["a"]];
  ASSERT_EQ(slices.size(), static_cast<size_t>(num_tasks));
  EXPECT_LT(num_tasks - num_written, 1000u);
  for (int i = 0; i < num_tasks; ++i) ASSERT_EQ(slices[i].at("args").at("layer"), i);
}

TEST_F(ChromeTraceTest, ThreadsMayAddAtOnce) {
  Open();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      trace_->AddLane(t, "lane " + std::to_string(t));
      for (int i = 0; i < 2000; ++i) {
        trace_->AddTask(t, {.name = "t"}, {}, i, i + 1);
        if (t == 0) trace_->AddSpan("s", i, i + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto slices = Slices(Close());
  ASSERT_EQ(slices.size(), 5u);
  for (const auto& [track, of_track] : slices) EXPECT_EQ(of_track.size(), 2000u) << track;
}

TEST(ChromeTrace, AFullDeviceIsAnErrorWithItsPath) {
  for (const int num_tasks : {0, 10'000}) {
    auto trace = ChromeTrace::Create("/dev/full");
    ASSERT_TRUE(trace.ok()) << trace.status();
    for (int i = 0; i < num_tasks; ++i) (*trace)->AddTask(0, {.name = "t"}, {}, i, i + 1);
    for (int i = 0; i < 2; ++i) {
      const absl::Status status = (*trace)->Close();
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(FaultOf(status), Fault::kIo);
      EXPECT_THAT(Message(status), HasSubstr("/dev/full"));
    }
  }
}

TEST(ChromeTrace, AFileThatCannotBeOpenedIsAnErrorWithItsPath) {
  const auto trace = ChromeTrace::Create(testing::TempDir() + "/no such folder/trace.json");
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(FaultOf(trace.status()), Fault::kIo);
  EXPECT_THAT(Message(trace.status()), HasSubstr("no such folder/trace.json"));
}

TEST(TaskSinks, EachIsToldOfEverything) {
  struct Recorder : TaskSink {
    void AddLane(LaneIdx, std::string_view name) override { told.emplace_back(name); }
    void AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) override {
      told.push_back(fmt::format("{} {} {} {} {}", lane, label.name, cost.link_bytes, begin_s, end_s));
    }
    std::vector<std::string> told;
  };
  Recorder recorders[2];
  TaskSinks sinks({&recorders[0], &recorders[1]});
  SimulatedRuntime runtime;
  const LaneIdx lane =
      runtime.AddLane("disk", [](const TaskCost& cost) { return static_cast<double>(cost.link_bytes); });
  runtime.SetSink(&sinks);
  ASSERT_TRUE(runtime.Wait(runtime.Issue({.lane = lane, .label = {"read"}, .cost = {.link_bytes = 2}})).ok());
  for (const Recorder& recorder : recorders) EXPECT_THAT(recorder.told, ElementsAre("disk", "0 read 2 0 2"));
}

}  // namespace
}  // namespace penstock
