#include "penstock/simulate/hardware_rates.h"

#include <algorithm>
#include <cmath>

#include "penstock/base/status.h"
#include "penstock/memory/expert_layouts.h"

namespace penstock {
namespace {

// A read that waits for a slot begins this much later than the slot is free, and its expert is seen this much later
// than it arrives: threads have to wake. So late other threads join in finishing it. Measured in virtual machines of
// two CPUs.
constexpr double kWakeSeconds = 150e-6;

// Packing that was not measured takes as long as reading the weights so many times more: one thread gathers and
// transposes them (4.6 GB/s, where two threads read 30).
constexpr double kPackingReads = 5;

// A thread decompresses so many bytes of weights per second, its checksums included (measured on one core of a Zen 4
// with AVX-512). The matrices of an expert are decompressed side by side.
constexpr double kDecodedBytesPerSecond = 6e9;

// Returns how long threads need for equal parts of work that takes one thread `seconds`. A part has one thread. All
// threads but the first come `late_s` later.
double SharedSeconds(double seconds, int64_t num_parts, int num_threads, double late_s = 0) {
  if (num_parts <= 1 || num_threads <= 1 || seconds <= 0) return seconds;
  const double part_s = seconds / static_cast<double>(num_parts);
  const double num_alone = std::floor(late_s / part_s);
  const auto num_left = static_cast<int64_t>(static_cast<double>(num_parts) - num_alone);
  if (num_left <= 1) return seconds;
  const int64_t num_rounds = (num_left - 1) / num_threads + 1;
  // The first thread is within a part when the others come, so they end the last round later.
  const bool is_lone_round = num_left % num_threads == 1;
  return static_cast<double>(num_rounds) * part_s + (is_lone_round ? num_alone * part_s : late_s);
}

double DecodingSeconds(const TaskCost& cost, int num_threads) {
  const double seconds = static_cast<double>(cost.decoded_bytes) / kDecodedBytesPerSecond;
  return SharedSeconds(seconds, cost.ready_experts * ExpertLayouts::kFinishParts, num_threads, kWakeSeconds);
}

// A thread packs a whole expert. The pool's other threads sleep while the disk is waited for.
double PackingSeconds(const TaskCost& cost, const GemmRates& gemm, int num_threads) {
  const auto bytes = static_cast<double>(cost.packed_bytes);
  const double seconds = gemm.pack_s > 0 ? gemm.pack_s * bytes : kPackingReads * gemm.Seconds(0, bytes);
  return SharedSeconds(seconds, cost.ready_experts, num_threads, kWakeSeconds);
}

// The rates of the matrices in one format, and their share of all.
struct SharedRates {
  GemmRates gemm;
  FormatShare share = {.weights = 1, .bytes = 1};
};

// Returns those of FFNs, which stand for all matrices. Empty when the rates of their main format were not measured; it
// stands for formats without rates.
std::vector<SharedRates> MeasuredRates(const Processor& processor, const ModelFormats& formats, Arithmetic arithmetic,
                                       int num_threads) {
  const auto find = [&](WeightFormat format) {
    return processor.FindGemm(TraitsOf(format).name, arithmetic, num_threads);
  };
  const GemmRates* const most = find(formats.ffn);
  if (most == nullptr) return {};
  if (formats.ffn_shares.empty()) return {SharedRates{.gemm = *most}};
  std::vector<SharedRates> rates;
  for (const FormatShare& share : formats.ffn_shares) {
    const GemmRates* const own = find(share.format);
    rates.push_back({own == nullptr ? *most : *own, share});
  }
  return rates;
}

// A thread draws a token from so many entries of logits per second (measured with temperature and top_p).
constexpr double kDrawnPerSecond = 1e9;

RowRates UnmeasuredRows(int num_threads) {
  return {.num_threads = num_threads,
          .draw_s = SharedSeconds(1 / kDrawnPerSecond, RowRates::kDrawnRows, num_threads),
          .points = {{.rows = 1}}};
}

// On the host, issuing a task and looking at its result takes so long, and as much as so many calls. Beside each pass
// time passes: batches are built, and tokens are given to their requests. Measured with a model whose steps take a
// third of a millisecond, on CPUs that were near to each other and far apart.
constexpr double kTaskSeconds = 1.2e-6;
constexpr double kTaskCalls = 2;
constexpr double kPassSeconds = 20e-6;

double CallSeconds(const TaskCost& cost, const AttentionRates& attention, bool is_host) {
  if (!is_host) return attention.call_s;
  return kTaskCalls * attention.call_s + kTaskSeconds + (cost.begins_pass ? kPassSeconds : 0);
}

// A thread draws from a whole row.
double DrawSeconds(const TaskCost& cost, const RowRates& rows) {
  const double of_thread_s = rows.draw_s / SharedSeconds(1, RowRates::kDrawnRows, rows.num_threads);
  return SharedSeconds(of_thread_s * cost.drawn_entries, cost.drawn_rows, rows.num_threads);
}

double RowSeconds(const TaskCost& cost, const RowRates& rows) {
  return rows.EmbedSeconds(cost.embedded_rows) + rows.AttentionSeconds(cost.attention_rows) +
         rows.RoutedSeconds(cost.routed_rows) + DrawSeconds(cost, rows);
}

SimulatedRuntime::Duration MeasuredTime(const std::vector<SharedRates>& rates, const AttentionRates& attention,
                                        const RowRates& rows, bool is_host) {
  return [rates, attention, rows, is_host](const TaskCost& cost) {
    double seconds =
        CallSeconds(cost, attention, is_host) + DecodingSeconds(cost, rows.num_threads) + RowSeconds(cost, rows) +
        std::max(static_cast<double>(cost.kv_bytes) / attention.bytes_per_s, cost.kv_flops / attention.ops_per_s) +
        PackingSeconds(cost, rates[0].gemm, rows.num_threads);
    for (const SharedRates& part : rates) {
      seconds += part.gemm.Seconds(part.share.weights * (cost.flops - cost.kv_flops),
                                   part.share.bytes * static_cast<double>(cost.memory_bytes - cost.kv_bytes));
    }
    return seconds;
  };
}

absl::StatusOr<SimulatedRuntime::Duration> ComputeTime(const Hardware& hardware, const EnginePlan& plan,
                                                       std::string_view name, int num_threads) {
  const Processor* processor = hardware.FindProcessor(name);
  const ModelFormats& formats = plan.model_formats;
  if (processor == nullptr) return UsageError("the hardware has no processor '{}'", name);
  const Arithmetic arithmetic = FfnArithmetic(plan.formats, formats, *processor);
  const std::vector<SharedRates> gemm = MeasuredRates(*processor, formats, arithmetic, num_threads);
  const AttentionRates* attention = processor->FindAttention(KvFormatName(formats.kv), num_threads);
  const RowRates* measured = processor->FindRows(num_threads);
  const RowRates rows = measured == nullptr ? UnmeasuredRows(num_threads) : *measured;
  if (!gemm.empty() && attention != nullptr) return MeasuredTime(gemm, *attention, rows, name == "cpu");
  const MemoryTier* tier = hardware.FindTier(processor->tier);
  const double ops_per_s = processor->PeakOps(arithmetic, num_threads) * processor->compute_efficiency;
  const double bytes_per_s = tier == nullptr ? 0 : tier->ReadRate(num_threads) * processor->memory_efficiency;
  if (ops_per_s <= 0 || bytes_per_s <= 0) {
    return UsageError(
        "the hardware has no rates for weights in {}, KV in {} and {} threads of its {}: measure them with penstock "
        "probe --model",
        TraitsOf(formats.ffn).name, KvFormatName(formats.kv), num_threads, name);
  }
  return [=, call_s = processor->call_s](const TaskCost& cost) {
    return call_s + DecodingSeconds(cost, num_threads) + DrawSeconds(cost, rows) +
           std::max(cost.flops / ops_per_s, static_cast<double>(cost.memory_bytes) / bytes_per_s);
  };
}

absl::StatusOr<SimulatedRuntime::Duration> LinkTime(const Hardware& hardware, std::string_view name,
                                                    double max_under_way = kAnyUnderWay) {
  const Link* link = hardware.FindLink(name);
  if (link == nullptr) return UsageError("the hardware has no link {}", name);
  return [link = *link, max_under_way](const TaskCost& cost) { return link.Seconds(cost.link_bytes, max_under_way); };
}

// Returns the seconds of a CPU that reading an expert takes, with what is dropped from caches before (cache_lines.h).
double ReadCpuSeconds(const Link& disk, const MemoryPlan& memory) {
  constexpr double kDroppedBytesPerSecond = 32e9;  // measured on Zen 4
  if (disk.cpu_s == 0 || !CachesHoldSlots(memory)) return disk.cpu_s;
  return disk.cpu_s + static_cast<double>(memory.expert_bytes) / static_cast<double>(memory.num_expert_slots) /
                          kDroppedBytesPerSecond;
}

}  // namespace

Arithmetic FfnArithmetic(const Formats& formats, const ModelFormats& weights, const Processor& processor) {
  if (processor.name != "gpu" || !processor.gemm.empty()) return RowArithmetic(formats.rows.ffn);
  return weights.ffn == WeightFormat::kF32 ? Arithmetic::kF32 : Arithmetic::kBf16;
}

double FirstUseSeconds(const Hardware& hardware, const EnginePlan& plan) {
  const MemoryTier* dram = hardware.FindTier("dram");
  if (dram == nullptr || dram->first_use_bytes_per_s <= 0) return 0;
  const MemoryPlan& memory = plan.policy.plan;
  // Systems give what other processes freed last, which is at hand.
  constexpr uint64_t kAtHandBytes = uint64_t{256} << 20;
  const bool streams = memory.num_expert_slots < memory.num_experts_total;  // otherwise all are read before the steps
  const uint64_t bytes = (streams ? memory.expert_bytes : 0) + (memory.device.holds_kv_cache ? 0 : memory.kv_bytes);
  return static_cast<double>(bytes - std::min(bytes, kAtHandBytes)) / dram->first_use_bytes_per_s;
}

absl::StatusOr<LaneRates> LaneRatesOf(const Hardware& hardware, const EnginePlan& plan, int num_threads) {
  LaneRates rates;
  PENSTOCK_ASSIGN_OR_RETURN(rates.host_compute, ComputeTime(hardware, plan, "cpu", num_threads));
  const MemoryPlan& memory = plan.policy.plan;
  if (hardware.FindLink("disk_to_dram") != nullptr || memory.num_expert_slots < memory.num_experts_total) {
    rates.max_reading = MaxReading(memory);
    const auto max_reads = static_cast<double>(rates.max_reading);
    PENSTOCK_ASSIGN_OR_RETURN(rates.disk_to_dram, LinkTime(hardware, "disk_to_dram", max_reads));
    if (const Processor* cpu = hardware.FindProcessor("cpu"); cpu != nullptr && num_threads >= cpu->num_cpus) {
      rates.read_cpu_s = ReadCpuSeconds(*hardware.FindLink("disk_to_dram"), memory);
    }
    rates.disk_delay = [link = *hardware.FindLink("disk_to_dram"), max_reads](const TaskCost& cost) {
      return kWakeSeconds + link.Seconds(cost.link_bytes, 1) - link.Seconds(cost.link_bytes, max_reads);
    };
  } else {
    rates.disk_to_dram = [](const TaskCost&) { return 0.0; };  // all experts are read before the first step
  }
  if (!plan.policy.device.has_value()) return rates;
  if (plan.policy.device->kind == DeviceKind::kEmulated) {
    PENSTOCK_ASSIGN_OR_RETURN(rates.device_compute,
                              ComputeTime(hardware, plan, "cpu", plan.policy.device->num_threads));
    rates.dram_to_pinned = rates.dram_to_device = rates.device_to_dram =
        TransferTime(plan.policy.device->link_bytes_per_s);
    return rates;
  }
  PENSTOCK_ASSIGN_OR_RETURN(rates.device_compute, ComputeTime(hardware, plan, "gpu", 1));
  PENSTOCK_ASSIGN_OR_RETURN(rates.dram_to_device, LinkTime(hardware, "dram_to_device"));
  PENSTOCK_ASSIGN_OR_RETURN(rates.device_to_dram, LinkTime(hardware, "device_to_dram"));
  // The copy to page-locked memory stays within DRAM, which reads and writes each byte.
  const MemoryTier* dram = hardware.FindTier("dram");
  const double copy_bytes_per_s = dram == nullptr || dram->rates.empty() ? 0 : dram->rates.back().copy_bytes_per_s;
  if (copy_bytes_per_s <= 0) return UsageError("the hardware has no rates of its DRAM");
  rates.dram_to_pinned = TransferTime(copy_bytes_per_s);
  return rates;
}

}  // namespace penstock
