#include "penstock/measure/probe.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/base/thread_pool.h"
#include "penstock/base/version.h"
#include "penstock/device/device.h"
#include "penstock/hardware/machine_memory.h"
#include "penstock/hardware/peaks.h"
#include "penstock/kernels/kernels.h"
#include "penstock/measure/disk_probe.h"
#include "penstock/measure/kernel_probe.h"
#include "penstock/measure/measurement_cache.h"
#include "penstock/memory/expert_layouts.h"
#include "penstock/model/family.h"
#include "penstock/plan/formats.h"

namespace penstock {
namespace {

constexpr uint64_t kDiskFileBytes = kGiB;
constexpr double kMachineShare = 0.4;  // share of the time; the disk has the rest
// Seconds for which a disk's measurement is used. Shared disks, and disks that warm up, change their speed within
// minutes.
constexpr int64_t kDiskSeconds = 120;
constexpr double kLinkLatency = 8e-6;  // seconds, for a GPU's link: a guess
constexpr double kAgainShare = 0.3;    // share of a first measurement's time that a repeated one takes

struct Format {
  WeightFormat weights;
  ComputeDtype dtype;
  ActivationFormat activations = ActivationFormat::kInt8;
};
constexpr Format kAllFormats[] = {
    {WeightFormat::kF32, ComputeDtype::kF32},    {WeightFormat::kF16, ComputeDtype::kF32},
    {WeightFormat::kBF16, ComputeDtype::kF32},   {WeightFormat::kBF16, ComputeDtype::kBF16},
    {WeightFormat::kInt8, ComputeDtype::kF32},   {WeightFormat::kHqq4, ComputeDtype::kF32},
    {WeightFormat::kHqq3, ComputeDtype::kF32},   {WeightFormat::kHqq2, ComputeDtype::kF32},
    {WeightFormat::kTernary, ComputeDtype::kF32}};
constexpr KvFormat kAllKvFormats[] = {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8};

// Returns the shape of attention and experts that is usual in MoE models, with more experts than caches hold.
ModelConfig UsualShape() {
  constexpr int64_t kNumLayers = 32;
  ModelConfig config;
  config.family = &kMixtral;
  config.num_layers = kNumLayers;
  config.model_dim = 2048;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.rope.rotary_dim = 128;
  config.rope.usual.frequencies.assign(64, 1);
  config.attention_scale = 1;
  config.vocab_size = 32000;
  config.expert_dim = 2048;
  config.num_experts = 8;
  config.num_topk = 2;
  config.layer_has_experts.assign(kNumLayers, true);
  return config;
}

int NumThreads(const ProbeTarget& target) {
  return target.options.threads > 0 ? target.options.threads : NumUsableCpus();
}

bool ReadsModel(const ProbeTarget& target) {
  return target.model != nullptr && !target.model->engine_model().files.empty();
}

absl::StatusOr<std::vector<Format>> FormatsOf(const ProbeTarget& target) {
  if (target.model == nullptr) return std::vector<Format>(std::begin(kAllFormats), std::end(kAllFormats));
  PENSTOCK_ASSIGN_OR_RETURN(const Formats formats, ChooseFormats(target.options, target.model->weights()));
  const ModelFormats found = ModelFormatsOf(target.model->weights(), formats);
  if (found.ffn_shares.empty()) return std::vector<Format>{{found.ffn, formats.dtype, formats.activations}};
  std::vector<Format> all;
  for (const FormatShare& share : found.ffn_shares) {
    all.push_back({share.format, formats.dtype, formats.activations});
  }
  return all;
}

// Returns the formats of attention's matrices, which stand for all that are not experts'.
absl::StatusOr<DenseFormats> DenseFormatsOf(const ProbeTarget& target) {
  if (target.model == nullptr) return DenseFormats();
  PENSTOCK_ASSIGN_OR_RETURN(const Formats formats, ChooseFormats(target.options, target.model->weights()));
  return DenseFormats{ModelFormatsOf(target.model->weights(), formats).attention, formats.dtype, formats.activations};
}

absl::StatusOr<KernelProbe> KernelProbeOf(const ProbeTarget& target, const MeasuredProcessor& measured,
                                          uint64_t free_bytes) {
  static const ModelConfig usual = UsualShape();
  const char* forced_isa = std::getenv("PENSTOCK_FORCE_ISA");
  PENSTOCK_ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::ChooseIsa(forced_isa == nullptr ? "" : forced_isa));
  return KernelProbe{.config = target.model == nullptr ? usual : target.model->config(),
                     .kernels = kernels::KernelsFor(isa),
                     .processor = measured,
                     .max_bytes = std::min(kGiB, free_bytes / 4),
                     .seconds = target.seconds / 200};
}

absl::Status MeasureKernels(const ProbeTarget& target, const KernelProbe& probe, Processor& processor) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Format> formats, FormatsOf(target));
  Arena slots;
  for (const Format& format : formats) {
    LogInfo("measuring kernels of the {} with weights in {}", processor.name, TraitsOf(format.weights).name);
    PENSTOCK_ASSIGN_OR_RETURN(GemmRates rates,
                              MeasureGemm(probe, format.weights, format.dtype, format.activations, slots));
    if (target.model != nullptr && probe.processor.memory.is_host()) {
      PENSTOCK_ASSIGN_OR_RETURN(rates.pack_s, MeasurePacking(probe, target.model->weights(), format.dtype, slots));
    }
    processor.gemm.push_back(std::move(rates));
  }
  slots = {};
  for (const KvFormat kv : kAllKvFormats) {
    PENSTOCK_ASSIGN_OR_RETURN(AttentionRates rates, MeasureAttention(probe, kv));
    processor.attention.push_back(std::move(rates));
  }
  return absl::OkStatus();
}

