#include "penstock/hardware/peaks.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/clock.h"
#include "penstock/base/file.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/hardware/machine_memory.h"
#include "penstock/hardware/supported_loops.h"
#include "penstock/hardware/write_loops.h"

namespace penstock {
namespace {

constexpr uint64_t kTaskBytes = 2 * kMiB;  // a huge page
constexpr uint64_t kBufferStepBytes = 2 * kTaskBytes;
constexpr uint64_t kMinDefaultBytes = 64 * kMiB;
constexpr int64_t kRunTasksPerThread = 32;  // 64 MiB: a few milliseconds
constexpr double kPeakTaskSeconds = 100e-6;
constexpr int64_t kPeakTasksPerThread = 20;
constexpr int kRatesPerThreadCount = 6;
constexpr double kMaxRateSeconds = 0.5;

// Returns the highest rate over several calls of `run`, each of which does `amount` of work.
double BestRate(double amount, double seconds, absl::FunctionRef<void()> run) {
  double best = 0;
  const auto start = Clock::now();
  do {
    const auto run_start = Clock::now();
    run();
    best = std::max(best, amount / std::max(1e-9, SecondsSince(run_start)));
  } while (SecondsSince(start) < seconds);
  return best;
}

std::vector<int> ThreadCounts(int max_threads) {
  std::vector<int> counts;
  for (int num_threads = 1; num_threads < max_threads; num_threads *= 2) counts.push_back(num_threads);
  counts.push_back(max_threads);
  return counts;
}

}  // namespace

std::string CpuModel() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

absl::StatusOr<uint64_t> MemoryProbe::DefaultBytes(int num_threads, uint64_t max_bytes) {
  const uint64_t free_bytes = ReadMachineMemory().available_bytes;
  const uint64_t available_bytes = max_bytes > 0 ? std::min(max_bytes, free_bytes) : free_bytes;
  if (available_bytes / 4 < kMinDefaultBytes) {
    const bool is_limited = available_bytes < free_bytes;
    return ResourceError("measuring this machine needs {} and uses a quarter of it; found {} {}",
                         FormatBytes(4 * kMinDefaultBytes), FormatBytes(available_bytes),
                         is_limited ? "in --memory: run penstock probe once without it, with the same --model; its "
                                      "result is kept"
                                    : "available; free some");
  }
  return std::min(std::max(kGiB, 32 * kMiB * static_cast<uint64_t>(num_threads)), available_bytes / 4);
}

absl::StatusOr<MemoryProbe> MemoryProbe::Create(ThreadPool& pool, uint64_t size_bytes) {
  const uint64_t size = std::max<uint64_t>(1, size_bytes / kBufferStepBytes) * kBufferStepBytes;
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return ResourceError("cannot map {} to measure memory with: {}; is there a limit on address space (ulimit -v)?",
                         FormatBytes(size), ErrnoText(errno));
  }
  ::madvise(data, size, MADV_HUGEPAGE);  // a hint; refused in some containers
  MemoryProbe probe(static_cast<std::byte*>(data), size);
  constexpr int64_t kParts = 4;
  for (int64_t part = 0; part < kParts; ++part) {
    const int64_t begin = probe.num_tasks_ * part / kParts, end = probe.num_tasks_ * (part + 1) / kParts;
    if (begin == end) continue;
    const auto start = Clock::now();
    pool.ParallelFor(end - begin, [&](int64_t i, int) { FillMemory(probe.TaskBytes(begin + i), 1); });
    const double rate = static_cast<double>(end - begin) * kTaskBytes / std::max(1e-9, SecondsSince(start));
    if (probe.first_use_bytes_per_s_ == 0 || rate < probe.first_use_bytes_per_s_) probe.first_use_bytes_per_s_ = rate;
  }
  return probe;
}

MemoryProbe::MemoryProbe(std::byte* data, uint64_t size_bytes)
    : data_(data, Unmap{size_bytes}), num_tasks_(static_cast<int64_t>(size_bytes / kTaskBytes)) {}

void MemoryProbe::Unmap::operator()(std::byte* data) const { ::munmap(data, size_bytes); }

std::span<std::byte> MemoryProbe::TaskBytes(int64_t task_idx) const {
  return {data_.get() + static_cast<uint64_t>(task_idx) * kTaskBytes, kTaskBytes};
}

double MemoryProbe::BytesPerSecond(Transfer transfer, ThreadPool& pool, double seconds) {
  // A copy reads one half and writes the other.
  const int64_t num_targets = transfer == Transfer::kCopy ? num_tasks_ / 2 : num_tasks_;
  const int64_t num_run_tasks = std::min(num_targets, kRunTasksPerThread * pool.num_workers());
  const std::vector<ReadLoop> read_loops = SupportedReadLoops();
  ReadLoop read = read_loops.back();
  const auto move = [&](int64_t task_idx, int) {
    const int64_t target_idx = (next_task_ + task_idx) % num_targets;
    switch (transfer) {
      case Transfer::kRead:
        // All words are 1: the sum proves that everything was read, and the compiler cannot drop the reads.
        PENSTOCK_CHECK(read(TaskBytes(target_idx).data(), kTaskBytes) == kTaskBytes / sizeof(uint64_t));
        break;
      case Transfer::kWrite: FillMemory(TaskBytes(target_idx), 1); break;
      case Transfer::kCopy: CopyMemory(TaskBytes(num_targets + target_idx), TaskBytes(target_idx)); break;
    }
  };
  const auto rate = [&](double rate_seconds) {
    return BestRate(static_cast<double>(num_run_tasks) * kTaskBytes, rate_seconds, [&] {
      pool.ParallelFor(num_run_tasks, move);
      next_task_ = (next_task_ + num_run_tasks) % num_targets;
    });
  };
  if (transfer != Transfer::kRead) return rate(seconds);
  const double one_rate = rate(seconds / 2);
  read = read_loops[read_loops.size() - 2];
  return std::max(one_rate, rate(seconds / 2));
}

