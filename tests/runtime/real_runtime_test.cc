// Proves that lanes run their tasks in order and side by side, and that events order tasks of different lanes. A
// failure reaches every task that waits for it, and no other. Cancelling drains the lanes, a link keeps its rate, and a
// disk lane brings the bytes and reports failed reads.
#include "penstock/runtime/real_runtime.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <fstream>
#include <random>
#include <stdexcept>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/runtime/thread_stream.h"

namespace penstock {
namespace {

absl::Status Sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return absl::OkStatus();
}

TEST(RealRuntime, AnEventOfNoTaskHasHappened) {
  RealRuntime runtime;
  EXPECT_TRUE(runtime.Wait(Event()).ok());
  EXPECT_TRUE(runtime.Done(Event()));
  const Event events[] = {Event()};
  EXPECT_EQ(runtime.WaitAny(events), 0u);
}

// Issues random tasks, with random events to wait for, on all kinds of compute lanes. Each task begins after these
// events and after the task before it on its lane. Each runs once, except where it waits for a task that failed.
// Transfers are both shorter and longer than the time to wake a thread.
TEST(RealRuntime, EveryTaskRunsOnceAfterWhatItWaitsFor) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    constexpr int kNumTasks = 300;
    std::vector<std::atomic<int>> runs(kNumTasks);
    std::vector<std::vector<int>> waits(kNumTasks);
    std::vector<char> fails(kNumTasks), expected(kNumTasks, 1);
    std::atomic<int> num_wrong{0};
    RealRuntime runtime;
    const LaneIdx lanes[] = {runtime.AddIssuerLane("a"),
                             runtime.AddThreadLane("b"),
                             runtime.AddThreadLane("c"),
                             runtime.AddIssuerLane("d"),
                             runtime.AddThreadLane("e", 1),
                             runtime.AddThreadLane("f", 1e7),
                             runtime.AddStreamLane("g", std::make_unique<ThreadStream>()),
                             runtime.AddStreamLane("h", std::make_unique<ThreadStream>())};
    std::vector<Event> events;
    int last_of_lane[] = {-1, -1, -1, -1, -1, -1, -1, -1};
    std::atomic<int> num_running[8] = {};
    for (int i = 0; i < kNumTasks; ++i) {
      const size_t lane = random() % 8;
      Task task{.lane = lanes[lane], .label = {"task"}};
      if (last_of_lane[lane] >= 0) waits[i].push_back(last_of_lane[lane]);
      last_of_lane[lane] = i;
      for (int k = 0; i > 0 && k < 2; ++k) {
        const int before = static_cast<int>(random() % static_cast<unsigned>(i));
        task.after.push_back(events[before]);
        waits[i].push_back(before);
        if (fails[before] || expected[before] == 0) expected[i] = 0;
      }
      fails[i] = lane < 6 && random() % 150 == 0;  // in a stream, a failure fails all later tasks
      if (lane == 5) task.cost.link_bytes = random() % 1000;
      task.body = [&, i, lane] {
        num_wrong += num_running[lane]++;
        for (const int before : waits[i]) num_wrong += runs[before] == expected[before] ? 0 : 1;
        ++runs[i];
        --num_running[lane];
        return fails[i] ? absl::InternalError("asked for") : absl::OkStatus();
      };
      events.push_back(runtime.Issue(std::move(task)));
      if (random() % 50 == 0) {
        const size_t waited = random() % events.size();
        EXPECT_EQ(runtime.Wait(events[waited]).ok(), !fails[waited] && expected[waited]);
      }
    }
    const bool all_ok = std::find(fails.begin(), fails.end(), 1) == fails.end();
    EXPECT_EQ(runtime.WaitAll(events).ok(), all_ok);
    EXPECT_EQ(num_wrong, 0);
    for (int i = 0; i < kNumTasks; ++i) EXPECT_EQ(runs[i], expected[i]);
  }
}