uint64_t FreeBytes(const ProbeTarget& target) {
  const uint64_t free_bytes = ReadMachineMemory().available_bytes;
  return target.max_bytes > 0 ? std::min(target.max_bytes, free_bytes) : free_bytes;
}

// The threads with which this process computes, to be measured.
class Host {
 public:
  explicit Host(const ProbeTarget& target) : target_(target), pool_(NumThreads(target)) {}

  absl::StatusOr<HostPace> Pace() {
    PENSTOCK_ASSIGN_OR_RETURN(const KernelProbe probe, KernelProbeOf(target_, host_, FreeBytes(target_)));
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Format> formats, FormatsOf(target_));
    return MeasurePace(probe, formats[0].weights, formats[0].dtype, formats[0].activations);
  }

  // Replaces the rates of kernels. Measures again if the pace has changed meanwhile. Returns the pace.
  absl::StatusOr<HostPace> Measure(Processor& cpu) {
    constexpr int kTries = 3;  // enough unless the pace changes every few seconds
    PENSTOCK_ASSIGN_OR_RETURN(HostPace pace, Pace());
    for (int i = 0; i < kTries; ++i) {
      PENSTOCK_RETURN_IF_ERROR(MeasureOnce(cpu));
      const HostPace before = pace;
      PENSTOCK_ASSIGN_OR_RETURN(pace, Pace());
      if (pace.IsNear(before)) break;
    }
    return pace;
  }

 private:
  absl::Status MeasureOnce(Processor& cpu) {
    cpu.gemm = {};
    cpu.attention = {};
    cpu.rows = {};
    PENSTOCK_ASSIGN_OR_RETURN(const KernelProbe probe, KernelProbeOf(target_, host_, FreeBytes(target_)));
    PENSTOCK_RETURN_IF_ERROR(MeasureKernels(target_, probe, cpu));
    PENSTOCK_ASSIGN_OR_RETURN(const DenseFormats formats, DenseFormatsOf(target_));
    PENSTOCK_ASSIGN_OR_RETURN(RowRates rows,
                              MeasureRows(probe, pool_, formats, cpu.gemm.front(), cpu.attention.front().call_s));
    cpu.rows.push_back(std::move(rows));
    return absl::OkStatus();
  }

  const ProbeTarget& target_;
  ThreadPool pool_;
  const ThreadPool::CallerPin pin_{pool_};
  const MeasuredProcessor host_ = MeasureHost(pool_);
};

