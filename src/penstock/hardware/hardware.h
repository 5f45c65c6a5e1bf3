// A machine as planning sees it: processors with what they compute at most, and tiers with what they hold and how fast
// they move it. probe.h measures one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/hardware/cpu_features.h"

namespace penstock {

// Products of two such values, added up: in f32 (f32 and bf16) or in 32-bit integers (int8).
enum class Arithmetic : int { kF32, kBf16, kInt8 };
inline constexpr Arithmetic kAllArithmetics[] = {Arithmetic::kF32, Arithmetic::kBf16, Arithmetic::kInt8};

std::string_view ArithmeticName(Arithmetic arithmetic);  // "f32", "bf16", "int8"

struct ComputeRate {
  int num_threads = 0;
  double ops_per_s = 0;  // multiplications and additions
};

struct ComputePeak {
  Arithmetic arithmetic = Arithmetic::kF32;
  std::string instructions = {};        // "vfmadd231ps zmm"; empty when the processor has none for this
  std::vector<ComputeRate> rates = {};  // by number of threads, ascending; empty when there are no instructions
};

// How long a processor takes for a byte of weights that comes from its memory, by the operations that are done with it:
// a roofline as measured, memory and arithmetic together.
struct GemmPoint {
  double ops_per_byte = 0;
  double seconds_per_byte = 0;
};

// Of one way in which weights lie in memory and are multiplied, all threads together.
struct GemmRates {
  int num_threads = 0;
  std::string weights = {};  // "int8"
  Arithmetic arithmetic = Arithmetic::kF32;
  std::vector<GemmPoint> points = {};  // by ops_per_byte, ascending; at least one

  // Seconds for `ops` operations with weights of `bytes`; between points by interpolation, beyond the last one by its
  // operations per second.
  double Seconds(double ops, double bytes) const;
};

// Of attention over KV entries in one format, all threads together.
struct AttentionRates {
  int num_threads = 0;
  std::string kv = {};     // "f32"
  double bytes_per_s = 0;  // of KV entries that sequences read which decode
  double ops_per_s = 0;    // multiplications and additions with them, of prompts
};

struct Processor {
  std::string name = {};   // "cpu", "gpu"
  std::string model = {};  // as its maker calls it; empty when unknown
  std::string tier = {};   // the memory that it computes from; empty: unknown
  int num_cpus = 0;        // that this process may use
  CpuFeatures features = {};
  std::vector<ComputePeak> peaks = {};  // one of each Arithmetic, or none where nobody asked
  std::vector<GemmRates> gemm = {};     // as measured
  std::vector<AttentionRates> attention = {};
  // Where nobody probed: the shares of its peaks and of its memory's bandwidth that large kernels reach, and what every
  // kernel call takes besides.
  double compute_efficiency = 1;
  double memory_efficiency = 1;
  double call_s = 0;

  // Operations per second of the whole processor, or of `num_threads` threads: as measured, or in proportion; those in
  // f32 where it has no instructions for `arithmetic`; 0 when nobody knows.
  double PeakOps(Arithmetic arithmetic, int num_threads = 0) const;
  // Null when nobody measured it.
  const GemmRates* FindGemm(std::string_view weights, Arithmetic arithmetic, int num_threads) const;
  const AttentionRates* FindAttention(std::string_view kv, int num_threads) const;
};

struct MemoryRates {
  int num_threads = 0;
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;  // 0: unknown, like copies
  double copy_bytes_per_s = 0;   // of bytes copied, each of which is read once and written once
};

struct MemoryTier {
  std::string name = {};        // "dram"
  uint64_t capacity_bytes = 0;  // the machine's, or its cgroup's where that is less
  std::vector<MemoryRates> rates = {};

  // Bytes per second that are read by all threads, or by `num_threads`: as measured, or in proportion, where a quarter
  // of them reads all; 0 when nobody knows.
  double ReadRate(int num_threads = 0) const;
};

// What transfers of one size reach, so many of them under way.
struct TransferRate {
  uint64_t transfer_bytes = 0;
  int num_under_way = 0;
  double bytes_per_s = 0;
};

struct Link {
  std::string name = {};                 // "disk_to_dram", "dram_to_device", "device_to_dram"
  double bytes_per_s = 0;                // of long transfers
  double latency_s = 0;                  // that every transfer takes besides
  std::vector<TransferRate> rates = {};  // as measured, by size, ascending; empty: bytes_per_s for all

  // Of one of many transfers, as many under way as is best. Between sizes by interpolation; shorter ones than were
  // measured take what those do.
  double Seconds(uint64_t bytes) const;
  // Of long transfers; shorter ones in proportion.
  void SetRate(double new_bytes_per_s);
};

struct Hardware {
  std::vector<Processor> processors = {};
  std::vector<MemoryTier> tiers = {};
  std::vector<Link> links = {};

  // Null when there is none of this name.
  const Processor* FindProcessor(std::string_view name) const;
  Processor* FindProcessor(std::string_view name);
  const MemoryTier* FindTier(std::string_view name) const;
  MemoryTier* FindTier(std::string_view name);
  const Link* FindLink(std::string_view name) const;
  Link* FindLink(std::string_view name);
};

// What is unknown, or what a processor cannot do, is null.
json::object ToJson(const Hardware& hardware);
// kInput, naming the field, for what is not the JSON of a Hardware.
absl::StatusOr<Hardware> ParseHardware(const json::value& value);

// Names of the features that the processor has: "avx2", "avx512", "avx512_vnni", ...
std::vector<std::string_view> FeatureNames(const CpuFeatures& features);

}  // namespace penstock