// Counts the calls of WaitFor().
class WatchedStream : public ThreadStream {
 public:
  explicit WatchedStream(std::atomic<int>& num_waits) : num_waits_(&num_waits) {}
  void WaitFor(const std::shared_ptr<Mark>& mark) override {
    ThreadStream::WaitFor(mark);
    ++*num_waits_;
  }

 private:
  std::atomic<int>* num_waits_;
};

TEST(RealRuntime, StreamsWaitForEachOtherWithoutTheHost) {
  RealRuntime runtime;
  std::atomic<int> num_waits{0};
  const LaneIdx first = runtime.AddStreamLane("first", std::make_unique<ThreadStream>());
  const LaneIdx second = runtime.AddStreamLane("second", std::make_unique<WatchedStream>(num_waits));
  std::atomic<bool> go{false}, is_done{false};
  const Event slow = runtime.Issue({.lane = first, .body = [&] {
                                      while (!go) std::this_thread::yield();
                                      is_done = true;
                                      return absl::OkStatus();
                                    }});
  std::atomic<bool> in_order{false};
  const Event next = runtime.Issue({.lane = second, .after = {slow}, .body = [&] {
                                      in_order = is_done.load();
                                      return absl::OkStatus();
                                    }});
  while (num_waits == 0)
    std::this_thread::yield();  // the second stream has its task while the first one is still working
  EXPECT_FALSE(runtime.Done(next));
  go = true;
  EXPECT_TRUE(runtime.Wait(next).ok());
  EXPECT_TRUE(in_order);
  EXPECT_TRUE(runtime.Wait(slow).ok());
  EXPECT_TRUE(runtime.Wait(runtime.Issue({.lane = second, .after = {slow}})).ok());
  EXPECT_EQ(num_waits, 1);  // no wait for a task that has ended
}

TEST(RealRuntime, WhatFailsInAStreamFailsAllAfterIt) {
  RealRuntime runtime;
  const LaneIdx first = runtime.AddStreamLane("first", std::make_unique<ThreadStream>());
  const LaneIdx second = runtime.AddStreamLane("second", std::make_unique<ThreadStream>());
  const LaneIdx host = runtime.AddIssuerLane("host");
  const Event failed = runtime.Issue({.lane = first, .body = [] { return IoError("the device fell off the bus"); }});
  const Event later = runtime.Issue({.lane = second, .after = {failed}});
  EXPECT_EQ(Message(runtime.Wait(runtime.Issue({.lane = host, .after = {later}}))), "the device fell off the bus");
  EXPECT_EQ(Message(runtime.Wait(runtime.Issue({.lane = first}))), "the device fell off the bus");
}

TEST(RealRuntime, LanesWorkAtTheSameTime) {
  RealRuntime runtime;
  const LaneIdx issuer = runtime.AddIssuerLane("issuer"), thread = runtime.AddThreadLane("thread");
  // Each body waits until the other has begun, so they end only if they run side by side.
  std::atomic<int> num_begun{0};
  const auto meet = [&] {
    ++num_begun;
    while (num_begun < 2) std::this_thread::yield();
    return absl::OkStatus();
  };
  const Event events[] = {runtime.Issue({.lane = issuer, .body = meet}), runtime.Issue({.lane = thread, .body = meet})};
  EXPECT_TRUE(runtime.WaitAll(events).ok());
}

TEST(RealRuntime, WaitAnyTellsOneThatHappened) {
  RealRuntime runtime;
  const LaneIdx fast = runtime.AddThreadLane("fast"), slow = runtime.AddThreadLane("slow");
  std::atomic<bool> go{false};
  const Event events[] = {runtime.Issue({.lane = slow,
                                         .body =
                                             [&] {
                                               while (!go) std::this_thread::yield();
                                               return absl::OkStatus();
                                             }}),
                          runtime.Issue({.lane = fast})};
  EXPECT_EQ(runtime.WaitAny(events), 1u);
  EXPECT_FALSE(runtime.Done(events[0]));
  go = true;
  EXPECT_TRUE(runtime.Wait(events[0]).ok());
}

