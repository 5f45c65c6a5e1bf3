// Proves that both readers (io_uring and threads, with and without O_DIRECT) bring exactly the requested bytes, at any
// offset, also at the end of a file. A file that is cut short while in use must give an error that names it. With
// mirrors the bytes are the same, whatever the mirrors hold and however they fail.
#include "penstock/runtime/disk_reader.h"

#include <cstring>
#include <fstream>
#include <random>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/checkpoint/mirror.h"
#include "penstock/memory/arena.h"

namespace penstock {
namespace {

class DiskReaderTest : public testing::TestWithParam<DiskReaderOptions> {
 protected:
  void Write(const std::string& name, size_t size) {
    std::mt19937 random(static_cast<unsigned>(size));
    std::string content(size, '\0');
    for (char& c : content) c = static_cast<char>(random());
    const std::string path = testing::TempDir() + "/disk-reader-" + name + std::to_string(::getpid());
    std::ofstream(path, std::ios::binary) << content;
    OpenedFile file;
    file.fd = UniqueFd(::open(path.c_str(), O_RDWR));
    file.path = path;
    file.size_bytes = size;
    files_.push_back(std::move(file));
    contents_.push_back(std::move(content));
  }
  void TearDown() override {
    for (const OpenedFile& file : files_) {
      ::unlink(file.path.c_str());
      for (const FileCopy& copy : file.copies) ::unlink(copy.path.c_str());
    }
  }

  // Adds a copy of a file to a mirror. `content` may be another one than the file's.
  void AddCopy(size_t file_idx, const std::shared_ptr<Mirror>& mirror, const std::string& content,
               std::vector<FileExtent> held) {
    const std::string path = files_[file_idx].path + "-copy" + std::to_string(files_[file_idx].copies.size());
    std::ofstream(path, std::ios::binary) << content;
    files_[file_idx].copies.push_back({mirror, UniqueFd(::open(path.c_str(), O_RDWR)), path, std::move(held)});
  }
  // Reads a file as a few reads at once, and expects its bytes.
  void ExpectReads(DiskReader& reader, size_t file_idx = 0) {
    const std::string& content = contents_[file_idx];
    const uint64_t step = content.size() / 3 + 1;
    std::vector<DiskRead> reads;
    std::vector<Arena> arenas;
    for (uint64_t offset = 0; offset < content.size(); offset += step) {
      const uint64_t size = std::min<uint64_t>(step, content.size() - offset);
      arenas.push_back(HostMemory().Map(DiskReader::PaddedBytes(size)).value());
      reads.push_back({static_cast<int>(file_idx), {offset, size}, arenas.back().data(), reads.size()});
      reader.Submit(reads.back());
    }
    for (size_t i = 0; i < reads.size(); ++i) {
      const auto completion = reader.NextCompleted();
      ASSERT_TRUE(completion.has_value());
      ASSERT_TRUE(completion->status.ok()) << completion->status;
      const DiskRead& read = reads[completion->tag];
      EXPECT_EQ(
          std::memcmp(DiskReader::Landing(read), content.data() + read.extent.offset_bytes, read.extent.size_bytes), 0);
    }
    EXPECT_FALSE(reader.NextCompleted().has_value());
  }

  std::vector<OpenedFile> files_;
  std::vector<std::string> contents_;
};

TEST_P(DiskReaderTest, BringsTheBytesAskedFor) {
  Write("a", 5'000'003);
  Write("b", 777);
  auto reader = DiskReader::Create(files_, GetParam());
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<DiskRead> reads;
    std::vector<Arena> arenas;
    for (uint64_t tag = 0; tag < 12; ++tag) {
      const int file_idx = static_cast<int>(random() % 2);
      const uint64_t file_bytes = files_[file_idx].size_bytes;
      const uint64_t offset = tag == 0 ? file_bytes - 1 : random() % file_bytes;
      const uint64_t size = tag == 1 ? file_bytes - offset : 1 + random() % (file_bytes - offset);
      arenas.push_back(HostMemory().Map(DiskReader::PaddedBytes(size)).value());
      reads.push_back({file_idx, {offset, size}, arenas.back().data(), tag});
      (*reader)->Submit(reads.back());
    }
    std::vector<bool> seen(reads.size());
    for (;;) {
      const auto completion = (*reader)->NextCompleted();
      if (!completion.has_value()) break;
      ASSERT_TRUE(completion->status.ok()) << completion->status;
      ASSERT_FALSE(seen[completion->tag]);
      seen[completion->tag] = true;
      const DiskRead& read = reads[completion->tag];
      EXPECT_EQ(std::memcmp(DiskReader::Landing(read), contents_[read.file_idx].data() + read.extent.offset_bytes,
                            read.extent.size_bytes),
                0);
    }
    EXPECT_THAT(seen, testing::Each(true));
  }
}

TEST_P(DiskReaderTest, FileCutShortIsAnError) {
  Write("cut", 3'000'000);
  auto reader = DiskReader::Create(files_, GetParam());
  ASSERT_TRUE(reader.ok());
  ASSERT_EQ(::ftruncate(files_[0].fd.get(), 1'000'001), 0);
  const Arena arena = HostMemory().Map(DiskReader::PaddedBytes(2'500'000)).value();
  (*reader)->Submit({0, {100, 2'500'000}, arena.data(), 5});
  // The read ends once, even if several of its parts fail.
  const auto completion = (*reader)->NextCompleted();
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->tag, 5u);
  EXPECT_EQ(FaultOf(completion->status), Fault::kIo);
  EXPECT_THAT(Message(completion->status),
              testing::AllOf(testing::HasSubstr(files_[0].path), testing::HasSubstr("ended early")));
  EXPECT_FALSE((*reader)->NextCompleted().has_value());
}

