// Proves that a failed write leaves whole lines and a job that can be resumed. A failed sync is final. A second process
// is told who holds the lock. A scan of the output accepts what a crash can leave, and refuses everything else.
#include <cerrno>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include "job_fixture.h"
#include "penstock/job/output_file.h"
#include "penstock/job/output_scan.h"
#include "penstock/job/result_line.h"

namespace penstock {
namespace {

// Writes `room` bytes in all, then fails with `write_error`. Syncs fail with `sync_error` when it is set.
class FaultyCalls : public OutputCalls {
 public:
  ssize_t Write(int fd, const void* data, size_t num_bytes) override {
    if (room == 0) {
      errno = write_error;
      return -1;
    }
    const ssize_t n = OutputCalls::Write(fd, data, std::min(num_bytes, room));
    if (n > 0) room -= static_cast<size_t>(n);
    return n;
  }
  int Sync(int fd) override {
    ++num_syncs;
    if (sync_error == 0) return OutputCalls::Sync(fd);
    errno = sync_error;
    return -1;
  }

  size_t room = SIZE_MAX;
  int write_error = ENOSPC;
  int sync_error = 0;
  int num_syncs = 0;
};

using OutputTest = JobFixture;

TEST_F(OutputTest, WritesFailAtALineBorderForEveryErrorAndResume) {
  WriteInput(ManyRequests(20));
  ASSERT_TRUE(Run().ok());
  const std::vector<std::string> whole = SortedOutput();
  const size_t num_bytes = ReadAll(options_.output_path).size();
  for (const int error : {ENOSPC, EDQUOT, EIO, EFBIG}) {
    for (size_t room = 0; room < num_bytes; room += num_bytes / 7) {
      std::filesystem::remove(options_.output_path);
      FaultyCalls calls;
      calls.room = room;
      calls.write_error = error;
      options_.output_calls = &calls;
      options_.resume = false;
      ExpectFault(Fault::kStopped, {"--resume", "last whole line"});
      const std::string text = ReadAll(options_.output_path);
      EXPECT_TRUE(text.empty() || text.back() == '\n');
      EXPECT_LE(text.size(), room);
      options_.output_calls = nullptr;
      options_.resume = true;
      ASSERT_TRUE(Run().ok());
      EXPECT_EQ(SortedOutput(), whole);
    }
  }
}

TEST_F(OutputTest, AFailedSyncIsFinal) {
  WriteInput(ManyRequests(200));
  FaultyCalls calls;
  calls.sync_error = EIO;
  options_.output_calls = &calls;
  ExpectFault(Fault::kIo, {"cannot sync"});
  EXPECT_EQ(calls.num_syncs, 1);  // the manifest is not synced through these calls, and no second sync is tried
}

TEST_F(OutputTest, SyncsInGroups) {
  WriteInput(ManyRequests(200));
  FaultyCalls calls;
  options_.output_calls = &calls;
  ASSERT_TRUE(Run().ok());
  EXPECT_GE(calls.num_syncs, 4);
  EXPECT_LE(calls.num_syncs, 30);
}

TEST_F(OutputTest, DevFullAndFileSizeLimit) {
  WriteInput(ManyRequests(4));
  const std::string output = options_.output_path;
  options_.output_path = "/dev/full";
  ExpectFault(Fault::kIo, {"/dev/full", "No space left"});
  options_.output_path = "/dev/null";
  EXPECT_TRUE(Run().ok());
  options_.resume = true;
  ExpectFault(Fault::kIo, {"regular file"});
  // A real limit of the kernel: the write that crosses it is short, and the next one fails with EFBIG.
  options_.output_path = output;
  options_.resume = false;
  WriteInput(ManyRequests(60));
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {8000, 8000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto summary = Run();
    ::_exit(summary.ok() ? 0 : ExitCode(summary.status()));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  const std::string text = ReadAll(options_.output_path);
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(text.back(), '\n');
  options_.resume = true;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Output().size(), 60u);
}

TEST_F(OutputTest, TheSecondProcessIsToldWhoHasTheLock) {
  WriteInput(ManyRequests(4));
  int to_parent[2];
  int to_child[2];
  ASSERT_EQ(::pipe(to_parent), 0);
  ASSERT_EQ(::pipe(to_child), 0);
  const pid_t child = ::fork();
  char byte = 'x';
  if (child == 0) {
    OutputCalls calls;
    const auto file = OutputFile::Open(options_.output_path, calls);
    if (::write(to_parent[1], &byte, 1) != 1 || ::read(to_child[0], &byte, 1) != 1) ::_exit(9);
    ::_exit(file.ok() ? 0 : 1);
  }
  ASSERT_EQ(::read(to_parent[0], &byte, 1), 1);
  ExpectFault(Fault::kIo, {fmt::format("locked by pid {}", child)});
  EXPECT_EQ(num_opened_, 0);
  ASSERT_EQ(::write(to_child[1], &byte, 1), 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(Run().ok());
  for (const int fd : {to_parent[0], to_parent[1], to_child[0], to_child[1]}) ::close(fd);
}

TEST_F(OutputTest, TheSameProcessCannotHaveItTwice) {
  OutputCalls calls;
  const auto first = OutputFile::Open(options_.output_path, calls);
  ASSERT_TRUE(first.ok());
  const auto second = OutputFile::Open(options_.output_path, calls);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(Message(second.status()), testing::HasSubstr("locked by"));
}

class ScanTest : public JobFixture {
 protected:
  static constexpr uint64_t kDigest = 77;
  static std::string Line(int64_t n) { return FormatError({kDigest, n, "x"}, {"code", "message", ""}) + "\n"; }
  absl::StatusOr<OutputScan> Scan(const std::string& text, int64_t num_lines = 200) {
    WriteFile(options_.output_path, text);
    const UniqueFd fd(::open(options_.output_path.c_str(), O_RDONLY | O_CLOEXEC));
    return ScanOutput({.fd = fd.get(), .path = options_.output_path, .job_digest = kDigest, .num_lines = num_lines},
                      [](int64_t) { return true; });
  }
};

TEST_F(ScanTest, EveryTornTailIsCut) {
  const std::string good = Line(3) + Line(1);
  const std::string next = Line(2);
  for (size_t cut = 0; cut < next.size(); ++cut) {
    const auto scan = Scan(good + next.substr(0, cut));
    ASSERT_TRUE(scan.ok()) << scan.status();
    EXPECT_EQ(scan->good_bytes, good.size());
    EXPECT_EQ(scan->num_done, 2);
    EXPECT_EQ(scan->num_torn_lines, cut > 0 ? 1 : 0);
    EXPECT_FALSE(scan->done[2]);
    EXPECT_TRUE(scan->done[3]);
  }
}

TEST_F(ScanTest, APageThatNeverReachedTheDiskIsCutWithWhatFollows) {
  std::string text;
  for (int i = 1; i <= 60; ++i) text += Line(i);
  const size_t hole = text.size() / 2;
  const std::string whole = text;
  text.replace(hole, 100, std::string(100, '\0'));
  const auto scan = Scan(text);
  ASSERT_TRUE(scan.ok()) << scan.status();
  EXPECT_LE(scan->good_bytes, hole);
  EXPECT_EQ(whole.substr(0, scan->good_bytes), text.substr(0, scan->good_bytes));
  EXPECT_GT(scan->num_torn_lines, 1);
  EXPECT_EQ(scan->num_done, std::count(text.begin(), text.begin() + static_cast<int64_t>(scan->good_bytes), '\n'));
}

TEST_F(ScanTest, RefusesWhatNoCrashDoes) {
  std::string many;
  for (int i = 2; i <= 100; ++i) many += Line(i);
  EXPECT_THAT(Message(Scan("damaged\n" + many).status()), testing::HasSubstr("line 1"));
  EXPECT_THAT(Message(Scan(Line(1) + Line(2) + Line(1)).status()), testing::HasSubstr("second result of input line 1"));
  EXPECT_THAT(Message(Scan(Line(1) + "{}\n").status()), testing::HasSubstr("line 2"));
  EXPECT_THAT(Message(Scan(Line(201)).status()), testing::HasSubstr("does not belong to this job"));
  EXPECT_THAT(Message(Scan(FormatError({1, 1, "x"}, {"c", "m", ""}) + "\n").status()),
              testing::HasSubstr("does not belong to this job"));
}

}  // namespace
}  // namespace penstock
