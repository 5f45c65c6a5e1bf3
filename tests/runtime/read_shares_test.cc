// Proves that parts are shared among disks so that the last one arrives nearly as early as possible, whatever the
// disks' bandwidths, also when a disk changes its speed, hangs, or has only some of the parts.
#include "penstock/runtime/read_shares.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <queue>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "penstock/base/bytes.h"

namespace penstock {
namespace {

// Disks of given bandwidths in virtual time. Each reads its parts one after the other.
class Disks {
 public:
  explicit Disks(std::vector<double> bytes_per_s)
      : bytes_per_s_(std::move(bytes_per_s)),
        free_at_s_(bytes_per_s_.size()),
        shares_(static_cast<int>(bytes_per_s_.size())) {}

  // Reads parts of 1 MiB that these sets of disks hold, at most 64 at once. Returns the seconds until all have arrived.
  double Read(const std::vector<DirectorySet>& holders) {
    const double start_s = now_s_;
    for (const DirectorySet set : holders) shares_.Announce(set, kMiB);
    size_t next = 0;
    while (next < holders.size() || !under_way_.empty()) {
      for (; next < holders.size() && under_way_.size() < 64; ++next) Begin(holders[next]);
      const auto [end_s, disk] = under_way_.top();
      under_way_.pop();
      now_s_ = end_s;
      shares_.End(disk, kMiB, /*arrived=*/true, now_s_);
    }
    return now_s_ - start_s;
  }
  double Read(int num_parts) {
    return Read(
        std::vector<DirectorySet>(static_cast<size_t>(num_parts), (DirectorySet{1} << bytes_per_s_.size()) - 1));
  }

  double sum() const { return std::accumulate(bytes_per_s_.begin(), bytes_per_s_.end(), 0.0); }
  double Ideal(int num_parts) const { return num_parts * static_cast<double>(kMiB) / sum(); }
  void SetRate(size_t disk, double bytes_per_s) { bytes_per_s_[disk] = bytes_per_s; }
  void Sleep(double seconds) { now_s_ += seconds; }
  ReadShares& shares() { return shares_; }
  double now_s() const { return now_s_; }

 private:
  void Begin(DirectorySet set) {
    const int disk = shares_.Begin(set, set, kMiB, now_s_);
    double& free_at_s = free_at_s_[static_cast<size_t>(disk)];
    free_at_s = std::max(free_at_s, now_s_) + static_cast<double>(kMiB) / bytes_per_s_[static_cast<size_t>(disk)];
    under_way_.emplace(free_at_s, disk);
  }

  using Arrival = std::pair<double, int>;  // when, from which disk
  std::vector<double> bytes_per_s_;
  std::vector<double> free_at_s_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> under_way_;
  double now_s_ = 0;
  ReadShares shares_;
};

TEST(ReadSharesTest, TheLastPartArrivesWithinATenthOfTheIdeal) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<double> rates(1 + random() % 4);
    for (double& rate : rates) rate = std::uniform_real_distribution<>(0.3e9, 2.4e9)(random);
    Disks disks(rates);
    disks.Read(200);  // learns the bandwidths
    for (int again = 0; again < 5; ++again) EXPECT_LE(disks.Read(200), 1.1 * disks.Ideal(200)) << rates.size();
    for (size_t i = 0; i < rates.size(); ++i) {
      EXPECT_NEAR(disks.shares().bytes_per_s(static_cast<int>(i)) / rates[i], 1, 0.05);
    }
  }
}

TEST(ReadSharesTest, OneExpertAloneIsSplit) {
  Disks disks({1e9, 1e9});
  disks.Read(100);
  EXPECT_LE(disks.Read(16), 1.01 * disks.Ideal(16));
  Disks unequal({3e9, 1e9});
  unequal.Read(100);
  EXPECT_LE(unequal.Read(16), 1.01 * unequal.Ideal(16));
}

TEST(ReadSharesTest, PartsThatLieOnOneDiskOnlyLeaveTheOthersToTheOtherDisk) {
  Disks disks({1e9, 1e9});
  disks.Read(100);
  std::vector<DirectorySet> holders;
  for (int i = 0; i < 40; ++i) holders.push_back(i < 20 ? 0b11 : 0b01);  // the first half lies on both
  for (int again = 0; again < 3; ++again) EXPECT_LE(disks.Read(holders), 1.1 * disks.Ideal(40));
}

TEST(ReadSharesTest, ADiskThatChangesItsSpeedGetsAnotherShare) {
  Disks disks({1e9, 1e9});
  disks.Read(200);
  disks.SetRate(1, 0.2e9);
  disks.Read(200);
  EXPECT_LE(disks.Read(200), 1.1 * disks.Ideal(200));
  disks.SetRate(1, 1e9);
  disks.Read(400);
  EXPECT_LE(disks.Read(200), 1.1 * disks.Ideal(200));
}

TEST(ReadSharesTest, ADiskThatHangsGetsNoMoreParts) {
  ReadShares shares(2);
  double now_s = 0;
  std::deque<int> under_way;
  int num_of_hanging = 0;
  for (int part = 0; part < 1000; ++part) {
    const int disk = shares.Begin(0b11, 0b11, kMiB, now_s);
    const bool hangs = disk == 1 && part >= 100;
    if (hangs) ++num_of_hanging;
    now_s += 1e-3;
    if (!hangs) shares.End(disk, kMiB, /*arrived=*/true, now_s);
  }
  EXPECT_GT(num_of_hanging, 0);
  EXPECT_LE(num_of_hanging, 8);
}

TEST(ReadSharesTest, AForgottenDiskIsTriedAgain) {
  Disks disks({1e9, 1e6});
  disks.Read(64);
  disks.SetRate(1, 1e9);
  const uint64_t before = disks.shares().bytes(1);
  disks.Read(16);
  EXPECT_EQ(disks.shares().bytes(1), before);  // still believed to be slow
  disks.Sleep(20);
  disks.Read(16);
  disks.Read(200);
  EXPECT_LE(disks.Read(200), 1.1 * disks.Ideal(200));
}

TEST(ReadSharesTest, AMirrorOfUnknownSpeedGetsFewPartsAtFirst) {
  Disks disks({1e9, 1e6});
  EXPECT_LE(disks.Read(64), 5.0);  // an even share would take 34 s
  EXPECT_GT(disks.shares().bytes(1), 0u);
}

TEST(ReadSharesTest, PartsThatFailCountNoBytes) {
  ReadShares shares(2);
  const int disk = shares.Begin(0b10, 0, kMiB, 0);
  EXPECT_EQ(disk, 1);
  shares.End(disk, kMiB, /*arrived=*/false, 1);
  EXPECT_EQ(shares.bytes(1), 0u);
  EXPECT_EQ(shares.bytes_per_s(1), 0);
}

}  // namespace
}  // namespace penstock