// Returns the GPU that the options allow, if there is one.
std::optional<DeviceSpec> GpuOf(const ProbeTarget& target) {
  const std::string& name = target.options.device;
  if (name == "cpu" || name.starts_with("emulated")) return std::nullopt;
  const absl::StatusOr<std::optional<DeviceSpec>> device = ParseDevice(name == "gpu" ? "auto" : name);
  return device.ok() ? *device : std::nullopt;
}

absl::Status MeasureGpu(const ProbeTarget& target, const DeviceSpec& spec, Hardware& hardware) {
  constexpr int kThreads = 1;  // the whole GPU has one rate
  const double seconds = target.seconds / 40;
  const uint64_t budget = spec.free_bytes / 10 * 9;
  const ModelConfig config = target.model == nullptr ? UsualShape() : target.model->config();
  PENSTOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<Device> device,
      MakeCudaDevice(spec, CudaWorkspaceOf(config, std::max<int64_t>(config.max_positions, kKvPageTokens * 64), budget),
                     budget));
  RealRuntime runtime;
  PENSTOCK_RETURN_IF_ERROR(device->AddLanes(runtime).status());
  Processor gpu{.name = "gpu", .model = spec.model, .tier = "device", .num_cpus = spec.num_processors};
  LogInfo("measuring {}", spec.model);
  const MeasuredProcessor measured = MeasureDevice(*device);
  PENSTOCK_ASSIGN_OR_RETURN(const KernelProbe probe, KernelProbeOf(target, measured, budget));
  PENSTOCK_RETURN_IF_ERROR(MeasureKernels(target, probe, gpu));
  const uint64_t read_bytes = std::min(kGiB, budget / 4);
  PENSTOCK_ASSIGN_OR_RETURN(const Arena bytes, device->memory().Map(read_bytes));
  double read_bytes_per_s = 0;
  for (const Arithmetic arithmetic : kAllArithmetics) {
    const ProcessorRates rates = device->Measure(arithmetic, {bytes.data(), bytes.size_bytes()}, seconds);
    gpu.peaks.push_back({.arithmetic = arithmetic,
                         .instructions = arithmetic == Arithmetic::kF32 ? "fma" : "mma.sync",
                         .rates = {{.num_threads = kThreads, .ops_per_s = rates.ops_per_s}}});
    read_bytes_per_s = std::max(read_bytes_per_s, rates.memory_bytes_per_s);
  }
  hardware.processors.push_back(std::move(gpu));
  hardware.tiers.push_back({.name = "device",
                            .capacity_bytes = spec.total_bytes,
                            .rates = {{.num_threads = kThreads, .read_bytes_per_s = read_bytes_per_s}}});
  const double link = device->MeasureLink(seconds);
  for (const char* name : {"dram_to_device", "device_to_dram"}) {
    hardware.links.push_back({.name = name, .bytes_per_s = link, .latency_s = kLinkLatency});
  }
  return absl::OkStatus();
}

// Writes a file that has no name and vanishes when it is closed. Its blocks all differ, so that no disk can leave any
// out.
absl::StatusOr<OpenedFile> WriteNamelessFile(const std::string& dir) {
  const auto refusal = [&] {
    return IoError("{}: cannot write a file to measure the disk with: {}", Printable(dir), ErrnoText(errno));
  };
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(dir, error);
  if (!error && space.available < 2 * kDiskFileBytes) {
    return IoError("{}: measuring the disk writes a file of {} for a moment and wants twice that free; found {}",
                   Printable(dir), FormatBytes(kDiskFileBytes), FormatBytes(space.available));
  }
  OpenedFile file{.fd = UniqueFd(::open(dir.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600)),
                  .path = dir,
                  .size_bytes = kDiskFileBytes};
  if (!file.fd.valid()) return refusal();
  std::string block(4 * kMiB, '\0');
  uint64_t state = 0x9e3779b97f4a7c15;
  for (uint64_t written = 0; written < kDiskFileBytes; written += block.size()) {
    for (size_t i = 0; i < block.size(); i += 512) {
      state = state * 6364136223846793005 + 1442695040888963407;
      block.replace(i, sizeof(state), reinterpret_cast<const char*>(&state), sizeof(state));
    }
    PENSTOCK_RETURN_IF_ERROR(WriteFully(file.fd.get(), block, dir));
  }
  if (::fsync(file.fd.get()) != 0) return refusal();
  return file;
}

