// Proves that a job that is killed (SIGKILL) at random moments, repeatedly, and resumed with other batch sizes ends
// with exactly one result per request. Each result has the bytes of an uninterrupted run. The same holds after SIGTERM.
#include <csignal>
#include <random>

#include <sys/wait.h>
#include <unistd.h>

#include "job_fixture.h"

namespace penstock {
namespace {

std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

class KillTest : public JobFixture {
 protected:
  // Starts the job in a child process. Sends it `signal` `delay_us` after it has written `num_lines` further lines.
  // Returns its wait status.
  int RunAndSignal(int signal, size_t num_lines, int delay_us) {
    num_lines += Output().size();
    const pid_t child = ::fork();
    if (child == 0) {
      std::signal(SIGTERM, [](int) { g_stop = true; });
      const auto summary = RunJob(
          options_,
          [&](const InputReport&) -> absl::StatusOr<std::unique_ptr<Engine>> {
            return std::make_unique<FakeEngine>(engine_);
          },
          g_stop);
      ::_exit(summary.ok() ? 0 : ExitCode(summary.status()));
    }
    int status = 0;
    while (Output().size() < num_lines) {
      if (::waitpid(child, &status, WNOHANG) == child) return status;
      ::usleep(100);
    }
    ::usleep(static_cast<useconds_t>(delay_us));
    ::kill(child, signal);
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }

  std::vector<std::string> Uninterrupted() {
    const std::string output = options_.output_path;
    options_.output_path = dir_ + "/whole.jsonl";
    EXPECT_TRUE(Run().ok());
    const auto lines = SortedOutput();
    options_.output_path = output;
    return lines;
  }

  void Start(int num_requests) {
    WriteInput(ManyRequests(num_requests));
    expected_ = Uninterrupted();
    ASSERT_EQ(expected_.size(), static_cast<size_t>(num_requests));
    options_.resume = true;
    engine_.max_sleep_us = 400;
  }

  std::vector<std::string> expected_;
  std::mt19937 random_{20261121};
};

TEST_F(KillTest, KillNineLosesAndDoublesNothing) {
  Start(120);
  int num_kills = 0;
  int num_jobs = 0;
  int num_torn_midway = 0;
  while (num_kills < 250) {
    engine_.batch_size = static_cast<int64_t>(1 + random_() % 8);
    // Half of the kills come at any time, so some hit the beginning. The other half come among the lines, however slow
    // the machine is.
    const int status = num_kills % 2 == 0
                           ? RunAndSignal(SIGKILL, 0, static_cast<int>(random_() % 12000))
                           : RunAndSignal(SIGKILL, 1 + random_() % 20, static_cast<int>(random_() % 400));
    if (WIFSIGNALED(status)) {
      ++num_kills;
      const size_t num_lines = Output().size();
      num_torn_midway += num_lines > 0 && num_lines < expected_.size() ? 1 : 0;
      continue;
    }
    ASSERT_EQ(WEXITSTATUS(status), 0);
    ASSERT_EQ(SortedOutput(), expected_);
    ++num_jobs;
    std::filesystem::remove(options_.output_path);
    std::filesystem::remove(ManifestPath(options_.output_path));
  }
  while (!WIFEXITED(RunAndSignal(0, 0, 0))) {
  }
  EXPECT_EQ(SortedOutput(), expected_);
  EXPECT_GT(num_torn_midway, 20) << "the kills must hit running jobs, or they prove nothing";
  RecordProperty("finished_jobs", num_jobs);
  RecordProperty("kills_midway", num_torn_midway);
}

TEST_F(KillTest, SigtermStopsResumably) {
  Start(60);
  int num_stopped = 0;
  for (int i = 0; i < 60; ++i) {
    const int status = RunAndSignal(SIGTERM, random_() % 15, static_cast<int>(random_() % 400));
    if (WIFSIGNALED(status)) continue;  // the signal came before its handler was installed
    ASSERT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 7) << status;
    num_stopped += WEXITSTATUS(status) == 7;
    if (WEXITSTATUS(status) == 0) {
      ASSERT_EQ(SortedOutput(), expected_);
      std::filesystem::remove(options_.output_path);
      std::filesystem::remove(ManifestPath(options_.output_path));
    }
  }
  EXPECT_GT(num_stopped, 5);
}

}  // namespace
}  // namespace penstock
