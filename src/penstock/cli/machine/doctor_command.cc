// Looks at this machine and a model, in about a second, and says what would make Penstock faster here.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/cgroup.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/base/thread_pool.h"
#include "penstock/cli/commands.h"
#include "penstock/device/device_spec.h"
#include "penstock/hardware/machine_memory.h"
#include "penstock/hardware/peaks.h"
#include "penstock/kernels/kernels.h"
#include "penstock/measure/disk_probe.h"
#include "penstock/model/family.h"
#include "penstock/plan/described_model.h"

namespace penstock::cli {
namespace {

constexpr size_t kMaxAdvice = 3;

// A line of the report: its name, its text, and its values in JSON.
struct Fact {
  std::string name, text;
  json::object values;
};

struct Report {
  std::vector<Fact> facts;
  std::vector<std::string> advice;  // the most important first

  void Add(std::string name, std::string text, json::object values) {
    facts.push_back({std::move(name), std::move(text), std::move(values)});
  }
  void Advise(std::string text) {
    if (advice.size() < kMaxAdvice) advice.push_back(std::move(text));
  }
};

void AddCpu(Report& report) {
  const char* forced = std::getenv("PENSTOCK_FORCE_ISA");
  const absl::StatusOr<kernels::Isa> isa = kernels::ChooseIsa(forced == nullptr ? "" : forced);
  const std::string isa_name(isa.ok() ? kernels::IsaName(*isa) : "none");
  const std::string model = CpuModel().empty() ? "unknown" : Printable(CpuModel());
  const int num_cpus = NumUsableCpus();
  const double quota = ReadCgroupLimits().num_cpus;
  const bool has_quota = std::isfinite(quota);
  report.Add("processor",
             fmt::format("{}; kernels for {}; {} usable CPUs{}", model, isa_name, num_cpus,
                         has_quota ? fmt::format(", cgroup limit {:.1f}", quota) : ""),
             {{"model", model},
              {"instruction_set", isa_name},
              {"usable_cpus", num_cpus},
              {"cgroup_cpus", has_quota ? json::value(quota) : json::value(nullptr)}});
}

void AddMemory(Report& report) {
  const MachineMemory memory = ReadMachineMemory();
  const uint64_t limit = ReadCgroupLimits().memory_bytes;
  const bool has_limit = limit <= memory.total_bytes;  // larger ones bound nothing
  report.Add("memory",
             fmt::format("{} in all, {} free; cgroup limit: {}", FormatBytes(memory.total_bytes),
                         FormatBytes(memory.available_bytes), has_limit ? FormatBytes(limit) : "none"),
             {{"total_bytes", memory.total_bytes},
              {"free_bytes", memory.available_bytes},
              {"cgroup_bytes", has_limit ? json::value(limit) : json::value(nullptr)}});
}

// Returns the chosen word of a file such as "always [madvise] never", or "unknown".
std::string ChosenWord(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text = {};
  const ssize_t size = file.valid() ? ::read(file.get(), text.data(), text.size()) : -1;
  const std::string_view words(text.data(), static_cast<size_t>(std::max<ssize_t>(0, size)));
  const size_t begin = words.find('[');
  const size_t end = words.find(']');
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return "unknown";
  return std::string(words.substr(begin + 1, end - begin - 1));
}

void AddPages(Report& report) {
  const std::string huge = ChosenWord("/sys/kernel/mm/transparent_hugepage/enabled");
  rlimit locked = {};
  const bool is_unlimited = ::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur == RLIM_INFINITY;
  report.Add("pages",
             fmt::format("transparent huge pages: {}; locked memory: {}", huge,
                         is_unlimited ? "unlimited" : FormatBytes(locked.rlim_cur)),
             {{"huge_pages", huge},
              {"locked_bytes", is_unlimited ? json::value(nullptr) : json::value(uint64_t{locked.rlim_cur})}});
  if (huge == "never") {
    report.Advise(
        "huge pages are off: as root, echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; with them, one "
        "machine "
        "read 2.2 instead of 1.2 GB/s");
  }
}

void AddGpu(Report& report) {
  const absl::StatusOr<std::optional<DeviceSpec>> device = ParseDevice("cuda");
  const bool is_usable = device.ok() && device->has_value();
  std::string text = Message(device.status());
  if (const size_t colon = text.find(": "); colon != std::string::npos) text.erase(0, colon + 2);  // the flag
  text = is_usable ? fmt::format("{}, {} of {} free", Printable((*device)->model), FormatBytes((*device)->free_bytes),
                                 FormatBytes((*device)->total_bytes))
                   : "none usable: " + text;
  report.Add("gpu", text,
             {{"usable", is_usable},
              {"model", is_usable ? json::value((*device)->model) : json::value(nullptr)},
              {"free_bytes", is_usable ? json::value((*device)->free_bytes) : json::value(nullptr)}});
}

// Adds how files are read, and returns the measured rate. Without a model nothing is measured: the result is 0.
double AddDisk(const LoadedModel* model, const std::string& folder, Report& report) {
  std::vector<OpenedFile> program;
  std::span<const OpenedFile> files;
  if (model != nullptr) {
    files = model->checkpoint.files();
  } else {
    UniqueFd self(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    program.push_back({.fd = std::move(self), .path = "/proc/self/exe", .size_bytes = 4096});
    files = program;
  }
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  json::object values = {{"free_bytes", error ? json::value(nullptr) : json::value(uint64_t{space.available})}};
  const std::string free_text = error ? "" : fmt::format("; {} free", FormatBytes(space.available));
  const absl::StatusOr<std::unique_ptr<DiskReader>> reader = DiskReader::Create(files, {});
  if (!reader.ok()) {
    values["error"] = Message(reader.status());
    report.Add("disk", Message(reader.status()) + free_text, std::move(values));
    return 0;
  }
  const std::string way = (*reader)->Description();
  const bool has_uring = way.find("io_uring") != std::string::npos;
  double rate = 0;
  if (model != nullptr) {
    const absl::StatusOr<Link> link =
        ProbeDisk(**reader, files,
                  {.sizes = {8 * kMiB}, .depths = {8}, .max_bytes = 64 * kMiB, .seconds = 0.3, .long_seconds = 0.7});
    if (link.ok()) rate = link->bytes_per_s;
  }
  const bool is_measured = rate > 0;
  values["reads_with"] = way;
  values["io_uring"] = has_uring;
  values["bytes_per_s"] = is_measured ? json::value(rate) : json::value(nullptr);
  const std::string speed = is_measured        ? fmt::format("{:.2f} GB/s", rate * 1e-9)
                            : model == nullptr ? "not measured without --model"
                                               : "too little memory to measure";
  report.Add("disk", fmt::format("{}, by {}{}", speed, way, free_text), std::move(values));
  if (!has_uring) {
    report.Advise(
        "the kernel forbids io_uring (a container's seccomp profile, or kernel.io_uring_disabled): allow it, so that "
        "reads need no threads");
  }
  if (model != nullptr && way.find("O_DIRECT") == std::string::npos) {
    report.Advise("the file system has no direct reads: put the model on a local ext4 or XFS disk");
  }
  return rate;
}

void AddModel(const DescribedModel& model, Report& report) {
  const LoadedModel& loaded = *model.loaded();
  const auto state = [](const absl::Status& status) { return status.ok() ? "OK" : Message(status); };
  const AnswerFormat& format = loaded.answer_format;
  const bool has_thoughts = format.has_reasoning() || format.form == CallForm::kHarmony;
  const bool has_calls = format.form != CallForm::kNone;
  report.Add("model",
             fmt::format("{} ({}), {} of weights, {} experts in each of {} layers", Printable(loaded.name),
                         loaded.config.family->name, FormatBytes(model.weights_bytes()), loaded.config.num_experts,
                         loaded.config.num_moe_layers()),
             {{"name", Printable(loaded.name)},
              {"family", std::string(loaded.config.family->name)},
              {"weights_bytes", model.weights_bytes()}});
  report.Add("texts",
             fmt::format("tokenizer: {}; chat template: {}; answers: {}, {}", state(loaded.tokenizer_status),
                         state(loaded.chat_template_status), has_thoughts ? "with reasoning" : "no reasoning",
                         has_calls ? "tool calls" : "no tool calls"),
             {{"tokenizer", state(loaded.tokenizer_status)},
              {"chat_template", state(loaded.chat_template_status)},
              {"reasoning", has_thoughts},
              {"tool_calls", has_calls}});
}

// Plans an engine as it would be opened without flags, and says what its reads of experts cost.
void AddPlan(const DescribedModel& model, double disk_bytes_per_s, Report& report) {
  EngineOptions options{.device = "cpu", .batch_size = 1};
  const absl::StatusOr<EngineRoom> room = RoomOf(options);
  const absl::StatusOr<EnginePlan> planned =
      room.ok() ? PlanEngine(options, model.engine_model(), *room) : room.status();
  if (!planned.ok()) {
    report.Add("plan", Message(planned.status()), {{"error", Message(planned.status())}});
    report.Advise("the model does not run in the free memory; penstock pack --quantize hqq4 makes weights smaller");
    return;
  }
  const MemoryPlan& plan = planned->policy.plan;
  const double slots = static_cast<double>(plan.num_expert_slots);
  const double share = std::min(1.0, slots / static_cast<double>(std::max<int64_t>(1, plan.num_experts_total)));
  const double expert_bytes = static_cast<double>(plan.expert_bytes) / std::max(1.0, slots);
  const ExpertLayouts& layouts = *planned->layouts;
  const double expert_read_bytes =
      layouts.decompresses() ? static_cast<double>(layouts.read_bytes(ExpertKey{0})) : expert_bytes;
  const double wanted =
      static_cast<double>(model.config().num_moe_layers() * model.config().num_topk) * expert_read_bytes;
  const double read_bytes = wanted * (1 - share);
  const double seconds = disk_bytes_per_s > 0 ? read_bytes / disk_bytes_per_s : 0;
  std::string text =
      fmt::format("{} of memory hold {:.0f}% of the experts", FormatBytes(plan.budget_bytes), 100 * share);
  if (read_bytes > 0) {
    text += fmt::format("; a token of one sequence reads about {}{}", FormatBytes(static_cast<uint64_t>(read_bytes)),
                        seconds > 0 ? fmt::format(", {:.2f} s", seconds) : "");
  }
  report.Add("plan", text,
             {{"budget_bytes", plan.budget_bytes}, {"resident_share", share}, {"read_bytes_per_token", read_bytes}});
  if (read_bytes <= 0) return;
  const bool is_packed = !model.loaded()->checkpoint.files().empty() &&
                         planned->model_formats.ffn != WeightFormat::kF32 &&
                         planned->model_formats.ffn != WeightFormat::kBF16;
  if (!is_packed) {
    report.Advise(
        "penstock pack --quantize int8 (or hqq4): experts have a half (a quarter) of bf16's bytes, so a token waits at "
        "most half (a quarter) as long for the disk; answers change a little");
  }
  const double missing_bytes = (static_cast<double>(plan.num_experts_total) - slots) * expert_bytes;
  if (missing_bytes <= static_cast<double>(kGiB)) {
    report.Advise(fmt::format("{} more of memory hold all experts, and then nothing is read while it generates",
                              FormatBytes(static_cast<uint64_t>(missing_bytes))));
  } else {
    report.Advise(
        fmt::format("each further GiB of memory holds {:.0f} more of {} experts: {:.1f}% fewer bytes are read",
                    static_cast<double>(kGiB) / expert_bytes, plan.num_experts_total,
                    100 * static_cast<double>(kGiB) / missing_bytes));
  }
  report.Advise(
      "answer many requests at once (penstock run): a read of an expert then serves all sequences of the batch");
}

std::string TextOf(const Report& report) {
  std::string out;
  for (const Fact& fact : report.facts) out += fmt::format("{:<10} {}\n", fact.name, fact.text);
  for (const std::string& advice : report.advice) out += fmt::format("{:<10} {}\n", "faster:", advice);
  if (report.advice.empty()) out += "nothing here would make it faster\n";
  return out;
}

json::object JsonOf(const Report& report) {
  json::object out;
  for (const Fact& fact : report.facts) out[fact.name] = fact.values;
  json::array advice;
  for (const std::string& one : report.advice) advice.emplace_back(one);
  out["advice"] = std::move(advice);
  return out;
}

}  // namespace

absl::StatusOr<int> DoctorCommand(const DoctorFlags& flags) {
  Report report;
  std::optional<DescribedModel> model;
  if (!flags.model_dir.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(model, DescribedModel::FromFolder(flags.model_dir));
  }
  AddPages(report);
  const double rate = AddDisk(model.has_value() ? model->loaded() : nullptr,
                              model.has_value() ? flags.model_dir : std::string("."), report);
  if (model.has_value()) {
    AddModel(*model, report);
    AddPlan(*model, rate, report);
  }
  AddMemory(report);
  AddCpu(report);
  AddGpu(report);
  const std::string text = flags.as_json ? std::string(json::serialize(JsonOf(report))) + "\n" : TextOf(report);
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, text, "stdout"));
  return 0;
}

}  // namespace penstock::cli
