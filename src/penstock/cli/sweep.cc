#include "penstock/cli/sweep.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/memory/eviction.h"
#include "penstock/plan/log_plot.h"
#include "penstock/schedule/schedule.h"
#include "penstock/simulate/policy_search.h"

namespace penstock::cli {
namespace {

enum class Knob { kCpuMemory, kGpuMemory, kDisk, kLink, kBatchSize };
struct KnobName {
  std::string_view name;
  Knob knob;
  std::string_view column;
  std::string_view label;
};
constexpr KnobName kKnobs[] = {{"cpu-memory", Knob::kCpuMemory, "cpu_memory_gib", "DRAM budget in GiB"},
                               {"gpu-memory", Knob::kGpuMemory, "gpu_memory_gib", "GPU memory in GiB"},
                               {"disk", Knob::kDisk, "disk_gb_per_second", "disk in GB/s"},
                               {"link", Knob::kLink, "link_gb_per_second", "link from DRAM to the GPU in GB/s"},
                               {"batch-size", Knob::kBatchSize, "batch_size", "sequences at once"}};

struct Sweep {
  KnobName knob;
  uint64_t first = 0, last = 0;
};

absl::Status Malformed(std::string_view spec) {
  return UsageError("--sweep '{}': expected cpu-memory, gpu-memory, disk, link or batch-size =FROM..TO",
                    Printable(spec));
}

absl::StatusOr<uint64_t> ParseValue(Knob knob, std::string_view text) {
  if (knob != Knob::kBatchSize) return ParseBytes(text);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number <= uint64_t{kMaxBatchSize}) return number;
  return UsageError("expected a whole number from 1 to {}, found '{}'", kMaxBatchSize, Printable(text));
}

absl::StatusOr<Sweep> ParseSweep(std::string_view spec) {
  const size_t equals = spec.find('='), dots = spec.find("..");
  if (equals == std::string_view::npos || dots == std::string_view::npos || dots < equals) return Malformed(spec);
  const auto knob = std::find_if(std::begin(kKnobs), std::end(kKnobs),
                                 [&](const KnobName& k) { return k.name == spec.substr(0, equals); });
  if (knob == std::end(kKnobs)) return Malformed(spec);
  Sweep sweep{.knob = *knob};
  for (auto [text, target] : {std::pair(spec.substr(equals + 1, dots - equals - 1), &sweep.first),
                              std::pair(spec.substr(dots + 2), &sweep.last)}) {
    const absl::StatusOr<uint64_t> value = ParseValue(knob->knob, text);
    if (!value.ok()) return Annotate(value.status(), "--sweep");
    *target = *value;
  }
  if (sweep.first == 0 || sweep.last < sweep.first) {
    return UsageError("--sweep '{}': expected a first value above 0 and no larger than the last", Printable(spec));
  }
  return sweep;
}

void SetLinks(Hardware& hardware, std::initializer_list<std::string_view> names, double bytes_per_s) {
  for (Link& link : hardware.links) {
    if (std::find(names.begin(), names.end(), link.name) != names.end()) link.SetRate(bytes_per_s);
  }
}

void Set(Knob knob, uint64_t value, Hardware& hardware, EngineOptions& options) {
  switch (knob) {
    case Knob::kCpuMemory: options.memory_bytes = value; break;
    case Knob::kGpuMemory: options.device_memory_bytes = value; break;
    case Knob::kDisk: SetLinks(hardware, {"disk_to_dram"}, static_cast<double>(value)); break;
    case Knob::kLink: SetLinks(hardware, {"dram_to_device", "device_to_dram"}, static_cast<double>(value)); break;
    case Knob::kBatchSize: options.batch_size = static_cast<int64_t>(value); break;
  }
}

// Returns a value in the unit of the axis and the table.
double Shown(Knob knob, uint64_t value) {
  switch (knob) {
    case Knob::kCpuMemory:
    case Knob::kGpuMemory: return static_cast<double>(value) / static_cast<double>(kGiB);
    case Knob::kDisk:
    case Knob::kLink: return static_cast<double>(value) * 1e-9;
    case Knob::kBatchSize: break;
  }
  return static_cast<double>(value);
}

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // value, tokens per second
};

