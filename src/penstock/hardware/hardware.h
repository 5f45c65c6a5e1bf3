// A machine as planning sees it: processors with what they compute at most, and tiers with what they hold and how fast
// they move it. probe.h measures one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

struct Processor {
  std::string name = {};   // "cpu"
  std::string model = {};  // as its maker calls it; empty when unknown
  int num_cpus = 0;        // that this process may use
  CpuFeatures features = {};
  std::vector<ComputePeak> peaks = {};  // one of each Arithmetic
};

struct MemoryRates {
  int num_threads = 0;
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
  double copy_bytes_per_s = 0;  // of bytes copied, each of which is read once and written once
};

struct MemoryTier {
  std::string name = {};        // "dram"
  uint64_t capacity_bytes = 0;  // the machine's, or its cgroup's where that is less
  std::vector<MemoryRates> rates = {};
};

struct Hardware {
  std::vector<Processor> processors = {};
  std::vector<MemoryTier> tiers = {};
};

// What is unknown, or what a processor cannot do, is null.
json::object ToJson(const Hardware& hardware);

// Names of the features that the processor has: "avx2", "avx512", "avx512_vnni", ...
std::vector<std::string_view> FeatureNames(const CpuFeatures& features);

}  // namespace penstock
