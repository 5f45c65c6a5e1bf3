#include "penstock/hardware/presets.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

// Rates per second: tera-operations of dense products, gigabytes. The 16-bit rates are those of fp16 where a processor
// has no bf16, accumulated in f32.
struct GpuPart {
  std::string_view name;
  std::string_view model;
  uint64_t memory_bytes;
  double memory_gb_per_s;
  double f32_tera, bf16_tera, int8_tera;
  double pcie_gb_per_s;  // each direction, 16 lanes
  std::string_view source;
};
constexpr double kPcie3 = 15.75, kPcie4 = 31.5, kPcie5 = 63.0;
constexpr GpuPart kGpus[] = {
    {"t4", "NVIDIA T4", 16 * kGiB, 320, 8.1, 65, 130, kPcie3, "NVIDIA T4 data sheet"},
    {"l4", "NVIDIA L4", 24 * kGiB, 300, 30.3, 121, 242, kPcie4, "NVIDIA L4 data sheet, without sparsity"},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 24 * kGiB, 936, 35.6, 71, 284, kPcie4, "NVIDIA GA102 white paper"},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 24 * kGiB, 1008, 82.6, 165.2, 660.6, kPcie4, "NVIDIA Ada white paper"},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 32 * kGiB, 1792, 104.8, 209.5, 838, kPcie5,
     "NVIDIA RTX Blackwell white paper, without sparsity"},
    {"a6000", "NVIDIA RTX A6000", 48 * kGiB, 768, 38.7, 154.8, 309.7, kPcie4,
     "NVIDIA RTX A6000 data sheet and GA102 white paper, without sparsity"},
    {"a100", "NVIDIA A100 PCIe 80 GB", 80 * kGiB, 1935, 19.5, 312, 624, kPcie4, "NVIDIA A100 data sheet"},
    {"l40s", "NVIDIA L40S", 48 * kGiB, 864, 91.6, 362, 733, kPcie4, "NVIDIA L40S data sheet, without sparsity"},
    {"h100", "NVIDIA H100 SXM 80 GB", 80 * kGiB, 3350, 67, 989, 1979, kPcie5,
     "NVIDIA H100 data sheet, without sparsity"},
    {"h800", "NVIDIA H800 PCIe 80 GB", 80 * kGiB, 2000, 51, 756, 1513, kPcie5,
     "NVIDIA H800 data sheet, without sparsity"},
    {"h200", "NVIDIA H200 SXM 141 GB", 141 * kGiB, 4800, 67, 989, 1979, kPcie5,
     "NVIDIA H200 data sheet, without sparsity"},
};

struct CpuPart {
  std::string_view name;
  std::string_view model;
  int num_cpus;  // cores, with one thread each
  uint64_t dram_bytes;
  double dram_gb_per_s;
  double f32_giga, bf16_giga, int8_giga;  // from clock, cores and vector units; 0: no instructions for it
  std::string_view source;
};
constexpr CpuPart kCpus[] = {
    {"xeon-n1", "Intel Xeon 2.3 GHz, 24 cores (cloud)", 24, 192 * kGiB, 100, 883, 0, 0,
     "MoE-Lightning's T4 host; AVX2: 16 f32 operations a cycle and thread; DRAM: half of a socket"},
    {"xeon-n1-32", "Intel Xeon 2.3 GHz, 32 cores (cloud)", 32, 416 * kGiB, 100, 1178, 0, 0,
     "MoE-Lightning's host of several T4s; AVX2 as above; DRAM: half of a socket"},
    {"xeon-g2", "Intel Xeon 2.2 GHz, 24 cores (cloud)", 24, 192 * kGiB, 100, 1690, 0, 3379,
     "MoE-Lightning's L4 host; AVX-512: 32 f32 operations a cycle and thread; DRAM: most of a socket"},
    {"xeon-5318y", "Intel Xeon Gold 5318Y", 24, 256 * kGiB, 187.7, 3226, 0, 6451,
     "Intel ARK: 24 cores, 2.1 GHz, 8 x DDR4-2933"},
    {"xeon-5220r", "Intel Xeon Gold 5220R", 24, 256 * kGiB, 128, 1690, 0, 3379,
     "Intel ARK: 24 cores, 2.2 GHz, one AVX-512 unit, 6 x DDR4-2667"},
    {"xeon-8470", "Intel Xeon Platinum 8470", 52, 800 * kGiB, 307.2, 6656, 13312, 26624,
     "Intel ARK: 52 cores, 2.0 GHz, 8 x DDR5-4800; without AMX"},
    {"epyc-7763", "AMD EPYC 7763", 64, 512 * kGiB, 204.8, 5018, 0, 0,
     "AMD data sheet: 64 cores, 2.45 GHz, 8 x DDR4-3200"},
    {"epyc-9654", "AMD EPYC 9654", 96, 768 * kGiB, 460.8, 7373, 14746, 29491,
     "AMD data sheet: 96 cores, 2.4 GHz, 12 x DDR5-4800"},
    {"desktop", "desktop with 16 cores and two channels of DDR5", 16, 64 * kGiB, 89.6, 2304, 4608, 9216,
     "AMD data sheet (Ryzen 9 7950X): 16 cores, 4.5 GHz, 2 x DDR5-5600"},
};