TEST(RealRuntime, AFailureReachesAllThatWaitForItAndNothingElse) {
  RealRuntime runtime;
  const LaneIdx a = runtime.AddIssuerLane("a"), b = runtime.AddThreadLane("b");
  std::atomic<int> num_run{0};
  const auto count = [&] {
    ++num_run;
    return absl::OkStatus();
  };
  const Event failed = runtime.Issue({.lane = b, .body = [] { return IoError("the disk burned"); }});
  const Event waits = runtime.Issue({.lane = a, .after = {failed}, .body = count});
  const Event waits_longer = runtime.Issue({.lane = b, .after = {waits}, .body = count});
  const Event other = runtime.Issue({.lane = b, .body = count});
  const Event thrown =
      runtime.Issue({.lane = a, .body = []() -> absl::Status { throw std::runtime_error("a surprise"); }});
  EXPECT_EQ(Message(runtime.Wait(waits_longer)), "the disk burned");
  EXPECT_EQ(Message(runtime.Wait(waits)), "the disk burned");
  EXPECT_TRUE(runtime.Wait(other).ok());
  EXPECT_THAT(Message(runtime.Wait(thrown)), testing::HasSubstr("a surprise"));
  EXPECT_EQ(num_run, 1);
  // A task issued after the failure fails too.
  EXPECT_EQ(Message(runtime.Wait(runtime.Issue({.lane = a, .after = {failed}, .body = count}))), "the disk burned");
  EXPECT_EQ(num_run, 1);
}

TEST(RealRuntime, AnOrderDoesNotPassAFailureOn) {
  RealRuntime runtime;
  const LaneIdx a = runtime.AddIssuerLane("a"), b = runtime.AddThreadLane("b");
  std::atomic<bool> ended{false}, in_order{false};
  const Event failed = runtime.Issue({.lane = b, .body = [&] {
                                        (void)Sleep(0.005);
                                        ended = true;
                                        return IoError("the disk burned");
                                      }});
  const Event next = runtime.Issue({.lane = a, .after_end = {failed}, .body = [&] {
                                      in_order = ended.load();
                                      return absl::OkStatus();
                                    }});
  EXPECT_TRUE(runtime.Wait(next).ok());
  EXPECT_TRUE(in_order);
  EXPECT_TRUE(runtime.Wait(runtime.Issue({.lane = a, .after_end = {failed}})).ok());
}

TEST(RealRuntime, CancellingEndsWhatHasNotBegunAndWaitsForWhatHas) {
  RealRuntime runtime;
  const LaneIdx a = runtime.AddIssuerLane("a"), b = runtime.AddThreadLane("b");
  std::atomic<int> num_ended{0};
  std::atomic<bool> begun{false};
  const Event running = runtime.Issue({.lane = b, .body = [&] {
                                         begun = true;
                                         const absl::Status status = Sleep(0.02);
                                         ++num_ended;
                                         return status;
                                       }});
  std::vector<Event> waiting;
  for (int i = 0; i < 10; ++i) {
    waiting.push_back(runtime.Issue({.lane = i % 2 == 0 ? a : b, .after = {running}, .body = [&] {
                                       ++num_ended;
                                       return absl::OkStatus();
                                     }}));
  }
  while (!begun) std::this_thread::yield();
  runtime.Cancel();
  EXPECT_EQ(num_ended, 1);
  EXPECT_TRUE(runtime.Wait(running).ok());
  for (const Event& event : waiting) EXPECT_TRUE(absl::IsCancelled(runtime.Wait(event)));
  // The runtime can be used again.
  EXPECT_TRUE(runtime.Wait(runtime.Issue({.lane = a})).ok());
}

TEST(RealRuntime, WhatABodyHoldsIsLetGoBeforeTheEvent) {
  RealRuntime runtime;
  const LaneIdx lane = runtime.AddThreadLane("b");
  for (int i = 0; i < 100; ++i) {
    const auto held = std::make_shared<int>(1);
    const Event event = runtime.Issue({.lane = lane, .body = [held] { return absl::OkStatus(); }});
    EXPECT_TRUE(runtime.Wait(event).ok());
    EXPECT_EQ(held.use_count(), 1);
  }
}

