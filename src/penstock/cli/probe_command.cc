#include "penstock/cli/commands.h"

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/output_file.h"
#include "penstock/cli/stop_signals.h"
#include "penstock/measure/probe.h"
#include "penstock/parallel/mpi_ranks.h"
#include "penstock/parallel/rank_link.h"

namespace penstock::cli {
namespace {

// A unit such as "int8 TOP/s", and its value in operations per second.
struct Unit {
  std::string_view name;
  double ops_per_s;
};

Unit UnitOf(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kInt8 ? Unit{"TOP/s", 1e12} : Unit{"GFLOP/s", 1e9};
}

std::string Cell(double value) { return fmt::format("{:>15}", fmt::format("{:.{}f}", value, value < 10 ? 3 : 1)); }

// REQUIRES: `hardware` comes from Probe(), which measures one processor and one tier at the same numbers of threads.
std::string HardwareTable(const Hardware& hardware) {
  const Processor& cpu = hardware.processors.at(0);
  const MemoryTier& dram = hardware.tiers.at(0);
  std::string out;
  out += fmt::format("{:<18}{}\n", "processor", cpu.model.empty() ? "unknown" : Printable(cpu.model));
  out += fmt::format("{:<18}{}\n", "usable CPUs", cpu.num_cpus);
  out += fmt::format("{:<18}{}\n", "features", fmt::join(FeatureNames(cpu.features), " "));
  out += fmt::format("{:<18}{}\n", "DRAM", FormatBytes(dram.capacity_bytes));
  for (const ComputePeak& peak : cpu.peaks) {
    out += fmt::format("{:<18}{}\n", ArithmeticName(peak.arithmetic),
                       peak.instructions.empty() ? "no instructions for it" : peak.instructions);
  }
  out += fmt::format("\nthreads{:>15}{:>15}{:>15}", "read GB/s", "write GB/s", "copy GB/s");
  for (const ComputePeak& peak : cpu.peaks) {
    out += fmt::format("{:>15}", fmt::format("{} {}", ArithmeticName(peak.arithmetic), UnitOf(peak.arithmetic).name));
  }
  out += "\n";
  for (size_t i = 0; i < dram.rates.size(); ++i) {
    const MemoryRates& rates = dram.rates[i];
    out += fmt::format("{:>7}", rates.num_threads);
    for (const double rate : {rates.read_bytes_per_s, rates.write_bytes_per_s, rates.copy_bytes_per_s}) {
      out += Cell(rate * 1e-9);
    }
    for (const ComputePeak& peak : cpu.peaks) {
      out += peak.rates.empty() ? fmt::format("{:>15}", "-")
                                : Cell(peak.rates.at(i).ops_per_s / UnitOf(peak.arithmetic).ops_per_s);
    }
    out += "\n";
  }
  return out + fmt::format("memory is touched for the first time at {:.2f} GB/s\n", 1e-9 * dram.first_use_bytes_per_s);
}

std::string KernelTable(const Processor& cpu) {
  std::string out =
      fmt::format("\nexperts, {} threads: GOP/s by operations for each byte of weights\n", cpu.gemm.at(0).num_threads);
  for (const GemmRates& rates : cpu.gemm) {
    out += fmt::format("{:<6}in {:<6}", rates.weights, ArithmeticName(rates.arithmetic));
    for (const GemmPoint& point : rates.points) {
      out += fmt::format("{:>12}", fmt::format("{:.0f}: {:.0f}", point.ops_per_byte,
                                               1e-9 * point.ops_per_byte / point.seconds_per_byte));
    }
    out += "\n";
  }
  out += "attention reads of the KV cache";
  for (const AttentionRates& rates : cpu.attention) {
    out += fmt::format("{} in {} {:.1f} GB/s", &rates == &cpu.attention.front() ? "" : ",", rates.kv,
                       1e-9 * rates.bytes_per_s);
  }
  out += "\nattention of prompts";
  for (const AttentionRates& rates : cpu.attention) {
    out += fmt::format("{} in {} {:.0f} GOP/s", &rates == &cpu.attention.front() ? "" : ",", rates.kv,
                       1e-9 * rates.ops_per_s);
  }
  return out + "\n";
}

std::string DeviceTable(const Hardware& hardware, const Processor& device) {
  std::string out = fmt::format("\n{:<18}{}\n", "device", Printable(device.model));
  if (const MemoryTier* memory = hardware.FindTier(device.tier); memory != nullptr) {
    out += fmt::format("{:<18}{}, read at {:.0f} GB/s\n", "its memory", FormatBytes(memory->capacity_bytes),
                       1e-9 * memory->ReadRate());
  }
  for (const ComputePeak& peak : device.peaks) {
    out += fmt::format("{:<18}{:.1f} {} ({})\n", ArithmeticName(peak.arithmetic),
                       device.PeakOps(peak.arithmetic) / UnitOf(peak.arithmetic).ops_per_s,
                       UnitOf(peak.arithmetic).name, peak.instructions);
  }
  return out + KernelTable(device);
}

std::string LinkTable(const Link& link) {
  std::string out = fmt::format("\n{}: {:.2f} GB/s for long\n", link.name, 1e-9 * link.bytes_per_s);
  if (link.latency_s > 0) out += fmt::format("  a message takes {:.0f} us besides\n", 1e6 * link.latency_s);
  if (link.rates.empty()) return out;
  out += fmt::format("{:>15}{:>15}{:>15}\n", "read", "under way", "GB/s");
  for (const TransferRate& rate : link.rates) {
    out += fmt::format("{:>15}{:>15}{:>15.2f}\n", FormatBytes(rate.transfer_bytes), rate.num_under_way,
                       1e-9 * rate.bytes_per_s);
  }
  return out;
}

absl::StatusOr<Hardware> Measure(const ProbeFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(const EngineOptions options, ToEngineOptions(flags.model));
  ProbeTarget target{
      .options = options, .disk_dir = flags.disk_dir == "none" ? "" : flags.disk_dir, .seconds = flags.seconds};
  if (options.model_dir.empty()) {
    if (!options.model_mirrors.empty()) return UsageError("--model-mirror: give --model, too");
    return ProbeAndKeep(target);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const DescribedModel model,
                            DescribedModel::FromFolder(options.model_dir, options.model_mirrors));
  target.model = &model;
  return ProbeAndKeep(target);
}

// Measures this machine while other ranks wait, then the network between all of them.
absl::StatusOr<Hardware> MeasureWithRanks(const ProbeFlags& flags, Communicator* communicator) {
  absl::StatusOr<Hardware> hardware = Measure(flags);
  if (communicator == nullptr) return hardware;
  if (!hardware.ok()) {
    communicator->Abort(hardware.status());
    return hardware;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Link link, MeasureRankLink(*communicator));
  hardware->links.push_back(link);
  return hardware;
}

}  // namespace

absl::StatusOr<int> ProbeCommand(const ProbeFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(const MpiRanks ranks, JoinMpiRanks(StopStuckRank));
  if (ranks.communicator != nullptr && ranks.communicator->rank() > 0) {
    PENSTOCK_CHECK(SetUpLogging("off").ok());
    return ExitCode(MeasureRankLink(*ranks.communicator).status());
  }
  PENSTOCK_ASSIGN_OR_RETURN(OutputFile output,
                            OutputFile::Open("--output", flags.output_path, flags.model.engine.model_dir));
  PENSTOCK_ASSIGN_OR_RETURN(const Hardware hardware, MeasureWithRanks(flags, ranks.communicator.get()));
  const std::string json = std::string(json::serialize(ToJson(hardware))) + "\n";
  PENSTOCK_RETURN_IF_ERROR(output.Write(json));
  std::string table = HardwareTable(hardware) + KernelTable(hardware.processors.at(0));
  for (size_t i = 1; i < hardware.processors.size(); ++i) table += DeviceTable(hardware, hardware.processors[i]);
  for (const Link& link : hardware.links) table += LinkTable(link);
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, flags.as_json ? json : table, "stdout"));
  return 0;
}

}  // namespace penstock::cli
