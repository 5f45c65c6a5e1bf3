#include "penstock/measure/disk_probe.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/status.h"
#include "penstock/memory/arena.h"

namespace penstock {
namespace {

constexpr int kRounds = 3;
// The reads fill memory like that of many expert slots: huge pages, and more than caches hold. Into less, a virtual
// machine's disk may read at two rates (docs/decisions/planning.md): the host writes into lines that some cache holds.
constexpr uint64_t kFilledBytes = 128 * kMiB;

// Returns the time for which this thread has run.
double ThreadCpuSeconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class DiskProbe {
 public:
  static absl::StatusOr<DiskProbe> Create(DiskReader& reader, std::span<const OpenedFile> files,
                                          const DiskProbeSpec& spec) {
    const uint64_t slot_bytes = DiskReader::PaddedBytes(*std::ranges::max_element(spec.sizes));
    const auto depth = static_cast<uint64_t>(*std::ranges::max_element(spec.depths));
    const uint64_t wanted = std::min(std::max(kFilledBytes, depth * slot_bytes), spec.max_bytes);
    PENSTOCK_ASSIGN_OR_RETURN(Arena memory, HostMemory().Map(std::max(slot_bytes, wanted)));
    for (uint64_t page = 0; page < memory.size_bytes(); page += kPageBytes) memory.data()[page] = std::byte{1};
    return DiskProbe(reader, files, std::move(memory));
  }

  // Returns the bytes per second of reads that go on for `seconds`, as many under way as `depth` and the memory allow.
  absl::StatusOr<double> Rate(uint64_t size_bytes, int depth, double seconds) {
    const uint64_t slot_bytes = DiskReader::PaddedBytes(size_bytes);
    const auto num_slots = static_cast<int64_t>(memory_.size_bytes() / slot_bytes);
    std::deque<int64_t> free_slots;  // the one that was filled first is filled next
    for (int64_t slot = 0; slot < num_slots; ++slot) free_slots.push_back(slot);
    const auto start = Clock::now();
    const double cpu_start_s = ThreadCpuSeconds();
    int64_t num_under_way = 0, num_reads = 0;
    uint64_t bytes = 0;
    const auto submit = [&] {
      ++num_reads;
      bytes += Submit(free_slots.front(), size_bytes);
      free_slots.pop_front();
      ++num_under_way;
    };
    while (num_under_way < std::min<int64_t>(depth, num_slots)) submit();
    while (num_under_way > 0) {
      const std::optional<DiskCompletion> done = reader_->NextCompleted();
      if (!done.has_value()) continue;
      --num_under_way;
      free_slots.push_back(static_cast<int64_t>(done->tag));
      status_.Update(done->status);
      if (status_.ok() && SecondsSince(start) < seconds) submit();
    }
    if (!status_.ok()) return status_;
    cpu_s_ = (ThreadCpuSeconds() - cpu_start_s) / static_cast<double>(num_reads);
    return static_cast<double>(bytes) / std::max(1e-9, SecondsSince(start));
  }

  // Returns the seconds of this thread that a read took in the last call of Rate().
  double cpu_s() const { return cpu_s_; }

 private:
  DiskProbe(DiskReader& reader, std::span<const OpenedFile> files, Arena memory)
      : reader_(&reader), files_(files), memory_(std::move(memory)) {
    for (const OpenedFile& file : files) begins_.push_back(begins_.back() + file.size_bytes);
  }

  // Submits a read at some place of the files, and returns its bytes.
  uint64_t Submit(int64_t slot, uint64_t size_bytes) {
    const uint64_t place = std::uniform_int_distribution<uint64_t>(0, begins_.back() - 1)(random_);
    const auto file_idx = std::ranges::upper_bound(begins_, place) - begins_.begin() - 1;
    const uint64_t file_bytes = files_[file_idx].size_bytes, bytes = std::min(size_bytes, file_bytes);
    reader_->Submit({.file_idx = static_cast<int>(file_idx),
                     .extent = {std::min(place - begins_[file_idx], file_bytes - bytes), bytes},
                     .target = memory_.data() + static_cast<uint64_t>(slot) * DiskReader::PaddedBytes(size_bytes),
                     .tag = static_cast<uint64_t>(slot)});
    return bytes;
  }

  DiskReader* reader_;
  std::span<const OpenedFile> files_;
  Arena memory_;
  std::vector<uint64_t> begins_ = {0};  // [files + 1]: where each file begins if they lie one after the other
  std::mt19937_64 random_;
  double cpu_s_ = 0;
  absl::Status status_;
};

}  // namespace

void DiskProbeSpec::IncludeSize(uint64_t size_bytes) {
  const auto distance = [&](uint64_t size) {
    return std::abs(std::log(static_cast<double>(size) / static_cast<double>(size_bytes)));
  };
  const auto nearest = std::ranges::min_element(sizes, {}, distance);
  if (size_bytes > 0 && nearest + 1 != sizes.end()) *nearest = size_bytes;
}

absl::StatusOr<Link> ProbeDisk(DiskReader& reader, std::span<const OpenedFile> files, const DiskProbeSpec& spec) {
  const bool has_bytes = std::any_of(files.begin(), files.end(), [](const OpenedFile& f) { return f.size_bytes > 0; });
  if (!has_bytes) return InputError("the files have no bytes to measure the disk with");
  PENSTOCK_ASSIGN_OR_RETURN(DiskProbe probe, DiskProbe::Create(reader, files, spec));
  const double seconds = spec.seconds / static_cast<double>(kRounds * spec.sizes.size() * spec.depths.size());
  std::map<std::pair<uint64_t, int>, std::vector<double>> rates;
  std::vector<double> cpu_s;  // of reads that come one by one, as in runs with few slots
  // Each round reads all sizes, so that a disturbance does not fall on one size alone.
  for (int round = 0; round < kRounds; ++round) {
    for (const uint64_t size : spec.sizes) {
      for (const int depth : spec.depths) {
        PENSTOCK_ASSIGN_OR_RETURN(const double rate, probe.Rate(size, depth, seconds));
        rates[{size, depth}].push_back(rate);
        if (size == spec.sizes.front() && depth == spec.depths.front()) cpu_s.push_back(probe.cpu_s());
      }
    }
  }
  Link link{.name = "disk_to_dram"};
  for (auto& [key, of_key] : rates) {
    std::sort(of_key.begin(), of_key.end());
    link.rates.push_back({key.first, key.second, of_key[of_key.size() / 2]});
  }
  std::sort(cpu_s.begin(), cpu_s.end());
  link.cpu_s = cpu_s[cpu_s.size() / 2];
  PENSTOCK_ASSIGN_OR_RETURN(link.bytes_per_s, probe.Rate(spec.sizes.back(), spec.depths.back(), spec.long_seconds));
  return link;
}

}  // namespace penstock