struct DiskPart {
  std::string_view name;
  double gb_per_s;
  std::string_view source;
};
constexpr DiskPart kDisks[] = {
    {"sata", 0.55, "SATA 6 Gb/s"},
    {"ssd1", 1.0, "Klotski's disk: 1 GB/s"},
    {"nvme3", 3.5, "NVMe, PCIe 3.0 x4 (Samsung 970 EVO Plus data sheet)"},
    {"nvme4", 7.0, "NVMe, PCIe 4.0 x4 (Samsung 990 PRO data sheet: 7.45)"},
    {"nvme5", 14.0, "NVMe, PCIe 5.0 x4 (Crucial T705 data sheet: 14.5)"},
};

// Gigabytes per second in each direction, and the seconds that each message takes besides.
struct NetworkPart {
  std::string_view name;
  double gb_per_s;
  double latency_s;
  std::string_view source;
};
constexpr NetworkPart kNetworks[] = {
    {"1gbe", 0.125, 50e-6, "Ethernet, 1 Gbit/s, TCP"},
    {"10gbe", 1.25, 30e-6, "Ethernet, 10 Gbit/s, TCP"},
    {"25gbe", 3.125, 20e-6, "Ethernet, 25 Gbit/s, TCP"},
    {"100gbe", 12.5, 15e-6, "Ethernet, 100 Gbit/s, TCP"},
    {"ib-hdr", 25, 3e-6, "InfiniBand HDR, 200 Gbit/s"},
    {"ib-ndr", 50, 3e-6, "InfiniBand NDR, 400 Gbit/s"},
    {"pcie3", kPcie3, 10e-6, "PCI Express 3.0 x16, between GPUs"},
    {"pcie4", kPcie4, 10e-6, "PCI Express 4.0 x16, between GPUs"},
    {"pcie5", kPcie5, 10e-6, "PCI Express 5.0 x16, between GPUs"},
    {"nvlink-h800", 200, 10e-6, "NVIDIA H800: NVLink, 400 GB/s in both directions together"},
    {"nvlink-a100", 300, 10e-6, "NVIDIA A100: NVLink 3, 600 GB/s in both directions together"},
    {"nvlink-h100", 450, 10e-6, "NVIDIA H100: NVLink 4, 900 GB/s in both directions together"},
};

// A machine: its parts by name, and the size of its DRAM.
struct MachinePart {
  std::string_view name;
  std::string_view gpu;  // empty: no device
  std::string_view cpu;
  std::string_view disk;
  std::string_view source;
  int num_gpus = 1;
  uint64_t dram_bytes = 0;  // 0: the CPU's default
};
constexpr MachinePart kMachines[] = {
    {"t4", "t4", "xeon-n1", "nvme3", "MoE-Lightning, setting S1"},
    {"l4", "l4", "xeon-g2", "nvme3", "MoE-Lightning, setting S2"},
    {"2xt4", "t4", "xeon-n1-32", "nvme3", "MoE-Lightning, settings S6 and S8", 2, 416 * kGiB},
    {"4xt4", "t4", "xeon-n1-32", "nvme3", "MoE-Lightning, settings S7 and S9", 4, 416 * kGiB},
    {"rtx3090", "rtx3090", "xeon-5318y", "ssd1", "Klotski, environment 1"},
    {"a6000", "a6000", "xeon-5220r", "nvme3", "HybriMoE's class of hardware"},
    {"h800", "h800", "xeon-8470", "nvme4", "Klotski, environment 2"},
    {"rtx4090", "rtx4090", "desktop", "nvme4", "a desktop"},
    {"rtx5090", "rtx5090", "desktop", "nvme5", "a desktop"},
    {"l40s", "l40s", "epyc-7763", "nvme4", "a server"},
    {"a100", "a100", "epyc-7763", "nvme4", "a server"},
    {"h100", "h100", "epyc-9654", "nvme5", "a server"},
    {"h200", "h200", "epyc-9654", "nvme5", "a server"},
    {"none", "", "desktop", "nvme4", "a desktop without a device"},
};

