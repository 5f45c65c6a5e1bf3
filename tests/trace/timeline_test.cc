// Proves that the page is a well-formed document without external parts, whatever the names are. Its table has the
// numbers of runs computed by hand. Slices lie where their tasks were within the window. Tasks older than the kept ones
// are still counted.
#include "penstock/trace/timeline.h"

#include <barrier>
#include <filesystem>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <unistd.h>

#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/runtime/simulated_runtime.h"

namespace penstock {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Returns every text between `begin` and `end`.
std::vector<std::string> Between(std::string_view text, std::string_view begin, std::string_view end) {
  std::vector<std::string> found;
  for (size_t pos = text.find(begin); pos != std::string_view::npos; pos = text.find(begin, pos)) {
    pos += begin.size();
    const size_t stop = text.find(end, pos);
    EXPECT_NE(stop, std::string_view::npos) << begin;
    if (stop == std::string_view::npos) break;
    found.emplace_back(text.substr(pos, stop - pos));
    pos = stop;
  }
  return found;
}

std::string WithoutTags(std::string_view html) {
  std::string text;
  bool in_tag = false;
  for (const char c : html) {
    if (c == '<') in_tag = true;
    if (!in_tag) text += c;
    if (c == '>') in_tag = false;
  }
  return text;
}

// Returns the cells of each lane's row, without the lane's name.
std::vector<std::vector<std::string>> TableRows(std::string_view html) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& row : Between(html, "<tr><th scope=\"row\">", "</tr>")) {
    rows.emplace_back();
    for (const std::string& cell : Between(row, "<td>", "</td>")) rows.back().push_back(WithoutTags(cell));
  }
  return rows;
}

struct Drawn {
  std::string x, width;
  std::string colour;
  std::string tooltip;
};

std::vector<Drawn> DrawnSlices(std::string_view html) {
  std::vector<Drawn> drawn;
  for (const std::string& rect : Between(html, "<rect class=\"slice ", "</rect>")) {
    drawn.push_back({.x = Between(rect, "x=\"", "\"")[0],
                     .width = Between(rect, "width=\"", "\"")[0],
                     .colour = rect.substr(0, rect.find('"')),
                     .tooltip = Between(rect, "<title>", "</title>")[0]});
  }
  return drawn;
}

// Expects that all elements are closed in order, attributes are quoted, and each & begins an entity.
void ExpectWellFormed(std::string_view html) {
  std::vector<std::string> open;
  constexpr std::string_view kDoctype = "<!doctype html>";
  ASSERT_TRUE(html.starts_with(kDoctype));
  for (size_t pos = kDoctype.size(); pos < html.size();) {
    if (html[pos] == '&') {
      const size_t stop = html.find(';', pos);
      ASSERT_TRUE(stop != std::string_view::npos && stop - pos < 8) << html.substr(pos, 20);
    }
    ASSERT_NE(html[pos], '>') << html.substr(pos - 20, 40);
    if (html[pos] != '<') {
      ++pos;
      continue;
    }
    const size_t stop = html.find('>', pos);
    ASSERT_NE(stop, std::string_view::npos);
    const std::string_view tag = html.substr(pos + 1, stop - pos - 1);
    ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    ASSERT_EQ(tag.find('<'), std::string_view::npos) << tag;
    pos = stop + 1;
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.emplace_back(tag.substr(0, tag.find(' ')));
      if (open.back() == "script" || open.back() == "style") pos = html.find("</" + open.back(), pos);
    }
  }
  ASSERT_TRUE(open.empty()) << open.back();
  EXPECT_THAT(html, AllOf(Not(HasSubstr("http:")), Not(HasSubstr("https:")), Not(HasSubstr("src=")),
                          Not(HasSubstr("href=")), Not(HasSubstr("url(")), Not(HasSubstr("@import"))));
}

class TimelineTest : public testing::Test {
 protected:
  // A processor of 1 GFLOP/s and a link of 4 GB/s.
  void Connect(Timeline& timeline) {
    compute_ = runtime_.AddLane("compute", [](const TaskCost& cost) { return cost.flops / 1e9; });
    link_ = runtime_.AddLane("link", [](const TaskCost& cost) { return static_cast<double>(cost.link_bytes) / 4e9; });
    runtime_.SetSink(&timeline);
  }
  Event Load(double seconds, TaskLabel label = {.name = "load"}) {
    return runtime_.Issue(
        {.lane = link_, .label = label, .cost = {.link_bytes = static_cast<uint64_t>(seconds * 4e9)}});
  }
  Event Compute(double seconds, Events after = {}, TaskLabel label = {.name = "experts"}) {
    return runtime_.Issue({.lane = compute_,
                           .label = label,
                           .cost = {.flops = seconds * 1e9, .memory_bytes = static_cast<uint64_t>(seconds * 2.5e9)},
                           .after = std::move(after)});
  }

