#include "penstock/runtime/read_shares.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"

namespace penstock {
namespace {

// Bytes after which a directory's earlier bandwidth counts for a third.
constexpr double kMemoryBytes = 32.0 * kMiB;
// A directory that got no part for so long while others were read is tried again.
constexpr double kForgetSeconds = 10;
// A mirror whose bandwidth is unknown gets so many parts at once, until one of them arrives. So does the model, if it
// is known how fast a mirror is.
constexpr int kTrialParts = 4;
constexpr double kLastChoiceSeconds = 1e18;  // longer than any other way

bool IsOne(DirectorySet set) { return std::popcount(set) == 1; }

}  // namespace

void ReadShares::Announce(DirectorySet holders, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (IsOne(holders)) directories_[static_cast<size_t>(std::countr_zero(holders))].backlog_bytes += bytes;
}

double ReadShares::RateNow(const Directory& directory, double now_s) const {
  if (directory.sum_bytes <= 0) return 0;
  // While a part takes long, the rate falls, so that a disk that hangs gets no more parts.
  const double waiting_s = directory.num_under_way > 0 ? now_s - directory.counted_to_s : 0;
  return directory.sum_bytes / (directory.sum_s + std::max(0.0, waiting_s));
}

int ReadShares::Begin(DirectorySet holders, DirectorySet announced, uint64_t bytes, double now_s) {
  PENSTOCK_CHECK(holders != 0);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (IsOne(announced)) directories_[static_cast<size_t>(std::countr_zero(announced))].backlog_bytes -= bytes;
  std::array<double, kMaxDirectories> rates = {};
  double best_rate = 0;
  for (size_t i = 0; i < directories_.size(); ++i) {
    Directory& directory = directories_[i];
    const bool is_forgotten = directory.num_under_way == 0 && last_end_s_ - directory.counted_to_s > kForgetSeconds;
    if (is_forgotten) directory.sum_bytes = directory.sum_s = 0;
    rates[i] = RateNow(directory, now_s);
    best_rate = std::max(best_rate, rates[i]);
  }
  int chosen = -1;
  double chosen_s = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < directories_.size(); ++i) {
    if ((holders >> i & 1) == 0) continue;
    // A directory that is not known yet counts as faster than all others, so that it is tried.
    const double rate = rates[i] > 0 ? rates[i] : std::max(2 * best_rate, 1.0);
    double seconds = static_cast<double>(directories_[i].backlog_bytes + bytes) / rate;
    const bool is_on_trial = rates[i] <= 0 && (i > 0 || best_rate > 0) && directories_[i].num_under_way >= kTrialParts;
    if (is_on_trial) seconds += kLastChoiceSeconds;
    if (seconds >= chosen_s) continue;
    chosen = static_cast<int>(i);
    chosen_s = seconds;
  }
  PENSTOCK_CHECK(chosen >= 0);
  Directory& directory = directories_[static_cast<size_t>(chosen)];
  if (directory.num_under_way++ == 0) directory.counted_to_s = now_s;
  directory.backlog_bytes += bytes;
  return chosen;
}

void ReadShares::End(int directory_idx, uint64_t bytes, bool arrived, double now_s) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Directory& directory = directories_[static_cast<size_t>(directory_idx)];
  PENSTOCK_CHECK(directory.num_under_way > 0 && directory.backlog_bytes >= bytes);
  --directory.num_under_way;
  directory.backlog_bytes -= bytes;
  const double arrived_bytes = arrived ? static_cast<double>(bytes) : 0;
  const double kept = std::exp(-arrived_bytes / kMemoryBytes);
  directory.sum_bytes = directory.sum_bytes * kept + arrived_bytes;
  directory.sum_s = directory.sum_s * kept + std::max(0.0, now_s - directory.counted_to_s);
  directory.counted_to_s = now_s;
  directory.total_bytes += arrived ? bytes : 0;
  last_end_s_ = std::max(last_end_s_, now_s);
}

uint64_t ReadShares::bytes(int directory) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return directories_[static_cast<size_t>(directory)].total_bytes;
}

double ReadShares::bytes_per_s(int directory) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Directory& one = directories_[static_cast<size_t>(directory)];
  return one.sum_s > 0 ? one.sum_bytes / one.sum_s : 0;
}

}  // namespace penstock