// The shares of the data sheets' numbers that plans use. Links: FlexGen measured 12.9 GB/s from DRAM to a T4 behind
// PCIe 3.0, of 15.75. Memory: the rate that long reads reach. Arithmetic: large GEMMs of good libraries on GPUs, our
// own kernels on CPUs (docs/benchmarks.md). Disks serve many reads at once, which hides most of their latency.
constexpr double kLinkEfficiency = 0.82;
constexpr double kGpuComputeEfficiency = 0.6, kGpuMemoryEfficiency = 0.8, kGpuCallSeconds = 10e-6;
constexpr double kCpuComputeEfficiency = 0.6, kCpuMemoryEfficiency = 0.8, kCpuCallSeconds = 5e-6;
constexpr double kLinkLatencySeconds = 10e-6;
constexpr double kNetworkEfficiency = 0.9;  // what long transfers over TCP and NCCL reach
constexpr double kDiskEfficiency = 0.9, kDiskLatencySeconds = 20e-6;

std::vector<ComputePeak> Peaks(int num_threads, std::initializer_list<std::pair<Arithmetic, double>> ops_per_s) {
  std::vector<ComputePeak> peaks;
  for (const auto& [arithmetic, ops] : ops_per_s) {
    peaks.push_back({.arithmetic = arithmetic});
    if (ops == 0) continue;
    peaks.back().instructions = "data sheet";
    peaks.back().rates = {{num_threads, ops}};
  }
  return peaks;
}

// Several GPUs count as one with their memory, rates and links together: tensor parallelism within a machine, as
// MoE-Lightning models it (section 4.3). The model leaves out communication between the GPUs.
void AddGpu(const GpuPart& gpu, int count, Hardware& hardware) {
  hardware.processors.push_back({.name = "gpu",
                                 .model = std::string(gpu.model),
                                 .tier = "device",
                                 .num_cpus = 1,
                                 .peaks = Peaks(1, {{Arithmetic::kF32, count * gpu.f32_tera * 1e12},
                                                    {Arithmetic::kBf16, count * gpu.bf16_tera * 1e12},
                                                    {Arithmetic::kInt8, count * gpu.int8_tera * 1e12}}),
                                 .compute_efficiency = kGpuComputeEfficiency,
                                 .memory_efficiency = kGpuMemoryEfficiency,
                                 .call_s = kGpuCallSeconds});
  const double memory = count * gpu.memory_gb_per_s * 1e9, link = count * gpu.pcie_gb_per_s * 1e9 * kLinkEfficiency;
  hardware.tiers.push_back({.name = "device",
                            .capacity_bytes = static_cast<uint64_t>(count) * gpu.memory_bytes,
                            .rates = {{.num_threads = 1,
                                       .read_bytes_per_s = memory,
                                       .write_bytes_per_s = memory,
                                       .copy_bytes_per_s = memory / 2}}});
  hardware.links.push_back({"dram_to_device", link, kLinkLatencySeconds});
  hardware.links.push_back({"device_to_dram", link, kLinkLatencySeconds});
}

void AddCpu(const CpuPart& cpu, uint64_t dram_bytes, Hardware& hardware) {
  hardware.processors.push_back({.name = "cpu",
                                 .model = std::string(cpu.model),
                                 .tier = "dram",
                                 .num_cpus = cpu.num_cpus,
                                 .peaks = Peaks(cpu.num_cpus, {{Arithmetic::kF32, cpu.f32_giga * 1e9},
                                                               {Arithmetic::kBf16, cpu.bf16_giga * 1e9},
                                                               {Arithmetic::kInt8, cpu.int8_giga * 1e9}}),
                                 .compute_efficiency = kCpuComputeEfficiency,
                                 .memory_efficiency = kCpuMemoryEfficiency,
                                 .call_s = kCpuCallSeconds});
  const double memory = cpu.dram_gb_per_s * 1e9;
  hardware.tiers.push_back({.name = "dram",
                            .capacity_bytes = dram_bytes,
                            .rates = {{.num_threads = cpu.num_cpus,
                                       .read_bytes_per_s = memory,
                                       .write_bytes_per_s = memory,
                                       .copy_bytes_per_s = memory / 2}}});
}