double ReadBytesPerSecond(std::span<const std::byte> bytes, ThreadPool& pool, double seconds) {
  const auto num_pieces = static_cast<int64_t>(bytes.size() / kTaskBytes);
  PENSTOCK_CHECK(num_pieces >= 2);
  const int64_t num_tasks = std::min(num_pieces, kRunTasksPerThread * pool.num_workers());
  const std::vector<ReadLoop> read_loops = SupportedReadLoops();
  std::atomic<uint64_t> sums{0};  // keeps the compiler from dropping the reads
  int64_t next = 0;
  double best = 0;
  for (const size_t which : {read_loops.size() - 1, read_loops.size() - 2}) {
    const double rate = BestRate(static_cast<double>(num_tasks) * kTaskBytes, seconds / 2, [&] {
      pool.ParallelFor(num_tasks, [&](int64_t task_idx, int) {
        const int64_t piece = (next + task_idx) % num_pieces;
        sums += read_loops[which](bytes.data() + static_cast<uint64_t>(piece) * kTaskBytes, kTaskBytes);
      });
      next = (next + num_tasks) % num_pieces;
    });
    best = std::max(best, rate);
  }
  return best;
}

std::optional<double> OpsPerSecond(Arithmetic arithmetic, ThreadPool& pool, double seconds) {
  const std::vector<const PeakLoop*> loops = SupportedPeakLoops(arithmetic);
  if (loops.empty()) return std::nullopt;
  const PeakLoop* loop = loops.back();
  // Takes the shortest of several times, because an interrupted task would look long enough.
  int64_t num_steps = 64;  // steps of one task
  while (1 / BestRate(1, kPeakTaskSeconds * 4, [&] { loop->run(num_steps); }) < kPeakTaskSeconds) num_steps *= 2;
  const int64_t num_tasks = kPeakTasksPerThread * pool.num_workers();
  return BestRate(static_cast<double>(num_tasks * num_steps * loop->ops_per_step), seconds,
                  [&] { pool.ParallelFor(num_tasks, [&](int64_t, int) { loop->run(num_steps); }); });
}

absl::StatusOr<Hardware> ProbeMachine(const ProbeOptions& options) {
  const int max_threads = options.max_threads > 0 ? options.max_threads : NumUsableCpus();
  const std::vector<int> counts = ThreadCounts(max_threads);
  const double num_rates = static_cast<double>(kRatesPerThreadCount * counts.size());
  const double seconds = std::min(kMaxRateSeconds, options.total_seconds / num_rates);
  Processor cpu = {.name = "cpu",
                   .model = CpuModel(),
                   .tier = "dram",
                   .num_cpus = NumUsableCpus(),
                   .features = MachineCpuFeatures()};
  for (const Arithmetic arithmetic : kAllArithmetics) {
    const std::vector<const PeakLoop*> loops = SupportedPeakLoops(arithmetic);
    cpu.peaks.push_back({.arithmetic = arithmetic, .instructions = loops.empty() ? "" : loops.back()->instructions});
  }
  MemoryTier dram = {.name = "dram", .capacity_bytes = ReadMachineMemory().total_bytes};
  uint64_t buffer_bytes = options.buffer_bytes;
  if (buffer_bytes == 0) {
    PENSTOCK_ASSIGN_OR_RETURN(buffer_bytes, MemoryProbe::DefaultBytes(max_threads, options.max_bytes));
  }
  LogInfo("touching {} of memory", FormatBytes(buffer_bytes));
  std::optional<MemoryProbe> memory;
  {
    ThreadPool pool(max_threads);
    PENSTOCK_ASSIGN_OR_RETURN(memory, MemoryProbe::Create(pool, buffer_bytes));
    dram.first_use_bytes_per_s = memory->first_use_bytes_per_s();
  }
  for (const int num_threads : counts) {
    ThreadPool pool(num_threads);
    LogInfo("measuring with {} of {} threads", pool.num_workers(), max_threads);
    dram.rates.push_back({.num_threads = pool.num_workers(),
                          .read_bytes_per_s = memory->BytesPerSecond(Transfer::kRead, pool, seconds),
                          .write_bytes_per_s = memory->BytesPerSecond(Transfer::kWrite, pool, seconds),
                          .copy_bytes_per_s = memory->BytesPerSecond(Transfer::kCopy, pool, seconds)});
    for (ComputePeak& peak : cpu.peaks) {
      const std::optional<double> rate = OpsPerSecond(peak.arithmetic, pool, seconds);
      if (rate.has_value()) peak.rates.push_back({.num_threads = pool.num_workers(), .ops_per_s = *rate});
    }
    if (pool.num_workers() < num_threads) break;  // the system refuses more threads
  }
  return Hardware{.processors = {std::move(cpu)}, .tiers = {std::move(dram)}};
}

}  // namespace penstock
