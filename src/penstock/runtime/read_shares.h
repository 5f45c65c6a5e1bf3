// Chooses from which copy each part of a read comes, so that all parts arrive soonest.
//
// Each copy lies in a directory on a disk of its own. A part goes to the directory that would finish it first: its
// backlog divided by its bandwidth. Bandwidths are learnt from the parts that arrive, so unequal disks share the reads
// in proportion. Any thread may call any method.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace penstock {

// A set of directories: bit i stands for directory i.
using DirectorySet = uint32_t;
inline constexpr int kMaxDirectories = 32;

class ReadShares {
 public:
  explicit ReadShares(int num_directories) : directories_(static_cast<size_t>(num_directories)) {}

  // Says that bytes will be read from one of `holders`. If there is only one, the bytes count as its backlog.
  void Announce(DirectorySet holders, uint64_t bytes);
  // Begins to read a part. Returns the directory to read it from. REQUIRES: `holders` is not empty; `announced` is the
  // set that the part was announced with, or empty if it began before.
  int Begin(DirectorySet holders, DirectorySet announced, uint64_t bytes, double now_s);
  // Ends a part that began. A part that failed has not `arrived`.
  void End(int directory, uint64_t bytes, bool arrived, double now_s);

  // Returns all bytes that arrived from a directory.
  uint64_t bytes(int directory) const;
  // Returns the bandwidth of a directory while it was read; 0 if it was not yet.
  double bytes_per_s(int directory) const;

 private:
  struct Directory {
    uint64_t total_bytes = 0;    // arrived
    uint64_t backlog_bytes = 0;  // being read, or announced for it alone
    int num_under_way = 0;
    double counted_to_s = 0;          // the time up to which busy time has been counted
    double sum_bytes = 0, sum_s = 0;  // recent bytes and the busy time that they took
  };
  // Returns the bandwidth that the directory seems to have now; 0: unknown.
  double RateNow(const Directory& directory, double now_s) const;

  mutable std::mutex mutex_;
  std::vector<Directory> directories_;  // guarded by mutex_, like the next field
  double last_end_s_ = 0;               // of all directories
};

}  // namespace penstock
