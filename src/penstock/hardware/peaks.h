// Measures this machine: its memory bandwidths and its arithmetic rates, by number of threads.
//
// Each rate is the best of many short runs. Clock frequencies change and other processes disturb; a peak is the
// machine's ability, not its average. A benchmark that quotes a share of a peak measures that peak again, in
// alternation with its own runs, because the clock frequency may have changed.
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
  // Returns a size that `num_threads` threads cannot hold in their caches, or a quarter of the available memory where
  // that is less. Returns kResources when that quarter would measure only the caches.
  static absl::StatusOr<uint64_t> DefaultBytes(int num_threads, uint64_t max_bytes = 0);

  // Allocates `size_bytes`, rounded down to whole pieces of work (4 MiB), at least one piece. The threads of `pool`
  // touch the buffer first. Returns kResources when the machine has no room for it.
  static absl::StatusOr<MemoryProbe> Create(ThreadPool& pool, uint64_t size_bytes);

  // Returns the bytes per second at which the pool's threads together touched the slowest quarter of the buffer. Other
  // quarters may have been memory that another process had just freed.
  double first_use_bytes_per_s() const { return first_use_bytes_per_s_; }

  // Returns the bytes per second that all threads of the pool move together. The runs take about `seconds`; there is at
  // least one.
  double BytesPerSecond(Transfer transfer, ThreadPool& pool, double seconds);

 private:
  struct Unmap {
    uint64_t size_bytes;
    void operator()(std::byte* data) const;
  };
  MemoryProbe(std::byte* data, uint64_t size_bytes);

  std::span<std::byte> TaskBytes(int64_t task_idx) const;

  std::unique_ptr<std::byte, Unmap> data_;
  int64_t num_tasks_;  // an even number
  double first_use_bytes_per_s_ = 0;
  int64_t next_task_ = 0;  // runs go round the buffer, so that each one uses the least recently used part
};

// Returns the bytes per second at which all threads of the pool together read `bytes`, whatever their content. This is
// the caches' speed when the bytes fit there. REQUIRES: at least 4 MiB.
double ReadBytesPerSecond(std::span<const std::byte> bytes, ThreadPool& pool, double seconds);

// Returns the multiplications and additions per second of all threads of the pool together, with operands in registers.
// Returns nothing when this processor has no instructions for it. The runs take about `seconds`; there is at least one.
std::optional<double> OpsPerSecond(Arithmetic arithmetic, ThreadPool& pool, double seconds);

struct ProbeOptions {
  int max_threads = 0;        // 1, 2, 4, ... up to this; 0: all usable CPUs
  double total_seconds = 10;  // approximate; never more than half a second for each rate
  uint64_t buffer_bytes = 0;  // 0: MemoryProbe::DefaultBytes
  // The memory that may be used; 0: all that is available. The buffer is at most a quarter of it.
  uint64_t max_bytes = 0;
};

// Returns the maker's name of the CPU; empty when unknown.
std::string CpuModel();

// Measures everything above and logs its progress.
absl::StatusOr<Hardware> ProbeMachine(const ProbeOptions& options = {});

}  // namespace penstock