template <typename Parts>
std::string Names(const Parts& parts) {
  std::string names;
  for (const auto& part : parts) names += (names.empty() ? "" : ", ") + std::string(part.name);
  return names;
}

template <typename Part, size_t kCount>
absl::StatusOr<const Part*> FindPart(const Part (&parts)[kCount], std::string_view kind, std::string_view name) {
  const auto found = std::find_if(std::begin(parts), std::end(parts), [&](const Part& p) { return p.name == name; });
  if (found != std::end(parts)) return &*found;
  return UsageError("hardware: {} '{}' is unknown: expected {}", kind, Printable(name), Names(parts));
}

// Parses the part of a spec that follows the preset's name: "gpu=t4,dram=96GiB". The caller takes each known field
// once; the remaining fields are unknown.
class SpecFields {
 public:
  SpecFields(std::string_view spec, std::string_view text) : spec_(spec) {
    while (!text.empty()) {
      const size_t comma = text.find(',');
      const std::string_view field = text.substr(0, comma);
      text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
      const size_t equals = std::min(field.find('='), field.size());
      fields_.push_back({field.substr(0, equals), field.substr(std::min(equals + 1, field.size()))});
    }
  }

  std::string_view Text(std::string_view key, std::string_view absent) {
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (fields_[i].key != key) continue;
      const std::string_view value = fields_[i].value;
      if (value.empty()) status_.Update(Malformed(key));
      fields_.erase(fields_.begin() + static_cast<ptrdiff_t>(i));
      return value;
    }
    return absent;
  }
  uint64_t Bytes(std::string_view key, uint64_t absent) { return Parsed(key, absent, ParseBytes); }
  double Rate(std::string_view key, double absent) { return Parsed(key, absent, ParseRate); }
  template <typename Value>
  Value Number(std::string_view key, Value absent, Value min, Value max) {
    return Parsed(key, absent, [&](std::string_view text) -> absl::StatusOr<Value> {
      Value number = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error == std::errc() && end == text.data() + text.size() && number >= min && number <= max) return number;
      return UsageError("'{}': expected a number from {} to {}", Printable(text), min, max);
    });
  }
  absl::Status Finish() const {
    if (!status_.ok() || fields_.empty()) return status_;
    return Malformed(fields_[0].key);
  }

 private:
  struct Field {
    std::string_view key, value;
  };
  template <typename Value, typename Parse>
  Value Parsed(std::string_view key, Value absent, Parse parse) {
    const std::string_view text = Text(key, "");
    if (text.empty()) return absent;
    const absl::StatusOr<Value> value = parse(text);
    if (value.ok()) return *value;
    status_.Update(Annotate(value.status(), fmt::format("hardware: {}", key)));
    return absent;
  }
  absl::Status Malformed(std::string_view key) const {
    return UsageError(
        "hardware '{}': '{}': expected a preset with any of gpu=NAME, gpus=N, cpu=NAME, dram=SIZE, disk=NAME or RATE, "
        "link=RATE, copy=RATE, gpu-efficiency=SHARE, gpu-call-us=N, cpu-efficiency=SHARE, cpu-call-us=N",
        Printable(spec_), Printable(key));
  }

  std::string_view spec_;
  std::vector<Field> fields_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Hardware> HardwarePreset(std::string_view spec) {
  const size_t colon = spec.find(':');
  PENSTOCK_ASSIGN_OR_RETURN(const MachinePart* machine, FindPart(kMachines, "machine", spec.substr(0, colon)));
  SpecFields fields(spec, colon == std::string_view::npos ? "" : spec.substr(colon + 1));
  const std::string_view gpu = fields.Text("gpu", machine->gpu);
  const int num_gpus = fields.Number("gpus", machine->num_gpus, 1, 64);
  PENSTOCK_ASSIGN_OR_RETURN(const CpuPart* cpu, FindPart(kCpus, "cpu", fields.Text("cpu", machine->cpu)));
  const uint64_t dram_bytes = fields.Bytes("dram", machine->dram_bytes > 0 ? machine->dram_bytes : cpu->dram_bytes);
  Hardware hardware;
  AddCpu(*cpu, dram_bytes, hardware);
  const std::string_view disk = fields.Text("disk", machine->disk);
  double disk_bytes_per_s = 0;
  if (disk.ends_with("/s")) {
    PENSTOCK_ASSIGN_OR_RETURN(disk_bytes_per_s, ParseRate(disk));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(const DiskPart* part, FindPart(kDisks, "disk", disk));
    disk_bytes_per_s = part->gb_per_s * 1e9 * kDiskEfficiency;
  }
  hardware.links.push_back({"disk_to_dram", disk_bytes_per_s, kDiskLatencySeconds});
  if (!gpu.empty() && gpu != "none") {
    PENSTOCK_ASSIGN_OR_RETURN(const GpuPart* gpu_part, FindPart(kGpus, "gpu", gpu));
    AddGpu(*gpu_part, num_gpus, hardware);
  }
  for (Processor& processor : hardware.processors) {
    processor.compute_efficiency =
        fields.Number(processor.name + "-efficiency", processor.compute_efficiency, 1e-3, 1.0);
    processor.call_s = fields.Number(processor.name + "-call-us", processor.call_s * 1e6, 0.0, 1e6) * 1e-6;
  }
  const double link_bytes_per_s = fields.Rate("link", 0);
  for (Link& link : hardware.links) {
    if (link.name != "disk_to_dram" && link_bytes_per_s > 0) link.SetRate(link_bytes_per_s);
  }
  for (MemoryTier& tier : hardware.tiers) {
    if (tier.name == "dram") tier.rates[0].copy_bytes_per_s = fields.Rate("copy", tier.rates[0].copy_bytes_per_s);
  }
  PENSTOCK_RETURN_IF_ERROR(fields.Finish());
  return hardware;
}