absl::StatusOr<Link> MeasureDiskOf(const ProbeTarget& target, double seconds) {
  std::vector<OpenedFile> nameless;
  std::span<const OpenedFile> files;
  DiskProbeSpec spec{.max_bytes = std::min(DiskProbeSpec().max_bytes, FreeBytes(target) / 4),
                     .seconds = seconds / 2,
                     .long_seconds = seconds / 2};
  if (target.model != nullptr) {
    files = target.model->engine_model().files;
    PENSTOCK_ASSIGN_OR_RETURN(const Formats formats, ChooseFormats(target.options, target.model->weights()));
    const ExpertLayouts layouts(target.model->weights(), files, formats.dtype);
    if (layouts.num_experts() > 0) spec.IncludeSize(layouts.read_bytes(ExpertKey{0}));
  }
  if (files.empty()) {
    LogInfo("writing {} without a name into {} to measure the disk", FormatBytes(kDiskFileBytes),
            Printable(target.disk_dir));
    PENSTOCK_ASSIGN_OR_RETURN(OpenedFile file, WriteNamelessFile(target.disk_dir));
    nameless.push_back(std::move(file));
    files = nameless;
  }
  LogInfo("measuring the disk");
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<DiskReader> reader,
                            DiskReader::Create(files, {target.options.direct_io, target.options.io_uring}));
  // The reads are spread over the mirrors as in a run, so the rate is that of all disks together.
  absl::StatusOr<Link> link = ProbeDisk(*reader, files, spec);
  for (const DirectoryReads& directory : reader->ReadsByDirectory()) {
    LogInfo("{}: {:.2f} GB/s", Printable(directory.path), 1e-9 * directory.bytes_per_s);
  }
  return link;
}

// Returns everything that decides the measured numbers, as far as it is known without measuring.
absl::StatusOr<json::object> IdentityOf(const ProbeTarget& target) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Format> formats, FormatsOf(target));
  json::array names;
  for (const Format& format : formats) {
    names.push_back(json::string(TraitsOf(format.weights).name));
    names.push_back(format.dtype == ComputeDtype::kBF16 ? "bf16" : "f32");
    names.push_back(format.activations == ActivationFormat::kInt8 ? "int8" : "f32");
  }
  json::array shape;
  if (target.model != nullptr) {
    const ModelConfig& c = target.model->config();
    PENSTOCK_ASSIGN_OR_RETURN(const DenseFormats dense, DenseFormatsOf(target));
    const bool packs = ExpertLayouts(target.model->weights(), {}, dense.dtype).packs();
    shape = {c.model_dim,   c.expert_dim, c.dense_ffn_dim, c.num_heads,        c.num_kv_heads, c.head_dim,
             c.num_experts, c.num_topk,   c.vocab_size,    c.num_moe_layers(), packs};
    shape.push_back(json::string(TraitsOf(dense.weights).name));
  }
  std::string disk = target.disk_dir;
  if (ReadsModel(target)) {
    disk = target.model->engine_model().files[0].path;
  }
  struct stat info = {};
  const uint64_t device = !disk.empty() && ::stat(disk.c_str(), &info) == 0 ? info.st_dev : 0;
  // Each disk of a mirror, and the share of the model that lies on it, decide the rate.
  json::array mirrors;
  for (const std::string& mirror : target.options.model_mirrors) {
    struct stat of_mirror = {};
    if (::stat(mirror.c_str(), &of_mirror) == 0) mirrors.push_back({of_mirror.st_dev, of_mirror.st_ino});
  }
  const std::optional<DeviceSpec> gpu = GpuOf(target);
  const char* forced_isa = std::getenv("PENSTOCK_FORCE_ISA");
  constexpr int kContent = 9;  // changes when the probe measures other things
  return json::object{{"penstock", Version()},
                      {"content", kContent},
                      {"processor", ReplaceInvalidUtf8(CpuModel())},
                      {"isa", forced_isa == nullptr ? "" : ReplaceInvalidUtf8(forced_isa)},
                      {"cpus", NumUsableCpus()},
                      {"threads", NumThreads(target)},
                      {"memory_bytes", ReadMachineMemory().total_bytes},
                      {"formats", std::move(names)},
                      {"shape", std::move(shape)},
                      {"disk", device},
                      {"mirrors", std::move(mirrors)},
                      {"gpu", gpu.has_value() ? gpu->name + " " + gpu->model : ""},
                      {"direct_io", target.options.direct_io},
                      {"io_uring", target.options.io_uring}};
}