TEST(RealRuntime, ALinkIsNoFasterThanItsRate) {
  RealRuntime runtime;
  const LaneIdx lane = runtime.AddThreadLane("link", 1e6);
  std::vector<Event> events;
  const double begin_s = runtime.now_s();
  for (int i = 0; i < 4; ++i) events.push_back(runtime.Issue({.lane = lane, .cost = {.link_bytes = 5000}}));
  EXPECT_TRUE(runtime.WaitAll(events).ok());
  EXPECT_GE(runtime.now_s() - begin_s, 0.02);
  const std::vector<LaneUsage> usage = runtime.Usage();
  EXPECT_EQ(usage[lane].name, "link");
  EXPECT_EQ(usage[lane].num_tasks, 4);
  EXPECT_EQ(usage[lane].cost.link_bytes, 20000u);
  EXPECT_GE(usage[lane].busy_s, 0.02);
}

class DiskLaneTest : public testing::Test {
 protected:
  void SetUp() override {
    content_.resize(3'000'000);
    std::mt19937 random(1);
    for (char& c : content_) c = static_cast<char>(random());
    const std::string path = testing::TempDir() + "/disk-lane-" + std::to_string(::getpid());
    std::ofstream(path, std::ios::binary) << content_;
    OpenedFile file;
    file.fd = UniqueFd(::open(path.c_str(), O_RDWR));
    file.path = path;
    file.size_bytes = content_.size();
    files_.push_back(std::move(file));
    ::unlink(path.c_str());
  }
  std::string content_;
  std::vector<OpenedFile> files_;
};

TEST_F(DiskLaneTest, BringsTheBytesWhateverIsIssuedMeanwhile) {
  for (const auto& [ring, drops] : {std::pair(true, false), std::pair(true, true), std::pair(false, true)}) {
    RealRuntime runtime;
    const LaneIdx disk = runtime.AddDiskLane("disk", DiskReader::Create(files_, {.io_uring = ring}).value(),
                                             {.max_reading = kAnyReading, .cached_targets = drops});
    const LaneIdx compute = runtime.AddIssuerLane("compute");
    constexpr int kNumReads = 200;
    constexpr uint64_t kMaxBytes = 100'000;
    struct Target {
      alignas(4096) std::byte bytes[(kMaxBytes / 4096 + 3) * 4096];
    };
    const auto targets = std::make_unique<std::vector<Target>>(kNumReads);
    std::mt19937 random(2);
    std::atomic<int> num_right{0};
    std::vector<Event> checks;
    for (int i = 0; i < kNumReads; ++i) {
      Task task{.lane = disk, .label = {"read"}};
      const uint64_t size = 1 + random() % kMaxBytes;
      const DiskRead read{0, {random() % (content_.size() - size), size}, (*targets)[i].bytes};
      task.reads.push_back(read);
      task.cost.link_bytes = size;
      if (i % 7 == 3) task.after.push_back(checks[i / 2]);
      const Event arrived = runtime.Issue(std::move(task));
      checks.push_back(runtime.Issue({.lane = compute, .after = {arrived}, .body = [&, read] {
                                        num_right += std::memcmp(DiskReader::Landing(read),
                                                                 content_.data() + read.extent.offset_bytes,
                                                                 read.extent.size_bytes) == 0;
                                        return absl::OkStatus();
                                      }}));
      if (i % 20 == 19) {
        EXPECT_TRUE(runtime.Wait(checks[random() % checks.size()]).ok());
      }
    }
    EXPECT_TRUE(runtime.WaitAll(checks).ok());
    EXPECT_EQ(num_right, kNumReads);
    EXPECT_EQ(runtime.Usage()[disk].num_tasks, kNumReads);
  }
}