  SimulatedRuntime runtime_;
  LaneIdx compute_ = 0, link_ = 0;
};

TEST_F(TimelineTest, TheTableHasTheRunsNumbers) {
  Timeline timeline;
  Connect(timeline);
  // link    |load 0.25|load 0.25|idle 1.00...
  // compute |idle 0.25|0.5      |0.75
  const Event first = Load(0.25), second = Load(0.25);
  ASSERT_TRUE(runtime_.Wait(Compute(0.5, {first})).ok());
  ASSERT_TRUE(runtime_.Wait(Compute(0.75, {second})).ok());
  const std::string html = timeline.Html("run");
  ExpectWellFormed(html);
  EXPECT_THAT(html, HasSubstr("4 tasks on 2 lanes in 1.50 s. Shown: the last 1.50 s, from 0 s on, with 4 tasks."));
  EXPECT_THAT(TableRows(html),
              ElementsAre(ElementsAre("2", "1.250 s", "83.3%", "2.50", "–", "1.00", "83.3%", "250 ms at 0 s"),
                          ElementsAre("2", "0.500 s", "33.3%", "–", "4.00", "–", "33.3%", "1.00 s at 500 ms")));
  EXPECT_THAT(Between(html, "<tr><th scope=\"row\">", "</th>"), ElementsAre("compute", "link"));
}

TEST_F(TimelineTest, TheLongestBubbleMayLieBetweenTasks) {
  Timeline timeline;
  timeline.AddLane(0, "a");
  timeline.AddLane(1, "never used");
  for (const double begin_s : {0.1, 0.25, 0.65}) timeline.AddTask(0, {.name = "t"}, {}, begin_s, begin_s + 0.1);
  timeline.AddTask(0, {.name = "t"}, {}, 0.75, 1.1);
  const auto rows = TableRows(timeline.Html("bubbles"));
  EXPECT_EQ(rows[0].back(), "300 ms at 250 ms");
  EXPECT_THAT(rows[1], ElementsAre("0", "0.000 s", "0.0%", "–", "–", "–", "0.0%", "1.00 s at 0 s"));
}

TEST_F(TimelineTest, SlicesLieWhereTheirTasksWere) {
  Timeline timeline;
  Connect(timeline);
  const Event loaded = Load(0.25, {.name = "load", .layer_idx = 3, .expert_idx = 17});
  ASSERT_TRUE(runtime_.Wait(Compute(0.5, {loaded}, {.name = "experts", .layer_idx = 3, .micro_batch_idx = 0})).ok());
  const std::string html = timeline.Html("run");
  EXPECT_THAT(html, HasSubstr("viewBox=\"0 0 750000.000 72\""));
  const std::vector<Drawn> drawn = DrawnSlices(html);
  ASSERT_EQ(drawn.size(), 2u);
  EXPECT_EQ(drawn[0].x, "250000.000");
  EXPECT_EQ(drawn[0].width, "500000.000");
  EXPECT_EQ(drawn[0].tooltip, "experts\nlayer 3\nmicro-batch 0\n500 ms at 250 ms\nmemory 2.50 GB/s\n1.00 GFLOP/s");
  EXPECT_EQ(drawn[1].x, "0.000");
  EXPECT_EQ(drawn[1].width, "250000.000");
  EXPECT_EQ(drawn[1].tooltip, "load\nlayer 3\nexpert 17\n250 ms at 0 s\nlink 4.00 GB/s");
  // The legend lists the longest total first, in the colour of its slices.
  EXPECT_NE(drawn[0].colour, drawn[1].colour);
  EXPECT_THAT(Between(html, "<li>", "</li>"),
              ElementsAre(AllOf(HasSubstr("swatch " + drawn[0].colour), HasSubstr("experts <small>1 task, 500 ms")),
                          AllOf(HasSubstr("swatch " + drawn[1].colour), HasSubstr("load <small>1 task, 250 ms"))));
}