absl::StatusOr<Link> NetworkPreset(std::string_view spec) {
  Link link{.name = std::string(kRankLink), .latency_s = kNetworks[1].latency_s};
  if (spec.ends_with("/s")) {
    PENSTOCK_ASSIGN_OR_RETURN(link.bytes_per_s, ParseRate(spec));
    return link;
  }
  const auto found = std::ranges::find(kNetworks, spec, &NetworkPart::name);
  if (found == std::end(kNetworks)) {
    return UsageError("network '{}' is unknown: expected {}, or a rate like 1.1GB/s", Printable(spec),
                      Names(kNetworks));
  }
  link.bytes_per_s = found->gb_per_s * 1e9 * kNetworkEfficiency;
  link.latency_s = found->latency_s;
  return link;
}

std::vector<PresetInfo> AllPresets() {
  std::vector<PresetInfo> infos;
  for (const MachinePart& m : kMachines) {
    infos.push_back({"machine", m.name,
                     fmt::format("{} x gpu {}, cpu {}, disk {}", m.gpu.empty() ? 0 : m.num_gpus,
                                 m.gpu.empty() ? "none" : m.gpu, m.cpu, m.disk),
                     m.source});
  }
  for (const GpuPart& g : kGpus) {
    infos.push_back(
        {"gpu", g.name,
         fmt::format("{}, {}, {} GB/s, {} / {} TFLOP/s in f32 / 16 bits, link {} GB/s", g.model,
                     FormatBytes(g.memory_bytes), g.memory_gb_per_s, g.f32_tera, g.bf16_tera, g.pcie_gb_per_s),
         g.source});
  }
  for (const CpuPart& c : kCpus) {
    infos.push_back({"cpu", c.name,
                     fmt::format("{}, {}, {} GB/s, {} GFLOP/s in f32", c.model, FormatBytes(c.dram_bytes),
                                 c.dram_gb_per_s, c.f32_giga),
                     c.source});
  }
  for (const DiskPart& d : kDisks) infos.push_back({"disk", d.name, fmt::format("{} GB/s", d.gb_per_s), d.source});
  for (const NetworkPart& n : kNetworks) {
    infos.push_back({"network", n.name, fmt::format("{} GB/s, {:.0f} us", n.gb_per_s, n.latency_s * 1e6), n.source});
  }
  return infos;
}

}  // namespace penstock