// A disk that ends its reads in their order, and counts how many are under way.
class CountingReader : public DiskReader {
 public:
  explicit CountingReader(int& max_under_way) : max_under_way_(max_under_way) {}
  void Submit(const DiskRead& read) override {
    reads_.push_back(read.tag);
    max_under_way_ = std::max(max_under_way_, static_cast<int>(reads_.size()));
  }
  std::optional<DiskCompletion> NextCompleted() override {
    if (reads_.empty()) return std::nullopt;
    const uint64_t tag = reads_.front();
    reads_.pop_front();
    return DiskCompletion{tag, absl::OkStatus()};
  }
  void Wake() override {}
  std::string Description() const override { return "counting"; }

 private:
  int& max_under_way_;
  std::deque<uint64_t> reads_;
};

// Slots may end where the memory ends.
TEST_F(DiskLaneTest, DropsNoLineBehindWhatItReads) {
  constexpr size_t kPages = 3, kBytes = 4096;
  void* const memory =
      ::mmap(nullptr, (kPages + 1) * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const begin = static_cast<std::byte*>(memory);
  ASSERT_EQ(::mprotect(begin + kPages * kBytes, kBytes, PROT_NONE), 0);
  {
    RealRuntime runtime;
    const LaneIdx disk = runtime.AddDiskLane("disk", DiskReader::Create(files_, {}).value(),
                                             {.max_reading = kAnyReading, .cached_targets = true});
    for (const FileExtent extent : {FileExtent{0, kPages * kBytes}, FileExtent{4096 + 7, kPages * kBytes - 100}}) {
      for (int i = 0; i < 2; ++i) {
        const DiskRead read{0, extent, begin};
        EXPECT_EQ(DiskReader::WrittenBytes(read), kPages * kBytes);
        EXPECT_TRUE(runtime.Wait(runtime.Issue({.lane = disk, .reads = {read}})).ok());
        EXPECT_EQ(std::memcmp(DiskReader::Landing(read), content_.data() + extent.offset_bytes, extent.size_bytes), 0);
      }
    }
  }
  ::munmap(memory, (kPages + 1) * kBytes);
}

TEST(DiskLane, ReadsForAtMostSoManyTasksAtOnce) {
  for (const int max : {1, 3}) {
    int max_under_way = 0;
    {
      RealRuntime runtime;
      const LaneIdx disk =
          runtime.AddDiskLane("disk", std::make_unique<CountingReader>(max_under_way), {.max_reading = max});
      const LaneIdx compute = runtime.AddIssuerLane("compute");
      const Event start = runtime.Issue({.lane = compute, .body = [] { return absl::OkStatus(); }});
      std::vector<Event> events;
      for (int i = 0; i < 20; ++i) {
        events.push_back(runtime.Issue({.lane = disk, .after = {start}, .reads = {{.extent = {0, 100}}}}));
      }
      EXPECT_TRUE(runtime.WaitAll(events).ok());
    }
    EXPECT_EQ(max_under_way, max);
  }
}

TEST_F(DiskLaneTest, AFailedReadFailsItsTaskAlone) {
  RealRuntime runtime;
  const LaneIdx disk = runtime.AddDiskLane("disk", DiskReader::Create(files_, {}).value());
  ASSERT_EQ(::ftruncate(files_[0].fd.get(), 1'000'000), 0);
  struct alignas(4096) Target {
    std::byte bytes[3 * 4096];
  };
  const auto targets = std::make_unique<std::vector<Target>>(3);
  std::vector<Event> events;
  for (int i = 0; i < 3; ++i) {
    const uint64_t offset = i == 1 ? 2'000'000 : 5000;
    events.push_back(runtime.Issue({.lane = disk, .reads = {{0, {offset, 4000}, (*targets)[i].bytes}}}));
  }
  EXPECT_TRUE(runtime.Wait(events[0]).ok());
  EXPECT_EQ(FaultOf(runtime.Wait(events[1])), Fault::kIo);
  EXPECT_TRUE(runtime.Wait(events[2]).ok());
}

}  // namespace
}  // namespace penstock
