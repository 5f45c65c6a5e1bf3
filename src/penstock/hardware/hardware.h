// A machine as planning sees it: processors with their peak rates, and memory tiers with their capacities and
// bandwidths. probe.h measures one.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/hardware/cpu_features.h"

namespace penstock {

// The type of the factors of products that are added up: in f32 (f32 and bf16) or in 32-bit integers (int8).
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

// One point of a measured roofline of memory and arithmetic together: how long a byte of weights from memory takes, by
// the number of operations done with it.
struct GemmPoint {
  double ops_per_byte = 0;
  double seconds_per_byte = 0;
};

// The rates of one format of weights and one kind of multiplication, all threads together.
struct GemmRates {
  int num_threads = 0;
  std::string weights = {};  // "int8"
  Arithmetic arithmetic = Arithmetic::kF32;
  std::vector<GemmPoint> points = {};  // by ops_per_byte, ascending; at least one
  double pack_s = 0;  // seconds of a thread for a byte of weights that are read as rows; 0: not measured

  // Returns the seconds for `ops` operations with weights of `bytes`. Interpolates between points; beyond the last
  // point its operations per second hold.
  double Seconds(double ops, double bytes) const;
};

// The rates of attention over KV entries in one format, all threads together.
struct AttentionRates {
  int num_threads = 0;
  std::string kv = {};     // "f32"
  double bytes_per_s = 0;  // of KV entries that decoding sequences read
  double ops_per_s = 0;    // multiplications and additions with the KV entries of prompts
  double call_s = 0;       // seconds of the shortest call, for one position: the least time of any task
};

// Seconds of work on some rows, all threads together.
struct RowPoint {
  double rows = 0;
  double embed_s = 0;      // embeddings, and the angles of RoPE
  double attention_s = 0;  // of a layer: norms, RoPE, KV entries, and the calls around them
  double routed_s = 0;     // of a layer: the router's choice, sorting rows by expert, adding up what experts return
};

// The rates of work beside products with weights and attention over KV entries.
struct RowRates {
  int num_threads = 0;
  static constexpr int64_t kDrawnRows = 16;  // logits are computed for so many rows at once
  double draw_s = 0;                  // for an entry of the logits of kDrawnRows rows from which tokens are drawn
  std::vector<RowPoint> points = {};  // by rows, ascending; at least one

  // Interpolate between points; beyond the last one its time for each row holds.
  double EmbedSeconds(double rows) const;
  double AttentionSeconds(double rows) const;
  double RoutedSeconds(double rows) const;
};

struct Processor {
  std::string name = {};   // "cpu", "gpu"
  std::string model = {};  // the maker's name for it; empty when unknown
  std::string tier = {};   // the memory that it computes from; empty: unknown
  int num_cpus = 0;        // CPUs that this process may use
  CpuFeatures features = {};
  std::vector<ComputePeak> peaks = {};  // one of each Arithmetic, or none where not measured
  std::vector<GemmRates> gemm = {};     // as measured
  std::vector<AttentionRates> attention = {};
  std::vector<RowRates> rows = {};
  // Used where nothing was probed: the shares of peak arithmetic and of memory bandwidth that large kernels reach, and
  // the fixed time of every kernel call.
  double compute_efficiency = 1;
  double memory_efficiency = 1;
  double call_s = 0;

  // Returns operations per second of the whole processor, or of `num_threads` threads (measured or scaled in
  // proportion). Returns the f32 rate where the processor has no instructions for `arithmetic`, and 0 when the rate is
  // unknown.
  double PeakOps(Arithmetic arithmetic, int num_threads = 0) const;
  // Returns null when it was not measured.
  const GemmRates* FindGemm(std::string_view weights, Arithmetic arithmetic, int num_threads) const;
  const AttentionRates* FindAttention(std::string_view kv, int num_threads) const;
  const RowRates* FindRows(int num_threads) const;
};

struct MemoryRates {
  int num_threads = 0;
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;  // 0: unknown, like copies
  double copy_bytes_per_s = 0;   // bytes copied; each is read once and written once
};

struct MemoryTier {
  std::string name = {};        // "dram"
  uint64_t capacity_bytes = 0;  // the machine's capacity, or its cgroup's limit where that is less
  std::vector<MemoryRates> rates = {};
  // Bytes per second that all threads together touch for the first time. A virtual machine's host may have to find
  // memory for them. 0: unknown, as if it took no time.
  double first_use_bytes_per_s = 0;

  // Returns the bytes per second that all threads, or `num_threads` threads, read: measured or scaled in proportion,
  // where a quarter of the threads reads at the full rate. Returns 0 when it is unknown.
  double ReadRate(int num_threads = 0) const;
};

// The rate of transfers of one size with a given number of them under way.
struct TransferRate {
  uint64_t transfer_bytes = 0;
  int num_under_way = 0;
  double bytes_per_s = 0;
};

inline constexpr double kAnyUnderWay = std::numeric_limits<double>::infinity();

struct Link {
  std::string name = {};   // "disk_to_dram", "dram_to_device", "device_to_dram", "between_ranks"
  double bytes_per_s = 0;  // of long transfers
  double latency_s = 0;    // added to every transfer
  double cpu_s = 0;        // seconds of a CPU that every transfer takes; 0: none, or unknown
  // As measured, by size and number under way, ascending. Empty: bytes_per_s for all sizes.
  std::vector<TransferRate> rates = {};

  // Returns the seconds of one among many transfers, with the best number of them under way that is at most
  // `max_under_way`. Interpolates between measured sizes and numbers; smaller transfers take as long as the smallest
  // measured one.
  double Seconds(uint64_t bytes, double max_under_way = kAnyUnderWay) const;
  // Sets the rate of long transfers and scales the rates of shorter ones in proportion.
  void SetRate(double new_bytes_per_s);
};

inline constexpr std::string_view kRankLink = "between_ranks";

struct Hardware {
  std::vector<Processor> processors = {};
  std::vector<MemoryTier> tiers = {};
  std::vector<Link> links = {};
  // Machines like this that share a model's experts. The link "between_ranks" joins any two of them. Files of probes do
  // not say it.
  int num_ranks = 1;

  // Returns null when there is none of this name.
  const Processor* FindProcessor(std::string_view name) const;
  Processor* FindProcessor(std::string_view name);
  const MemoryTier* FindTier(std::string_view name) const;
  MemoryTier* FindTier(std::string_view name);
  const Link* FindLink(std::string_view name) const;
  Link* FindLink(std::string_view name);
};

// Writes unknown values, and rates of unsupported operations, as null.
json::object ToJson(const Hardware& hardware);
// Returns kInput, naming the field, when `value` is not the JSON of a Hardware.
absl::StatusOr<Hardware> ParseHardware(const json::value& value);

// Returns the names of the features that the processor has: "avx2", "avx512", "avx512_vnni", ...
std::vector<std::string_view> FeatureNames(const CpuFeatures& features);

}  // namespace penstock
