#include "penstock/measure/disk_probe.h"

#include <algorithm>
#include <deque>
#include <map>

#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/status.h"
#include "penstock/memory/arena.h"

namespace penstock {
namespace {

constexpr int kRounds = 3;
constexpr uint64_t kUncachedBytes = 128 * kMiB;

class DiskProbe {
 public:
  DiskProbe(DiskReader& reader, std::span<const OpenedFile> files, uint64_t max_bytes)
      : reader_(reader), files_(files), max_bytes_(max_bytes) {}

  // Returns the bytes per second of reads that go on for `seconds`. They fill in turn as much memory as `depth` of them
  // need, and at least `target_bytes`.
  absl::StatusOr<double> Rate(uint64_t size_bytes, int depth, uint64_t target_bytes, double seconds) {
    const uint64_t slot_bytes = DiskReader::PaddedBytes(size_bytes);
    const auto max_slots = std::max<int64_t>(1, static_cast<int64_t>(max_bytes_ / size_bytes));
    const auto num_slots = std::clamp<int64_t>(static_cast<int64_t>(target_bytes / slot_bytes),
                                               std::min<int64_t>(depth, max_slots), max_slots);
    // So many slots of a run have pages of the same kind. Some disks read into huge pages twice as fast.
    buffer_ = {};
    PENSTOCK_ASSIGN_OR_RETURN(buffer_, HostMemory().Map(slot_bytes * static_cast<uint64_t>(num_slots)));
    for (uint64_t page = 0; page < buffer_.size_bytes(); page += kPageBytes) buffer_.data()[page] = std::byte{1};
    std::deque<int64_t> free_slots;  // the one that was filled first is filled next
    for (int64_t slot = 0; slot < num_slots; ++slot) free_slots.push_back(slot);
    const auto start = Clock::now();
    int64_t num_under_way = 0;
    uint64_t bytes = 0;
    const auto submit = [&] {
      bytes += Submit(free_slots.front(), size_bytes);
      free_slots.pop_front();
      ++num_under_way;
    };
    while (num_under_way < std::min<int64_t>(depth, num_slots)) submit();
    while (num_under_way > 0) {
      const std::optional<DiskCompletion> done = reader_.NextCompleted();
      if (!done.has_value()) continue;
      --num_under_way;
      free_slots.push_back(static_cast<int64_t>(done->tag));
      status_.Update(done->status);
      if (status_.ok() && SecondsSince(start) < seconds) submit();
    }
    if (!status_.ok()) return status_;
    return static_cast<double>(bytes) / std::max(1e-9, SecondsSince(start));
  }

 private:
  // Submits a read of the next piece of the files, and returns its bytes.
  uint64_t Submit(int64_t slot, uint64_t size_bytes) {
    while (offset_ >= files_[file_idx_].size_bytes) {
      file_idx_ = (file_idx_ + 1) % files_.size();
      offset_ = 0;
    }
    const uint64_t bytes = std::min(size_bytes, files_[file_idx_].size_bytes - offset_);
    reader_.Submit({.file_idx = static_cast<int>(file_idx_),
                    .extent = {offset_, bytes},
                    .target = buffer_.data() + static_cast<uint64_t>(slot) * DiskReader::PaddedBytes(size_bytes),
                    .tag = static_cast<uint64_t>(slot)});
    offset_ += bytes;
    return bytes;
  }

  DiskReader& reader_;
  std::span<const OpenedFile> files_;
  uint64_t max_bytes_;
  Arena buffer_;
  size_t file_idx_ = 0;
  uint64_t offset_ = 0;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Link> ProbeDisk(DiskReader& reader, std::span<const OpenedFile> files, const DiskProbeSpec& spec) {
  const bool has_bytes = std::any_of(files.begin(), files.end(), [](const OpenedFile& f) { return f.size_bytes > 0; });
  if (!has_bytes) return InputError("the files have no bytes to measure the disk with");
  DiskProbe probe(reader, files, spec.max_bytes);
  const double seconds = spec.seconds / static_cast<double>(2 * kRounds * spec.sizes.size() * spec.depths.size());
  struct Rates {
    std::vector<double> cached, uncached;
  };
  std::map<std::pair<uint64_t, int>, Rates> rates;
  // Each round reads all sizes, so that a disturbance does not fall on one size alone.
  for (int round = 0; round < kRounds; ++round) {
    for (const uint64_t size : spec.sizes) {
      for (const int depth : spec.depths) {
        PENSTOCK_ASSIGN_OR_RETURN(const double cached, probe.Rate(size, depth, 0, seconds));
        PENSTOCK_ASSIGN_OR_RETURN(const double uncached, probe.Rate(size, depth, kUncachedBytes, seconds));
        rates[{size, depth}].cached.push_back(cached);
        rates[{size, depth}].uncached.push_back(uncached);
      }
    }
  }
  Link link{.name = "disk_to_dram"};
  const auto median = [](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  for (auto& [key, of_key] : rates) {
    link.rates.push_back({key.first, key.second, median(of_key.cached), median(of_key.uncached)});
  }
  PENSTOCK_ASSIGN_OR_RETURN(link.bytes_per_s,
                            probe.Rate(spec.sizes.back(), spec.depths.back(), kUncachedBytes, spec.long_seconds));
  return link;
}

}  // namespace penstock
