// Proves that descriptors are closed exactly once, that reads and writes either finish or return an error, and that
// only regular files of bounded size are read.
#include "penstock/base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "penstock/base/status.h"

namespace penstock {
namespace {

using testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/penstock-file-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << content;
    return dir_ + "/" + name;
  }

  std::string dir_;
};

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST_F(FileTest, UniqueFdClosesOnce) {
  const std::string path = Write("a", "x");
  UniqueFd first(::open(path.c_str(), O_RDONLY));
  const int raw = first.get();
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): this tests the moved-from state
  EXPECT_TRUE(IsOpen(raw));
  UniqueFd third(::open(path.c_str(), O_RDONLY));
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_FALSE(IsOpen(replaced));
  EXPECT_TRUE(IsOpen(raw));
  third = UniqueFd();
  EXPECT_FALSE(IsOpen(raw));
}

TEST_F(FileTest, PreadReadsAtAnOffset) {
  const std::string path = Write("a", "0123456789");
  const UniqueFd fd(::open(path.c_str(), O_RDONLY));
  std::string out(4, '\0');
  ASSERT_TRUE(PreadFully(fd.get(), std::as_writable_bytes(std::span(out)), 3, path).ok());
  EXPECT_EQ(out, "3456");
}

TEST_F(FileTest, PreadTellsBothSizesOfAnEarlyEnd) {
  const std::string path = Write("a", "0123456789");
  const UniqueFd fd(::open(path.c_str(), O_RDONLY));
  std::string out(8, '\0');
  const absl::Status status = PreadFully(fd.get(), std::as_writable_bytes(std::span(out)), 5, path);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(FaultOf(status), Fault::kIo);
  EXPECT_THAT(Message(status), HasSubstr("expected 8 bytes at offset 5, found 5"));
  EXPECT_THAT(Message(status), HasSubstr(path));
}

TEST_F(FileTest, PreadOfABadDescriptorIsAnError) {
  std::string out(1, '\0');
  const absl::Status status = PreadFully(-1, std::as_writable_bytes(std::span(out)), 0, "nowhere");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(Message(status), HasSubstr("nowhere: cannot read"));
}

TEST_F(FileTest, WriteFullyWritesAndReports) {
  const std::string path = dir_ + "/out";
  const std::string data(3 << 20, 'z');
  {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT, 0600));
    ASSERT_TRUE(WriteFully(fd.get(), data, path).ok());
  }
  const auto content = ReadFile(path, data.size());
  ASSERT_TRUE(content.ok());
  EXPECT_EQ(*content, data);
  const UniqueFd read_only(::open(path.c_str(), O_RDONLY));
  EXPECT_EQ(FaultOf(WriteFully(read_only.get(), "x", path)), Fault::kIo);
}

TEST_F(FileTest, WriteFullySurvivesAFullPipe) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd source(ends[0]);
  const UniqueFd target(ends[1]);
  const std::string data(1 << 20, 'p');
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(WriteFully(target.get(), data, "pipe").ok() ? 0 : 1);
  std::string received;
  char buffer[4096];
  while (received.size() < data.size()) {
    const ssize_t n = ::read(source.get(), buffer, sizeof(buffer));
    ASSERT_GT(n, 0);
    received.append(buffer, static_cast<size_t>(n));
  }
  EXPECT_EQ(received, data);
}

TEST_F(FileTest, ReadFileTakesRegularFilesWithinTheLimit) {
  const std::string path = Write("a", std::string("a\0b", 3));
  const auto content = ReadFile(path, 3);
  ASSERT_TRUE(content.ok());
  EXPECT_EQ(*content, std::string("a\0b", 3));
  EXPECT_EQ(*ReadFile(Write("empty", ""), 0), "");
  EXPECT_THAT(Message(ReadFile(path, 2).status()), HasSubstr("more than the limit of 2 B"));
  EXPECT_THAT(Message(ReadFile(dir_ + "/none", 2).status()), HasSubstr("No such file"));
  EXPECT_THAT(Message(ReadFile(dir_, 2).status()), HasSubstr("expected a regular file"));
  EXPECT_THAT(Message(ReadFile("/dev/zero", 2).status()), HasSubstr("expected a regular file"));
}

TEST_F(FileTest, ReadFileDoesNotHangOnAFifo) {
  const std::string path = dir_ + "/fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(Message(ReadFile(path, 10).status()), HasSubstr("expected a regular file"));
}

TEST_F(FileTest, ANewFileAppearsWhenItIsWhole) {
  const std::string path = dir_ + "/new";
  {
    auto file = NewFile::Create(path, /*replaces_leftover=*/false);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(file->Write("half").ok());
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_THAT(Message(NewFile::Create(path, /*replaces_leftover=*/false).status()), HasSubstr("new.tmp: exists"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
  Write("new.tmp", "a leftover that is long");
  ASSERT_TRUE(ReplaceFile(path, "first").ok());
  ASSERT_TRUE(ReplaceFile(path, "second").ok());
  EXPECT_EQ(*ReadFile(path, 100), "second");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_EQ(FaultOf(ReplaceFile(dir_ + "/none/new", "x")), Fault::kIo);
}

TEST_F(FileTest, ANamelessFileLeavesNothing) {
  const auto fd = OpenNamelessFile(dir_);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_TRUE(WriteFully(fd->get(), "x", "nameless").ok());
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
  EXPECT_EQ(FaultOf(OpenNamelessFile(dir_ + "/none").status()), Fault::kIo);
}

TEST(CheckReplaceable, TellsBeforeAnythingIsWritten) {
  const std::string folder = testing::TempDir();
  EXPECT_TRUE(CheckReplaceable(folder + "/new-file").ok());
  EXPECT_TRUE(CheckReplaceable("new-file-here").ok());
  EXPECT_EQ(FaultOf(CheckReplaceable(folder)), Fault::kIo);
  EXPECT_EQ(FaultOf(CheckReplaceable(folder + "/missing/file")), Fault::kIo);
}

}  // namespace
}  // namespace penstock
