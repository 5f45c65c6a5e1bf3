// Measures this machine: what its memory moves and what its processor computes, by number of threads.
//
// Each rate is the best of many short runs: clocks move and neighbours disturb, and what the machine can do is asked
// here, not what it did. A benchmark that quotes a share of a rate asks for the rate again, in turn with what it
// measures, because the clock of a minute ago may not be the clock of now.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "penstock/base/thread_pool.h"
#include "penstock/hardware/hardware.h"

namespace penstock {

enum class Transfer : int { kRead, kWrite, kCopy };

// Owns the buffer that transfers go through.
class MemoryProbe {
 public:
  // So much that `num_threads` threads find nothing of it in their caches, or a quarter of the memory that is available
  // where that is less. kResources when a quarter tells nothing but the caches' speed.
  static absl::StatusOr<uint64_t> DefaultBytes(int num_threads);

  // A buffer of `size_bytes`, rounded down to whole pieces of work (4 MiB) and at least one; the threads of `pool`
  // touch it first. kResources when the machine has no room for it.
  static absl::StatusOr<MemoryProbe> Create(ThreadPool& pool, uint64_t size_bytes);

  // Bytes per second that all threads of the pool move together; the runs take about `seconds` (there is one at least).
  double BytesPerSecond(Transfer transfer, ThreadPool& pool, double seconds);

 private:
  struct Unmap {
    uint64_t size_bytes;
    void operator()(std::byte* data) const;
  };
  MemoryProbe(std::byte* data, uint64_t size_bytes);

  std::span<std::byte> TaskBytes(int64_t task_idx) const;

  std::unique_ptr<std::byte, Unmap> data_;
  int64_t num_tasks_;      // an even number
  int64_t next_task_ = 0;  // runs go round the buffer, so that each finds what was used longest ago
};

// Bytes per second that all threads of the pool together read of `bytes`, whatever they hold; of the caches' speed when
// they fit there. REQUIRES: at least 4 MiB.
double ReadBytesPerSecond(std::span<const std::byte> bytes, ThreadPool& pool, double seconds);

// Multiplications and additions per second of all threads of the pool together, operands in registers; nothing when
// this processor has no instructions for it. The runs take about `seconds` (there is one at least).
std::optional<double> OpsPerSecond(Arithmetic arithmetic, ThreadPool& pool, double seconds);

struct ProbeOptions {
  int max_threads = 0;        // 1, 2, 4, ... up to this; 0: all usable CPUs
  double total_seconds = 10;  // about, but never more than half a second for each rate
  uint64_t buffer_bytes = 0;  // 0: MemoryProbe::DefaultBytes
};

// As its maker calls it; empty when unknown.
std::string CpuModel();

// Measures all this; logs its progress.
absl::StatusOr<Hardware> ProbeMachine(const ProbeOptions& options = {});

}  // namespace penstock