TEST_P(DiskReaderTest, WakeEndsAWait) {
  Write("wake", 3'000'000);
  auto reader = DiskReader::Create(files_, GetParam());
  ASSERT_TRUE(reader.ok());
  const Arena arena = HostMemory().Map(DiskReader::PaddedBytes(3'000'000)).value();
  for (int round = 0; round < 50; ++round) {
    (*reader)->Submit({0, {0, 3'000'000}, arena.data(), 7});
    (*reader)->Wake();
    // Both the wake-up and the read arrive, in any order, and neither twice.
    int num_read = 0;
    for (int i = 0; i < 3 && num_read == 0; ++i) {
      if ((*reader)->NextCompleted().has_value()) ++num_read;
    }
    EXPECT_EQ(num_read, 1);
  }
}

TEST_P(DiskReaderTest, NothingUnderWayIsNothing) {
  Write("idle", 10);
  auto reader = DiskReader::Create(files_, GetParam());
  ASSERT_TRUE(reader.ok());
  EXPECT_FALSE((*reader)->NextCompleted().has_value());
}

TEST_P(DiskReaderTest, MirrorsShareTheReads) {
  Write("shared", 9'000'003);
  const auto mirror = std::make_shared<Mirror>("/mirror");
  AddCopy(0, mirror, contents_[0], {{0, contents_[0].size()}});
  auto reader = DiskReader::Create(files_, GetParam());
  ASSERT_TRUE(reader.ok());
  for (int round = 0; round < 5; ++round) ExpectReads(**reader);
  const auto reads = (*reader)->ReadsByDirectory();
  ASSERT_EQ(reads.size(), 2u);
  EXPECT_EQ(reads[1].path, "/mirror");
  EXPECT_GE(reads[0].bytes + reads[1].bytes, 5 * contents_[0].size());
  EXPECT_LE(reads[0].bytes + reads[1].bytes, 5 * contents_[0].size() + 20 * 4096);
  for (const DirectoryReads& one : reads) {
    EXPECT_GT(one.bytes, 0u);
    EXPECT_GT(one.bytes_per_s, 0);
  }
}

TEST_P(DiskReaderTest, APartialMirrorIsReadOnlyWhereItHoldsBytes) {
  Write("partial", 9'000'003);
  Write("other", 3'000'000);
  std::string content(contents_[0].size(), '\0');  // a sparse copy
  const FileExtent held{1 << 20, 5 << 20};
  content.replace(held.offset_bytes, held.size_bytes, contents_[0], held.offset_bytes, held.size_bytes);
  AddCopy(0, std::make_shared<Mirror>("/partial"), content, {held});
  auto reader = DiskReader::Create(files_, GetParam());
  ASSERT_TRUE(reader.ok());
  for (int round = 0; round < 5; ++round) {
    ExpectReads(**reader, 0);
    ExpectReads(**reader, 1);
  }
  EXPECT_GT((*reader)->ReadsByDirectory()[1].bytes, 0u);
}

TEST_P(DiskReaderTest, AMirrorThatCannotBeReadIsLeftOut) {
  Write("broken", 9'000'003);
  const auto mirror = std::make_shared<Mirror>("/broken");
  // Reading a folder fails with EISDIR.
  files_[0].copies.push_back(
      {mirror, UniqueFd(::open("/tmp", O_RDONLY | O_DIRECTORY)), "/tmp/none", {{0, contents_[0].size()}}});
  auto reader = DiskReader::Create(files_, GetParam());
  ASSERT_TRUE(reader.ok());
  for (int round = 0; round < 5; ++round) ExpectReads(**reader);
  EXPECT_TRUE(mirror->is_left_out());
  EXPECT_EQ((*reader)->ReadsByDirectory()[1].bytes, 0u);
}

TEST_P(DiskReaderTest, AMirrorThatVanishesIsReplacedByTheModel) {
  Write("vanishing", 9'000'003);
  const auto mirror = std::make_shared<Mirror>("/vanishing");
  AddCopy(0, mirror, contents_[0], {{0, contents_[0].size()}});
  auto reader = DiskReader::Create(files_, GetParam());
  ASSERT_TRUE(reader.ok());
  // No part of it was read yet, so it is tried again after each fault.
  ASSERT_EQ(::ftruncate(files_[0].copies[0].fd.get(), 0), 0);
  for (int round = 0; round < 5; ++round) ExpectReads(**reader);
  EXPECT_TRUE(mirror->is_left_out());
}

TEST_P(DiskReaderTest, AMirrorReplacesTheModelsOwnFile) {
  Write("own", 9'000'003);
  AddCopy(0, std::make_shared<Mirror>("/whole"), contents_[0], {{0, contents_[0].size()}});
  auto reader = DiskReader::Create(files_, GetParam());
  ASSERT_TRUE(reader.ok());
  ASSERT_EQ(::ftruncate(files_[0].fd.get(), 0), 0);
  for (int round = 0; round < 3; ++round) ExpectReads(**reader);
}

INSTANTIATE_TEST_SUITE_P(Ways, DiskReaderTest,
                         testing::Values(DiskReaderOptions{true, true}, DiskReaderOptions{false, true},
                                         DiskReaderOptions{true, false}, DiskReaderOptions{false, false}),
                         [](const auto& param) {
                           return std::string(param.param.direct_io ? "Direct" : "Buffered") +
                                  (param.param.io_uring ? "Ring" : "Threads");
                         });

}  // namespace
}  // namespace penstock
