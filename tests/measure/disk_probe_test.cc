// ProbeDisk on a reader that records reads instead of doing them.
#include "penstock/measure/disk_probe.h"

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

class RecordingReader : public DiskReader {
 public:
  void Submit(const DiskRead& read) override {
    // Slots that another read under way fills, or memory that does not exist, would crash here or lose this mark.
    const uint64_t written = WrittenBytes(read);
    read.target[0] = read.target[written - 1] = std::byte{1};
    for (const DiskRead& other : under_way_) {
      EXPECT_TRUE(read.target >= other.target + WrittenBytes(other) || other.target >= read.target + written);
    }
    reads.push_back(read);
    under_way_.push_back(read);
    max_under_way = std::max(max_under_way, under_way_.size());
  }
  std::optional<DiskCompletion> NextCompleted() override {
    if (under_way_.empty()) return std::nullopt;
    const DiskRead read = under_way_.front();
    under_way_.pop_front();
    return DiskCompletion{read.tag, std::ssize(reads) > failing_read ? IoError("no such sector") : absl::OkStatus()};
  }
  void Wake() override {}
  std::string Description() const override { return "nothing"; }

  std::vector<DiskRead> reads;
  size_t max_under_way = 0;
  int64_t failing_read = INT64_MAX;

 private:
  std::deque<DiskRead> under_way_;
};

std::vector<OpenedFile> FilesOf(std::initializer_list<uint64_t> sizes) {
  std::vector<OpenedFile> files;
  for (const uint64_t size : sizes) files.push_back({.fd = UniqueFd(), .path = "", .size_bytes = size});
  return files;
}

TEST(DiskProbeTest, ReadsEachSizeAtManyPlacesOfAllFiles) {
  RecordingReader reader;
  const std::vector<OpenedFile> files = FilesOf({kMiB + 17, 0, 700'000, 2 * kMiB});
  // Without seconds it reads only as much as is under way at once: 3 times 2 * (1 + 3), and the long reads' 3.
  const DiskProbeSpec spec{.sizes = {5000, kMiB}, .depths = {1, 3}, .max_bytes = 8 * kMiB};
  const absl::StatusOr<Link> link = ProbeDisk(reader, files, spec);
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ(reader.max_under_way, 3);
  EXPECT_EQ(reader.reads.size(), 27);
  std::set<std::pair<int, uint64_t>> places;
  std::set<uint64_t> sizes;
  for (const DiskRead& read : reader.reads) {
    places.emplace(read.file_idx, read.extent.offset_bytes);
    sizes.insert(read.extent.size_bytes);
    EXPECT_LE(read.extent.offset_bytes + read.extent.size_bytes, files[read.file_idx].size_bytes);
  }
  EXPECT_EQ(sizes, (std::set<uint64_t>{5000, 700'000, kMiB}));  // 700,000: all of a small file
  EXPECT_GT(places.size(), 10);
  for (const int file_idx : {0, 2, 3}) {
    EXPECT_TRUE(std::ranges::any_of(places, [&](const auto& place) { return place.first == file_idx; })) << file_idx;
  }
  ASSERT_EQ(link->rates.size(), 4);
  EXPECT_EQ(link->rates.front().transfer_bytes, 5000);
  EXPECT_EQ(link->rates.front().num_under_way, 1);
  EXPECT_EQ(link->rates.back().transfer_bytes, kMiB);
  EXPECT_EQ(link->rates.back().num_under_way, 3);
  for (const TransferRate& rate : link->rates) EXPECT_GT(rate.bytes_per_s, 0);
  EXPECT_GT(link->bytes_per_s, 0);
}

TEST(DiskProbeTest, EndsAtAReadThatFails) {
  RecordingReader reader;
  reader.failing_read = 20;
  const std::vector<OpenedFile> files = FilesOf({kMiB});
  EXPECT_EQ(FaultOf(ProbeDisk(reader, files, {.max_bytes = kMiB, .seconds = 0.01}).status()), Fault::kIo);
}

TEST(DiskProbeTest, NeedsBytes) {
  RecordingReader reader;
  const std::vector<OpenedFile> files = FilesOf({0, 0});
  EXPECT_EQ(FaultOf(ProbeDisk(reader, files, {}).status()), Fault::kInput);
}

TEST(DiskProbeSpecTest, AModelsReadsAreMeasuredInsteadOfTheNearestSize) {
  const auto sizes_with = [](uint64_t size) {
    DiskProbeSpec spec;
    spec.IncludeSize(size);
    return spec.sizes;
  };
  using Sizes = std::vector<uint64_t>;
  EXPECT_EQ(sizes_with(1000), (Sizes{1000, kMiB, 8 * kMiB}));
  EXPECT_EQ(sizes_with(348'000), (Sizes{348'000, kMiB, 8 * kMiB}));
  EXPECT_EQ(sizes_with(2 * kMiB), (Sizes{kMiB / 8, 2 * kMiB, 8 * kMiB}));
  EXPECT_EQ(sizes_with(35 * kMiB), DiskProbeSpec().sizes);
  EXPECT_EQ(sizes_with(0), DiskProbeSpec().sizes);
}

}  // namespace
}  // namespace penstock
