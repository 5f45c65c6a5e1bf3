// A disk that fails some reads and returns wrong bits for others.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/runtime/disk_reader.h"

namespace penstock {

struct Faults {
  double failed_reads = 0;   // share of reads
  double flipped_reads = 0;  // share of reads that bring one wrong bit
  unsigned seed = 0;
};

class FaultyDisk : public DiskReader {
 public:
  FaultyDisk(std::unique_ptr<DiskReader> disk, const Faults& faults)
      : disk_(std::move(disk)), faults_(faults), random_(faults.seed) {}

  void Submit(const DiskRead& read) override {
    reads_[read.tag] = read;
    disk_->Submit(read);
  }
  std::optional<DiskCompletion> NextCompleted() override {
    std::optional<DiskCompletion> completion = disk_->NextCompleted();
    if (!completion.has_value() || !completion->status.ok()) return completion;
    const double draw = std::uniform_real_distribution<>(0, 1)(random_);
    if (draw < faults_.failed_reads) {
      completion->status = IoError("injected: cannot read");
    } else if (draw < faults_.failed_reads + faults_.flipped_reads) {
      const DiskRead& read = reads_[completion->tag];
      Landing(read)[random_() % read.extent.size_bytes] ^= static_cast<std::byte>(1u << (random_() % 8));
    }
    return completion;
  }
  void Wake() override { disk_->Wake(); }
  std::string Description() const override { return "faulty " + disk_->Description(); }

 private:
  std::unique_ptr<DiskReader> disk_;
  Faults faults_;
  std::mt19937 random_;
  std::map<uint64_t, DiskRead> reads_;  // the last read of each tag
};

}  // namespace penstock
