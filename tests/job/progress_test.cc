// Proves that progress shows the right numbers at the right intervals, and that a job survives a closed stderr.
#include "penstock/job/progress.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "penstock/job/stats.h"

namespace penstock {
namespace {

EngineStats Stats() {
  EngineStats stats;
  stats.generated_tokens = 100;
  stats.decode_s = 8;
  stats.expert_hits = 3;
  stats.expert_misses = 1;
  stats.lanes = {{"host_compute", 2}, {"disk_to_dram", 7.9}, {"idle", 0}};
  return stats;
}

std::string Drain(int fd) {
  char bytes[4096];
  const ssize_t n = ::read(fd, bytes, sizeof(bytes));
  return std::string(bytes, static_cast<size_t>(n > 0 ? n : 0));
}

TEST(Progress, Line) {
  // 20 requests took 60 of the 100 tokens; the other 40 need 120, of which 40 are there. All time counts, not only that
  // of steps.
  const ProgressCounts counts{
      .num_requests = 80, .num_done = 40, .num_failed = 1, .num_resumed = 20, .finished = {.answer = 60}};
  EXPECT_EQ(FormatProgress(counts, Stats(), 50),
            "[############------------] 40/80 requests, 1 failed, 2.0 tokens/s, host_compute 25%, disk_to_dram "
            "99%, 40s left");
  EXPECT_EQ(FormatProgress(counts, Stats(), 50, 0, 80),
            "[############------------] 40/80 requests, 1 failed, 2.0 tokens/s, 40s left");
  EXPECT_EQ(FormatProgress(counts, Stats(), 50, 0, 60), "40/80 requests, 1 failed, 2.0 tokens/s, 40s left");
  EXPECT_EQ(FormatProgress(counts, Stats(), 50, 0, 20), "40/80 requests, 1 f");
  EngineStats slower;
  slower.prompt_tokens = 10;
  slower.prefill_s = 1;
  slower.generated_tokens = 5;
  slower.decode_s = 1;
  EXPECT_EQ(FormatProgress({.num_requests = 2, .max_expected = {.prompt = 20, .answer = 10}}, slower, 2, 4),
            "[------------------------] 0/2 requests, 2.5 tokens/s of 4.0 predicted, at most 6s left");
  slower.decode_s = 0.1;  // nothing is known about the answers' speed
  EXPECT_EQ(FormatProgress({.num_requests = 2, .max_expected = {.prompt = 20, .answer = 10}}, slower, 2, 4),
            "[------------------------] 0/2 requests, 2.5 tokens/s of 4.0 predicted");
  EXPECT_EQ(FormatProgress({}, {}, 0), "[########################] 0/0 requests");
  EngineStats scored;
  scored.prompt_tokens = 512;
  scored.prefill_s = 2;
  const ProgressCounts windows{
      .unit = "windows", .num_requests = 4, .num_done = 1, .finished = {.prompt = 512}, .result = "perplexity 55.1"};
  EXPECT_EQ(FormatProgress(windows, scored, 4),
            "[######------------------] 1/4 windows, perplexity 55.1, 128.0 prompt tokens/s, 12s left");
}

TEST(Progress, WritesSeldom) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  Progress plain(ProgressMode::kPlain, pipe_fds[1]);
  for (int tenth = 0; tenth < 250; ++tenth) plain.Update({.num_requests = 9}, {}, tenth * 0.1);
  plain.Finish({.num_requests = 9, .num_done = 9}, {}, 25);
  const std::string text = Drain(pipe_fds[0]);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  Progress redraw(ProgressMode::kRedraw, pipe_fds[1]);
  for (int i = 0; i < 100; ++i) redraw.Update({.num_requests = 9}, {}, i * 0.01);
  const std::string drawn = Drain(pipe_fds[0]);
  EXPECT_LE(std::count(drawn.begin(), drawn.end(), '\r'), 10);
  EXPECT_GE(std::count(drawn.begin(), drawn.end(), '\r'), 8);
  Progress silent(ProgressMode::kSilent, pipe_fds[1]);
  silent.Update({}, {}, 1);
  silent.Finish({}, {}, 2);
  silent.Print("x");
  ::close(pipe_fds[1]);
  EXPECT_EQ(Drain(pipe_fds[0]), "");
  ::close(pipe_fds[0]);
}

TEST(Progress, AClosedReaderIsNoError) {
  std::signal(SIGPIPE, SIG_IGN);
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  ::close(pipe_fds[0]);
  Progress progress(ProgressMode::kPlain, pipe_fds[1]);
  progress.Finish({.num_requests = 1, .num_done = 1}, {}, 1);
  ::close(pipe_fds[1]);
  EXPECT_TRUE(ChooseProgressMode(true) == ProgressMode::kSilent);
}

TEST(Stats, TheBoundIsTheSlowestPartAlone) {
  EngineStats work;
  work.disk_bytes = 1000;
  work.unused_disk_bytes = 200;
  work.work.memory_bytes = 500;
  work.work.flops = 900;
  work.host_work.flops = 700;
  const Bound disk =
      BoundOf(work, {.disk_bytes_per_s = 100, .compute = {.memory_bytes_per_s = 100, .ops_per_s = 1000}});
  EXPECT_EQ(disk.seconds, 8);
  EXPECT_EQ(disk.limited_by, "disk");
  EXPECT_EQ(BoundOf(work, {.disk_bytes_per_s = 0, .compute = {.memory_bytes_per_s = 10, .ops_per_s = 100}}).limited_by,
            "memory");
  EXPECT_EQ(
      BoundOf(work, {.disk_bytes_per_s = 1000, .compute = {.memory_bytes_per_s = 1000, .ops_per_s = 100}}).seconds, 9);
  const Bound host = BoundOf(work, {.compute = {.ops_per_s = 100}, .host = {.ops_per_s = 10}});
  EXPECT_EQ(host.seconds, 70);
  EXPECT_EQ(host.limited_by, "host arithmetic");
  EXPECT_EQ(BoundOf(work, {}).seconds, 0);
}

TEST(Stats, MemoryIsSampledWithinABound) {
  MemoryLog log;
  for (int i = 0; i < 10'000; ++i) log.Update(0.5 * i);
  ASSERT_LE(log.samples().size(), MemoryLog::kMaxSamples);
  ASSERT_GE(log.samples().size(), MemoryLog::kMaxSamples / 2);
  EXPECT_EQ(log.samples()[0].seconds, 0);
  const double distance = log.samples()[1].seconds;
  for (size_t i = 1; i < log.samples().size(); ++i) {
    EXPECT_EQ(log.samples()[i].seconds, distance * static_cast<double>(i));
    EXPECT_GT(log.samples()[i].resident_bytes, 1u << 20);
  }
}

TEST(Stats, Summary) {
  JobNumbers numbers;
  numbers.num_requests = 5;
  numbers.num_failed = 1;
  numbers.engine = Stats();
  numbers.failures = {{"model_error", 1, "line 7", "layer 1: wrong checksum"}};
  EXPECT_THAT(FormatSummary(numbers), testing::HasSubstr("5, 1 failed"));
  EXPECT_THAT(FormatSummary(numbers),
              testing::HasSubstr("1 model_error, the first in line 7: layer 1: wrong checksum"));
  EXPECT_THAT(FormatSummary(numbers), testing::HasSubstr("3 hits, 1 misses (75.0% were in memory when wanted)"));
  EXPECT_GT(PeakRssBytes(), 1u << 20);
}

}  // namespace
}  // namespace penstock