std::string DateOf(int64_t time) {
  const auto now = static_cast<std::time_t>(time);
  std::tm date = {};
  ::gmtime_r(&now, &date);
  return fmt::format("{}-{:02}-{:02}", date.tm_year + 1900, date.tm_mon + 1, date.tm_mday);
}

// The machine at one pace of its CPU.
struct Measured {
  Hardware hardware;
  HostPace pace;
  int64_t time = 0;  // seconds since 1970
};

// All that is kept for a machine.
struct Kept {
  std::vector<Measured> paces;  // the one that was used or measured last comes last
  int64_t disk_time = 0;        // when the disk, the same at all paces, was measured
};

constexpr char kProbeKind[] = "probe";
constexpr size_t kMaxPaces = 4;

std::optional<Measured> ParseMeasured(const json::value& value) {
  const json::object* object = value.if_object();
  if (object == nullptr) return std::nullopt;
  const auto number = [&](std::string_view name) {
    const json::value* found = object->if_contains(name);
    return found != nullptr && found->is_number() ? found->to_number<double>() : 0;
  };
  const json::value* found = object->if_contains("hardware");
  const json::value* time = object->if_contains("measured");
  if (found == nullptr || time == nullptr || !time->is_int64()) return std::nullopt;
  absl::StatusOr<Hardware> hardware = ParseHardware(*found);
  if (!hardware.ok() || hardware->processors.empty()) return std::nullopt;
  return Measured{*std::move(hardware), {number("call_seconds"), number("byte_seconds")}, time->get_int64()};
}

// Returns what is kept, without paces if nothing is.
Kept ReadCache(const json::object& identity) {
  Kept kept;
  const std::optional<json::object> content = ReadKept(kProbeKind, identity);
  if (!content.has_value()) return kept;
  const json::value* paces = content->if_contains("paces");
  const json::value* disk_measured = content->if_contains("disk_measured");
  if (paces == nullptr || !paces->is_array() || disk_measured == nullptr || !disk_measured->is_int64()) return kept;
  kept.disk_time = disk_measured->get_int64();
  for (const json::value& value : paces->get_array()) {
    if (std::optional<Measured> measured = ParseMeasured(value); measured.has_value()) {
      kept.paces.push_back(*std::move(measured));
    }
  }
  return kept;
}

void WriteCache(const json::object& identity, const Kept& kept) {
  json::array paces;
  for (const Measured& each : kept.paces) {
    paces.push_back(json::object{{"measured", each.time},
                                 {"call_seconds", each.pace.call_s},
                                 {"byte_seconds", each.pace.byte_s},
                                 {"hardware", ToJson(each.hardware)}});
  }
  Keep(kProbeKind, identity, {{"disk_measured", kept.disk_time}, {"paces", std::move(paces)}});
}

absl::StatusOr<Measured> MeasureAll(const ProbeTarget& target) {
  Measured measured{.hardware = {}, .pace = {}, .time = std::time(nullptr)};
  PENSTOCK_ASSIGN_OR_RETURN(measured.hardware, ProbeMachine({.max_threads = NumThreads(target),
                                                             .total_seconds = target.seconds * kMachineShare,
                                                             .max_bytes = target.max_bytes}));
  Hardware& hardware = measured.hardware;
  PENSTOCK_ASSIGN_OR_RETURN(measured.pace, Host(target).Measure(hardware.processors.at(0)));
  if (const std::optional<DeviceSpec> gpu = GpuOf(target); gpu.has_value()) {
    const absl::Status done = MeasureGpu(target, *gpu, hardware);
    if (!done.ok()) LogWarning("the GPU is left out: {}", Message(done));
  }
  const bool reads_model = ReadsModel(target);
  if (!reads_model && target.disk_dir.empty()) return measured;
  absl::StatusOr<Link> disk = MeasureDiskOf(target, target.seconds * (1 - kMachineShare));
  if (disk.ok()) {
    hardware.links.push_back(*std::move(disk));
  } else if (reads_model) {
    return disk.status();
  } else {
    LogWarning("the disk is left out: {}", Message(disk.status()));
  }
  return measured;
}