std::string DrawCurves(std::vector<Curve> curves, const Sweep& sweep, const std::string& title) {
  // Lists the legend in the order in which the curves end.
  std::stable_sort(curves.begin(), curves.end(),
                   [](const Curve& a, const Curve& b) { return a.points.back().second > b.points.back().second; });
  LogPlot::Axis x{.low = Shown(sweep.knob.knob, sweep.first),
                  .high = Shown(sweep.knob.knob, sweep.last),
                  .label = std::string(sweep.knob.label)};
  LogPlot::Axis y{.low = 1e300, .high = 0, .label = "generated tokens per second"};
  for (const Curve& curve : curves) {
    for (const auto& [value, rate] : curve.points) {
      y.low = std::min(y.low, rate);
      y.high = std::max(y.high, rate);
    }
  }
  LogPlot plot(title, x, y, /*headroom=*/0.02);
  constexpr const char* kColours[] = {"#1b6ca8", "#c0392b", "#117a65", "#6c3483", "#b9770e", "#34495e",
                                      "#7d6608", "#d35e9e", "#2eaadc", "#7f8c8d", "#28a745"};
  size_t i = 0;
  for (const Curve& curve : curves) {
    const std::string_view colour = kColours[i++ % std::size(kColours)];
    for (size_t p = 0; p < curve.points.size(); ++p) {
      const auto& [value, rate] = curve.points[p];
      plot.Dot(value, rate, colour);
      if (p > 0) plot.Line(curve.points[p - 1].first, curve.points[p - 1].second, value, rate, colour);
    }
    plot.Legend(curve.name, colour);
  }
  return plot.Svg();
}

}  // namespace

absl::Status RunSweep(const Described& described, const std::string& spec, const std::string& plot_path) {
  PENSTOCK_ASSIGN_OR_RETURN(const Sweep sweep, ParseSweep(spec));
  // Each schedule is searched separately: a search over all of them may drop one early for a better one.
  std::vector<std::optional<ScheduleKind>> schedules;
  if (described.all_schedules) {
    for (const ScheduleTraits& schedule : Schedules()) schedules.emplace_back(schedule.value);
  } else {
    schedules = {described.options.policy.schedule};
  }
  std::vector<Curve> curves;
  std::string table =
      fmt::format("{},schedule,device,places,micro_batch_size,prefill_chunk,tokens_per_second\n", sweep.knob.column);
  absl::Status refusal;
  const auto add = [&](uint64_t value, const PolicyChoice& choice, const std::string& name) {
    const double shown = Shown(sweep.knob.knob, value), rate = choice.estimate.generation_tokens_per_s();
    table +=
        fmt::format("{:g},{},{},{},{},{},{:.4g}\n", shown, TraitsOf(choice.plan.schedule).name, choice.options.device,
                    choice.num_places, choice.plan.micro_batch_size, choice.plan.prefill_chunk, rate);
    auto curve = std::find_if(curves.begin(), curves.end(), [&](const Curve& c) { return c.name == name; });
    if (curve == curves.end()) curve = curves.insert(curves.end(), Curve{.name = name, .points = {}});
    curve->points.emplace_back(shown, rate);
  };
  for (uint64_t value = sweep.first;; value = std::min(value * 2, sweep.last)) {
    for (const std::optional<ScheduleKind> schedule : schedules) {
      Hardware hardware = described.hardware;
      EngineOptions options = described.options;
      options.policy.schedule = schedule;
      Set(sweep.knob.knob, value, hardware, options);
      const auto choices = SearchPolicies(described.model, hardware, described.workload, options);
      if (!choices.ok()) {
        refusal = choices.status();
        continue;
      }
      // One schedule shows its best processor; several show each of theirs.
      const size_t num_shown = schedules.size() > 1 ? choices->size() : 1;
      for (const PolicyChoice& choice : std::span(*choices).first(num_shown)) {
        add(value, choice,
            schedules.size() > 1
                ? fmt::format("{} on the {}", TraitsOf(choice.plan.schedule).name, choice.options.device)
                : std::string("best policy"));
      }
    }
    if (value == sweep.last) break;
  }
  if (curves.empty()) return refusal;
  if (!plot_path.empty()) {
    PENSTOCK_RETURN_IF_ERROR(WriteFile(
        plot_path, DrawCurves(curves, sweep, fmt::format("{}: {}", described.model.name(), sweep.knob.label))));
  }
  return WriteFully(STDOUT_FILENO, table, "stdout");
}

}  // namespace penstock::cli