TEST_F(TimelineTest, TheWindowIsTheEndOfTheRun) {
  Timeline timeline;
  Connect(timeline);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(runtime_.Wait(Compute(0.75)).ok());  // until 7.5
  const std::string html = timeline.Html("run");
  EXPECT_THAT(html, HasSubstr("10 tasks on 2 lanes in 7.50 s. Shown: the last 2.00 s, from 5.50 s on, with 3 tasks."));
  const std::vector<Drawn> drawn = DrawnSlices(html);
  ASSERT_EQ(drawn.size(), 3u);
  EXPECT_EQ(drawn[0].x, "0.000");  // the drawing is cut, the tooltip is whole
  EXPECT_EQ(drawn[0].width, "500000.000");
  EXPECT_THAT(drawn[0].tooltip, HasSubstr("750 ms"));
  EXPECT_EQ(drawn[1].x, "500000.000");
  EXPECT_EQ(TableRows(html)[0][6], "100.0%");
  EXPECT_EQ(TableRows(html)[0].back(), "–");
  EXPECT_EQ(TableRows(html)[1].back(), "2.00 s at 0 s");
  EXPECT_EQ(DrawnSlices(timeline.Html("run", 0.5)).size(), 1u);
  EXPECT_EQ(DrawnSlices(timeline.Html("run", 100)).size(), 10u);
}

TEST_F(TimelineTest, TasksNoLongerKeptAreCountedAndNoneIsMissingInTheWindow) {
  Timeline timeline(8);
  Connect(timeline);
  Load(0.125);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(runtime_.Wait(Compute(0.125)).ok());  // until 2.5, kept from 1.5 on
  const std::string html = timeline.Html("run");
  EXPECT_THAT(html, HasSubstr("21 tasks on 2 lanes in 2.50 s. Shown: the last 1.00 s, from 1.50 s on, with 8 tasks."));
  EXPECT_EQ(DrawnSlices(html).size(), 8u);
  EXPECT_EQ(TableRows(html)[0][0], "20");
  EXPECT_EQ(TableRows(html)[0][2], "100.0%");
  EXPECT_EQ(TableRows(html)[1][0], "1");
  // A kept task began before the last dropped one ended. The time before that end is not shown.
  Timeline small(2);
  small.AddLane(0, "a");
  small.AddLane(1, "b");
  small.AddTask(0, {.name = "t"}, {}, 0, 1);
  small.AddTask(0, {.name = "t"}, {}, 1, 2);
  small.AddTask(1, {.name = "t"}, {}, 0, 2);
  EXPECT_THAT(small.Html("run"), HasSubstr("the last 1.00 s, from 1.00 s on, with 2 tasks."));
}

TEST_F(TimelineTest, NamesAreEscaped) {
  Timeline timeline;
  timeline.AddLane(0, "<script>alert('lane')</script> & \"more\"");
  timeline.AddTask(0, {.name = "</title><b onclick=\"x\">"}, {}, 0, 1);
  timeline.AddTask(0, {.name = "not UTF-8 \xff, NUL \x01"}, {}, 1, 2);
  const std::string html = timeline.Html("</title><script>");
  ExpectWellFormed(html);
  EXPECT_THAT(html, AllOf(HasSubstr("<title>&lt;/title&gt;&lt;script&gt;</title>"),
                          HasSubstr("<h1>&lt;/title&gt;&lt;script&gt;</h1>"),
                          HasSubstr("&lt;script&gt;alert(&#39;lane&#39;)&lt;/script&gt; &amp; &quot;more&quot;"),
                          HasSubstr("&lt;/title&gt;&lt;b onclick=&quot;x&quot;&gt;"),
                          HasSubstr("not UTF-8 \xef\xbf\xbd, NUL  ")));
  EXPECT_EQ(Between(html, "<script>", "</script>").size(), 1u);
  EXPECT_EQ(Between(html, "<b", ">").size(), 1u);  // body
}