// Moves the machine at the CPU's pace of this moment to the end; measures it if it is not there. Returns whether it
// did.
absl::StatusOr<bool> FindPace(const ProbeTarget& target, Kept& kept) {
  Host host(target);
  PENSTOCK_ASSIGN_OR_RETURN(const HostPace pace, host.Pace());
  const auto found = std::ranges::find_if(kept.paces, [&](const Measured& each) { return each.pace.IsNear(pace); });
  if (found != kept.paces.end()) {
    std::rotate(found, found + 1, kept.paces.end());
    return false;
  }
  LogInfo("the CPU is faster or slower than when it was measured");
  Measured measured{.hardware = kept.paces.back().hardware, .pace = {}, .time = std::time(nullptr)};
  PENSTOCK_ASSIGN_OR_RETURN(measured.pace, host.Measure(measured.hardware.processors.at(0)));
  if (kept.paces.size() == kMaxPaces) kept.paces.erase(kept.paces.begin());
  kept.paces.push_back(std::move(measured));
  return true;
}

}  // namespace

absl::StatusOr<Hardware> Probe(const ProbeTarget& target) {
  PENSTOCK_ASSIGN_OR_RETURN(Measured measured, MeasureAll(target));
  return std::move(measured.hardware);
}

absl::StatusOr<Hardware> ProbeAndKeep(const ProbeTarget& target) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::object identity, IdentityOf(target));
  PENSTOCK_ASSIGN_OR_RETURN(Measured measured, MeasureAll(target));
  Kept kept{.paces = {}, .disk_time = std::time(nullptr)};
  kept.paces.push_back(std::move(measured));
  WriteCache(identity, kept);
  return std::move(kept.paces.front().hardware);
}

absl::StatusOr<std::optional<Hardware>> KeptProbe(const ProbeTarget& target) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::object identity, IdentityOf(target));
  Kept kept = ReadCache(identity);
  if (kept.paces.empty()) return std::nullopt;
  return std::move(kept.paces.back().hardware);
}

absl::StatusOr<Hardware> CachedProbe(const ProbeTarget& target) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::object identity, IdentityOf(target));
  Kept kept = ReadCache(identity);
  if (kept.paces.empty()) return ProbeAndKeep(target);
  bool is_changed = false;
  if (MemoryProbe::DefaultBytes(NumThreads(target), target.max_bytes).ok()) {  // else there is no room to measure
    PENSTOCK_ASSIGN_OR_RETURN(is_changed, FindPace(target, kept));
  }
  Measured& measured = kept.paces.back();
  LogInfo("this machine as it was measured on {} (penstock probe measures it again)", DateOf(measured.time));
  const int64_t now = std::time(nullptr);
  const bool is_new = now >= kept.disk_time && now < kept.disk_time + kDiskSeconds;
  // Without a model's files a file would have to be written, which takes longer than it is worth.
  if (measured.hardware.FindLink("disk_to_dram") != nullptr && !is_new && ReadsModel(target)) {
    PENSTOCK_ASSIGN_OR_RETURN(const Link disk,
                              MeasureDiskOf(target, kAgainShare * target.seconds * (1 - kMachineShare)));
    for (Measured& each : kept.paces) {
      if (Link* link = each.hardware.FindLink("disk_to_dram"); link != nullptr) *link = disk;
    }
    kept.disk_time = now;
    is_changed = true;
  }
  if (is_changed) WriteCache(identity, kept);
  return std::move(measured.hardware);
}

}  // namespace penstock