TEST_F(TimelineTest, TicksHaveUnitsThatFitTheWindow) {
  const auto ticks = [](double seconds) {
    Timeline timeline;
    timeline.AddLane(0, "a");
    timeline.AddTask(0, {.name = "t"}, {}, 0, seconds);
    const std::string drawn = Between(timeline.Html("t"), "<div id=\"ticks\">", "</div>")[0];
    std::vector<std::string> labels;
    for (const std::string& tick : Between(drawn, "<i ", "</i>")) labels.push_back(tick.substr(tick.find('>') + 1));
    return labels;
  };
  EXPECT_THAT(ticks(2),
              ElementsAre("0.0 s", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1.0 s", "1.2 s", "1.4 s", "1.6 s", "1.8 s"));
  EXPECT_THAT(ticks(0.41), ElementsAre("0 ms", "50 ms", "100 ms", "150 ms", "200 ms", "250 ms", "300 ms", "350 ms"));
  EXPECT_THAT(ticks(60e-6), ElementsAre("0 µs", "10 µs", "20 µs", "30 µs", "40 µs", "50 µs"));
  EXPECT_THAT(ticks(2e-6), ElementsAre("0.0 µs", "0.2 µs", "0.4 µs", "0.6 µs", "0.8 µs", "1.0 µs", "1.2 µs", "1.4 µs",
                                       "1.6 µs", "1.8 µs"));
}

TEST_F(TimelineTest, NothingAndNoTimeArePagesToo) {
  Timeline timeline;
  EXPECT_THAT(timeline.Html("none"), HasSubstr("0 lanes. No task has ended."));
  ExpectWellFormed(timeline.Html("none"));
  timeline.AddLane(0, "a");
  EXPECT_THAT(timeline.Html("none"), HasSubstr("1 lane. No task has ended."));
  EXPECT_EQ(TableRows(timeline.Html("none")).size(), 1u);
  timeline.AddTask(0, {.name = "t"}, {.flops = 1, .memory_bytes = 2, .link_bytes = 3}, 5, 5);
  const std::string html = timeline.Html("none");
  ExpectWellFormed(html);
  EXPECT_EQ(DrawnSlices(html).size(), 1u);
  EXPECT_EQ(DrawnSlices(html)[0].tooltip, "t\n0 s at 0 s");
  EXPECT_THAT(TableRows(html)[0], Not(testing::Contains(testing::AnyOf(HasSubstr("nan"), HasSubstr("inf")))));
}

TEST_F(TimelineTest, ThePageIsWellFormedForManyTasksNamesAndThreads) {
  Timeline timeline(5000);
  static constexpr std::string_view kNames[] = {"a", "b", "c", "d", "e", "f", "g", "h",
                                                "i", "j", "k", "l", "m", "n", "o", "p"};
  std::vector<std::thread> threads;
  std::barrier in_step(4);  // keeps the threads in step, so that tasks of all lanes are kept
  for (int lane = 0; lane < 4; ++lane) {
    timeline.AddLane(lane, "lane " + std::to_string(lane));
    threads.emplace_back([&timeline, &in_step, lane] {
      std::mt19937 random(lane);
      std::exponential_distribution<double> seconds(1e5);
      double now_s = 0;
      for (int i = 0; i < 3000; ++i) {
        const double begin_s = now_s + seconds(random);
        now_s = begin_s + seconds(random);
        timeline.AddTask(lane, {.name = kNames[random() % std::size(kNames)], .layer_idx = i}, {}, begin_s, now_s);
        if (i % 1000 == 0) timeline.Html("meanwhile");
        if (i % 50 == 0) in_step.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string html = timeline.Html("many");
  ExpectWellFormed(html);
  EXPECT_LE(DrawnSlices(html).size(), 5000u);
  EXPECT_THAT(html, AllOf(HasSubstr("12000 tasks on 4 lanes"), HasSubstr("swatch c11"), Not(HasSubstr("swatch c12"))));
}

TEST_F(TimelineTest, TheFileIsThePage) {
  const std::string path = testing::TempDir() + "/timeline-" + std::to_string(::getpid()) + ".html";
  Timeline timeline;
  Connect(timeline);
  ASSERT_TRUE(runtime_.Wait(Compute(0.5)).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(timeline.WriteHtml(path, "run").ok());  // the second file replaces the first
  EXPECT_EQ(ReadFile(path, 1 << 20).value(), timeline.Html("run"));
  std::filesystem::remove(path);
  for (const std::string bad : {"/dev/full", "/no such folder/page.html"}) {
    const absl::Status status = timeline.WriteHtml(bad, "run");
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(FaultOf(status), Fault::kIo);
    EXPECT_THAT(Message(status), HasSubstr(bad));
  }
}

}  // namespace
}  // namespace penstock
