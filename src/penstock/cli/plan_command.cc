#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <utility>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/base/thread_pool.h"
#include "penstock/cli/flags/described_flags.h"
#include "penstock/cli/output_file.h"
#include "penstock/hardware/presets.h"
#include "penstock/memory/eviction.h"
#include "penstock/plan/policy_file.h"
#include "penstock/schedule/schedule.h"
#include "penstock/simulate/policy_roofline.h"
#include "penstock/simulate/policy_search.h"

namespace penstock::cli {
namespace {

// Returns the name of a lane in words that need no glossary.
std::string_view LaneWords(std::string_view lane) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"host_compute", "computing on the CPU"},
      {"device_compute", "computing on the GPU"},
      {"disk_to_dram", "reading from the disk"},
      {"dram_to_device", "the link from DRAM to the GPU"},
      {"device_to_dram", "the link from the GPU to DRAM"},
      {"dram_to_pinned", "copying inside DRAM"},
      {"host_finish", "checking what the disk brought"},
      {"to_ranks", "sending to other machines"},
      {"from_ranks", "receiving from other machines"},
  };
  for (const auto& [name, words] : kWords) {
    if (name == lane) return words;
  }
  return lane;
}

// Returns the lanes that are busy in a decode step, the busiest first.
std::vector<LaneUsage> BusyLanes(const RunEstimate& estimate) {
  std::vector<LaneUsage> lanes;
  for (const LaneUsage& lane : estimate.decode_lanes) {
    if (lane.busy_s > 0.001 * estimate.decode_step_s) lanes.push_back(lane);
  }
  std::stable_sort(lanes.begin(), lanes.end(),
                   [](const LaneUsage& a, const LaneUsage& b) { return a.busy_s > b.busy_s; });
  return lanes;
}

// A purchase or a change, and its effect.
struct WhatIf {
  std::string change;
  RunEstimate estimate;
};

class WhatIfs {
 public:
  WhatIfs(const Described& described, const std::string& config_path, const PolicyChoice& best, DrawnChoices& drawn)
      : described_(described), config_path_(config_path), best_(best), drawn_(drawn) {}

  std::vector<WhatIf> Run() {
    Hardware hardware = described_.hardware;
    const bool has_device = best_.options.device == "gpu";
    if (MemoryTier* dram = hardware.FindTier("dram"); dram != nullptr && !AllInDram()) {
      dram->capacity_bytes *= 2;
      Try("twice the DRAM", hardware, [](EngineOptions& o) { o.memory_bytes *= 2; });
    }
    if (!AllInDram()) TryLinks("a disk twice as fast", {"disk_to_dram"});
    if (has_device) {
      TryLinks("a link to the GPU twice as fast", {"dram_to_device", "device_to_dram"});
      Try("twice the GPU memory", described_.hardware, [](EngineOptions& o) { o.device_memory_bytes *= 2; });
      TryProcessor("a GPU twice as fast, its memory too", "gpu");
    }
    TryProcessor("a CPU twice as fast, its memory too", "cpu");
    if (hardware.num_ranks > 1) {
      TryLinks("a network twice as fast", {kRankLink});
      TryCutExperts();
    }
    if (!has_device) TryRank();
    TryFormats();
    Search();
    std::stable_sort(whatifs_.begin(), whatifs_.end(), [](const WhatIf& a, const WhatIf& b) {
      return a.estimate.generation_tokens_per_s() > b.estimate.generation_tokens_per_s();
    });
    return std::move(whatifs_);
  }

 private:
  bool AllInDram() const { return !ReadsFromDisk(best_.plan); }
  void TryLinks(const std::string& change, std::initializer_list<std::string_view> names) {
    Hardware hardware = described_.hardware;
    for (const std::string_view name : names) {
      if (Link* link = hardware.FindLink(name)) link->SetRate(2 * link->bytes_per_s);
    }
    Try(change, hardware, [](EngineOptions&) {});
  }
  // Tries another machine of the same kind. A machine that is alone gets an ordinary network.
  void TryRank() {
    Hardware hardware = described_.hardware;
    if (++hardware.num_ranks > described_.model.config().num_stored_experts()) return;
    std::string change = "another machine like this";
    if (hardware.FindLink(kRankLink) == nullptr) {
      const absl::StatusOr<Link> network = NetworkPreset(kUsualNetwork);
      if (!network.ok()) return;
      hardware.links.push_back(*network);
      change += fmt::format(" ({})", kUsualNetwork);
    }
    Try(change, hardware, [](EngineOptions&) {});
  }
  // Tries parts of every expert on each machine instead of whole experts.
  void TryCutExperts() {
    if (described_.options.policy.expert_parallel.has_value()) return;
    Try("parts of every expert on each machine: --parallel experts=tp (answers change in the last bits)",
        described_.hardware, [](EngineOptions& o) { o.policy.expert_parallel = ExpertParallel::kCut; });
  }
  void TryProcessor(const std::string& change, std::string_view name) {
    Hardware hardware = described_.hardware;
    Processor* processor = hardware.FindProcessor(name);
    if (processor == nullptr) return;
    for (ComputePeak& peak : processor->peaks) {
      for (ComputeRate& rate : peak.rates) rate.ops_per_s *= 2;
    }
    for (GemmRates& rates : processor->gemm) {
      for (GemmPoint& point : rates.points) point.seconds_per_byte /= 2;
      rates.pack_s /= 2;
    }
    for (AttentionRates& rates : processor->attention) {
      rates.bytes_per_s *= 2;
      rates.ops_per_s *= 2;
      rates.call_s /= 2;
    }
    for (RowRates& rates : processor->rows) {
      rates.draw_s /= 2;
      for (RowPoint& point : rates.points) {
        point.embed_s /= 2;
        point.attention_s /= 2;
        point.routed_s /= 2;
      }
    }
    if (MemoryTier* tier = hardware.FindTier(processor->tier)) {
      for (MemoryRates& rates : tier->rates) {
        rates.read_bytes_per_s *= 2;
        rates.write_bytes_per_s *= 2;
        rates.copy_bytes_per_s *= 2;
      }
    }
    Try(change, hardware, [](EngineOptions&) {});
  }
  // Tries fewer bits for KV entries and weights, which changes answers a little. The weights of a model folder are
  // fixed.
  void TryFormats() {
    if (described_.options.kv_dtype != KvFormat::kInt8) {
      Try("the KV cache in int8 (answers change a little)", described_.hardware,
          [](EngineOptions& o) { o.kv_dtype = KvFormat::kInt8; });
    }
    if (config_path_.empty()) return;
    for (const std::string format : {"int8", "hqq4"}) {
      absl::StatusOr<DescribedModel> model = DescribedModel::FromConfig(config_path_, format);
      const Processor* cpu = described_.hardware.FindProcessor("cpu");
      const bool is_known = cpu->gemm.empty() || cpu->FindGemm(format, Arithmetic::kInt8, cpu->gemm[0].num_threads);
      if (!model.ok() || model->weights_bytes() >= described_.model.weights_bytes() || !is_known) continue;
      other_models_.push_back(*std::move(model));
      Try(fmt::format("weights in {} (answers change a little)", format), described_.hardware, [](EngineOptions&) {});
      changes_.back().model = &other_models_.back();
    }
  }
  // Finds the best policy with the change, for the same schedule on the same processor.
  template <typename Apply>
  void Try(const std::string& change, const Hardware& hardware, Apply apply) {
    EngineOptions options = described_.options;
    options.device = best_.options.device;
    options.policy.schedule = best_.options.policy.schedule;
    options.memory_bytes = best_.options.memory_bytes;
    options.device_memory_bytes = best_.options.device_memory_bytes;
    apply(options);
    changes_.push_back({change, hardware, std::move(options), &described_.model});
  }
  void Search() {
    std::vector<std::optional<RunEstimate>> estimates(changes_.size());
    ThreadPool pool(std::min(NumUsableCpus(), static_cast<int>(changes_.size())), ThreadPool::Pinned::kNo);
    pool.ParallelFor(std::ssize(changes_), [&](int64_t i, int) {
      const Change& change = changes_[i];
      const absl::StatusOr<std::vector<PolicyChoice>> choices =
          SearchPolicies(*change.model, change.hardware, described_.workload, change.options,
                         {.near = &best_.options, .num_threads = 1, .drawn = &drawn_});
      if (choices.ok()) estimates[i] = choices->front().estimate;
    });
    for (size_t i = 0; i < changes_.size(); ++i) {
      if (estimates[i].has_value()) whatifs_.push_back({changes_[i].words, *std::move(estimates[i])});
    }
  }

  static constexpr std::string_view kUsualNetwork = "10gbe";

  struct Change {
    std::string words;
    Hardware hardware;
    EngineOptions options;
    const DescribedModel* model;
  };

  const Described& described_;
  const std::string& config_path_;
  std::deque<DescribedModel> other_models_;
  const PolicyChoice& best_;
  DrawnChoices& drawn_;
  std::vector<Change> changes_;
  std::vector<WhatIf> whatifs_;
};

double Gain(const RunEstimate& estimate, const RunEstimate& base) {
  return estimate.generation_tokens_per_s() / base.generation_tokens_per_s() - 1;
}

// Returns a line, broken at spaces where it has more than 100 columns. Words behind a break stand where those of `text`
// begin.
std::string Wrapped(std::string line, std::string_view text) {
  constexpr size_t kColumns = 100;
  const std::string indent = "\n" + std::string(line.size(), ' ');
  size_t column = line.size();
  for (const size_t begin = line.size(); !text.empty();) {
    const size_t end = std::min(text.find(' '), text.size());
    const bool is_first = column == begin;
    if (!is_first && column + 1 + end > kColumns) {
      line += indent;
      column = begin;
    } else if (!is_first) {
      line += ' ';
      ++column;
    }
    line += text.substr(0, end);
    column += end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return line + "\n";
}

// Returns "+12 %": a rate compared with the best policy's.
std::string Compared(const RunEstimate& estimate, const RunEstimate& base) {
  const double percent = 100 * Gain(estimate, base);
  return std::abs(percent) < 1.5 ? "the same" : fmt::format("{:+.0f} %", percent);
}

std::string Duration(double seconds) {
  if (seconds < 0.1) return fmt::format("{:.3g} milliseconds", 1000 * seconds);
  if (seconds < 10) return fmt::format("{:.2g} seconds", seconds);
  if (seconds < 120) return fmt::format("{:.1f} seconds", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} minutes", seconds / 60);
  if (seconds < 172800) return fmt::format("{:.1f} hours", seconds / 3600);
  return fmt::format("{:.1f} days", seconds / 86400);
}

std::string PolicyWords(const PolicyChoice& choice) {
  const MemoryPlan& plan = choice.plan;
  std::string words = fmt::format("schedule {} on the {}, N = {} requests at once", TraitsOf(plan.schedule).name,
                                  choice.options.device == "gpu" ? "GPU" : "CPU", choice.num_places);
  if (plan.micro_batch_size > 0 && plan.micro_batch_size < plan.batch_size) {
    words += fmt::format(" in micro-batches of {}", plan.micro_batch_size);
  }
  words += fmt::format(", at most {} tokens of prompts a step", plan.prefill_chunk);
  if (plan.num_ranks > 1) words += fmt::format(", on each of {} machines", plan.num_ranks);
  if (plan.shares_heads) words += ", which divide attention by heads";
  if (plan.device.holds_kv_cache) words += ", KV cache on the GPU";
  return words;
}

// Returns which lanes are busy while the plan decodes, and so what limits it. `lanes` are the busiest first.
std::string WhatLimits(const std::vector<LaneUsage>& lanes, double step_s) {
  std::vector<std::string> words;
  for (size_t i = 0; i < lanes.size() && i < 3; ++i) {
    words.push_back(
        fmt::format("{} ({}{:.0f} %", LaneWords(lanes[i].name), i == 0 ? "busy " : "", 100 * lanes[i].busy_s / step_s));
  }
  if (words.empty()) return "While it decodes nothing limits it";
  constexpr double kLimits = 0.6;  // of the time; otherwise lanes wait for each other
  const bool is_limited = lanes[0].busy_s >= kLimits * step_s;
  std::string text =
      fmt::format("While it decodes {} {} of the time)",
                  is_limited ? "it is limited by" : "each part waits for the others; the busiest is", words[0]);
  if (words.size() > 1) {
    text += fmt::format("; next {} {})", words.size() > 2 ? "come" : "comes",
                        fmt::join(words.begin() + 1, words.end(), ") and "));
  }
  return text;
}

// Returns the first three lines: whether it runs, how fast, and what limits it.
std::string Answers(const Described& described, const PolicyChoice& best) {
  const RunEstimate& e = best.estimate;
  std::string text = fmt::format("It runs with --context-length {} (prompt and answer): {}.\n",
                                 best.plan.context_length, ModelLine(described.model));
  text += fmt::format(
      "All requests together get {:.1f} tokens per second, the time for prompts included: {} ({}) in {}.\n",
      e.generation_tokens_per_s(), e.num_requests == 1 ? "1 request" : fmt::format("{} requests", e.num_requests),
      WorkloadLine({.prompt_tokens = described.workload.prompt_tokens,
                    .max_prompt_tokens = described.workload.max_prompt_tokens,
                    .new_tokens = described.workload.new_tokens}),
      Duration(e.total_s()));
  return text + WhatLimits(BusyLanes(e), e.decode_step_s) + ".\n";
}

std::string Rates(const RunEstimate& e) {
  return fmt::format(
      "\nspeed\n"
      "  prompts (prefill)  {:>10.1f} tokens/s  {}\n"
      "  answers (decode)   {:>10.1f} tokens/s  {}; each request gets a token about every {}\n",
      e.prefill_s > 0 ? static_cast<double>(e.prompt_tokens) / e.prefill_s : 0, Duration(e.prefill_s),
      e.decode_s > 0 ? static_cast<double>(e.generated_tokens) / e.decode_s : 0, Duration(e.decode_s),
      Duration(e.decode_step_s));
}

std::string Memory(const PolicyChoice& best) {
  const MemoryPlan& plan = best.plan;
  std::string text = "\nwhere every byte goes\n";
  const auto row = [&](std::string_view tier, std::string_view what, uint64_t bytes, const std::string& note) {
    if (bytes > 0) {
      text += fmt::format("  {:<5}{:<34}{:>11}{}\n", tier, what, FormatBytes(bytes), note);
    }
  };
  const auto experts = [&](int64_t num_slots, int64_t num_pinned) {
    std::string note = fmt::format("  room for {} of the model's {} experts", num_slots, plan.num_experts_total);
    if (num_slots == plan.num_experts_total) return note;
    return note + fmt::format(": {} stay, {} pass through", num_pinned, num_slots - num_pinned);
  };
  const bool has_device = best.options.device == "gpu";
  if (has_device) {
    const DevicePlan& device = plan.device;
    row("GPU", "experts", device.expert_bytes, experts(device.num_expert_slots, device.num_pinned_experts));
    row("GPU", "attention, router, norms", device.dense_bytes, "");
    row("GPU", device.holds_kv_cache ? "KV cache" : "KV cache, on its way", device.kv_bytes, "");
    row("GPU", "activations", device.activation_bytes, "");
  }
  row("DRAM", "experts", plan.expert_bytes, experts(plan.num_expert_slots, plan.num_pinned_experts));
  row("DRAM", has_device ? "embedding" : "attention, router, norms, embedding", plan.dense_bytes, "");
  row("DRAM", "KV cache", has_device && plan.device.holds_kv_cache ? 0 : plan.kv_bytes, "");
  row("DRAM", "activations", plan.activation_bytes, "");
  row("DRAM", "tokenizer, tables, buffers", plan.fixed_bytes, "");
  return text;
}

// Returns how a choice computes, without what has columns of its own.
std::string OtherWords(const PolicyChoice& choice, bool has_gpu) {
  const MemoryPlan& plan = choice.plan;
  std::string words;
  if (has_gpu) words += choice.options.device == "gpu" ? " on the GPU" : " on the CPU";
  if (plan.micro_batch_size > 0 && plan.micro_batch_size < plan.batch_size) {
    words += fmt::format(", micro-batches of {}", plan.micro_batch_size);
  }
  if (plan.shares_heads) words += ", attention divided by heads";
  if (plan.device.holds_kv_cache) words += ", KV cache on the GPU";
  return words;
}

// Returns a table of all choices but the best. Schedules with the same figures share a row.
std::string OtherSchedules(const std::vector<PolicyChoice>& choices) {
  struct Row {
    std::string figures, words;
    std::vector<std::string_view> schedules;
  };
  const bool has_gpu = std::ranges::any_of(choices, [](const PolicyChoice& c) { return c.options.device == "gpu"; });
  std::vector<Row> rows;
  for (size_t i = 1; i < choices.size(); ++i) {
    const MemoryPlan& plan = choices[i].plan;
    Row row{fmt::format("  {:>10.1f}  {:>8}  {:>5}  {:>18}  ", choices[i].estimate.generation_tokens_per_s(),
                        Compared(choices[i].estimate, choices[0].estimate), choices[i].num_places, plan.prefill_chunk),
            OtherWords(choices[i], has_gpu),
            {TraitsOf(plan.schedule).name}};
    const auto same = std::ranges::find_if(
        rows, [&](const Row& other) { return other.figures == row.figures && other.words == row.words; });
    if (same == rows.end()) {
      rows.push_back(std::move(row));
    } else {
      same->schedules.push_back(row.schedules[0]);
    }
  }
  if (rows.empty()) return "";
  std::string text = fmt::format(
      "\nother schedules, compared with this plan (those far behind are rough)\n"
      "  {:>10}  {:>8}  {:>5}  {:>18}  schedules\n",
      "tokens/s", "", "N", "prompt tokens/step");
  for (const Row& row : rows) {
    text += Wrapped(row.figures, fmt::format("{}{}", fmt::join(row.schedules, ", "), row.words));
  }
  return text;
}

// Returns what the plan assumes of the workload; empty when the user said it.
std::string Assumed(const Described& described, const std::string& workload) {
  if (workload == kPlanWorkload) {
    return fmt::format(
        "No --workload is given, so this one is assumed: {}. "
        "Numbers of your own change the plan.\n",
        workload);
  }
  if (described.workload.num_requests == 0) {
    return "As many requests are assumed as are computed at once; --workload ...,requests=N gives their number.\n";
  }
  return "";
}

std::string Text(const Described& described, const std::string& workload, const std::vector<PolicyChoice>& choices,
                 const std::vector<WhatIf>& whatifs) {
  const PolicyChoice& best = choices.front();
  std::string text = Answers(described, best) + Assumed(described, workload);
  text += fmt::format("\npolicy\n  {}\n", PolicyWords(best));
  const std::optional<int64_t> hides =
      BatchThatHidesTransfers(best, described.model, described.hardware, described.workload);
  if (!hides.has_value()) {
    text += "  no batch is large enough to hide the transfers of weights behind computing\n";
  } else if (*hides > 0) {
    text += fmt::format("  computing hides the transfers of weights from about N = {} on\n", *hides);
  }
  text += Rates(best.estimate) + Memory(best) + OtherSchedules(choices);
  if (!whatifs.empty()) text += "\nwhat would help, each by itself\n";
  for (const WhatIf& whatif : whatifs) {
    text += Wrapped(fmt::format("  {:>10.1f} tokens/s  {:>8}  ", whatif.estimate.generation_tokens_per_s(),
                                Compared(whatif.estimate, best.estimate)),
                    whatif.change);
  }
  return text;
}

json::object ToJson(const RunEstimate& e) {
  json::object lanes;
  for (const LaneUsage& lane : BusyLanes(e)) lanes[lane.name] = lane.busy_s / e.decode_step_s;
  return {{"requests", e.num_requests},
          {"prompt_tokens", e.prompt_tokens},
          {"computed_prompt_tokens", e.computed_prompt_tokens},
          {"generated_tokens", e.generated_tokens},
          {"seconds", json::object{{"prefill", e.prefill_s}, {"decode", e.decode_s}, {"total", e.total_s()}}},
          {"decode_step_seconds", e.decode_step_s},
          {"generation_tokens_per_second", e.generation_tokens_per_s()},
          {"lanes", std::move(lanes)}};
}

json::object ToJson(const PolicyChoice& choice) {
  const MemoryPlan& plan = choice.plan;
  return {{"device", choice.options.device},
          {"policy", PolicyJson(choice.options)},
          {"memory", json::object{{"expert_bytes", plan.expert_bytes},
                                  {"dense_bytes", plan.dense_bytes},
                                  {"kv_bytes", plan.device.holds_kv_cache ? 0 : plan.kv_bytes},
                                  {"activation_bytes", plan.activation_bytes},
                                  {"fixed_bytes", plan.fixed_bytes},
                                  {"expert_slots", plan.num_expert_slots},
                                  {"pinned_experts", plan.num_pinned_experts},
                                  {"experts", plan.num_experts_total}}},
          {"device_memory", json::object{{"expert_bytes", plan.device.expert_bytes},
                                         {"dense_bytes", plan.device.dense_bytes},
                                         {"kv_bytes", plan.device.kv_bytes},
                                         {"activation_bytes", plan.device.activation_bytes},
                                         {"expert_slots", plan.device.num_expert_slots},
                                         {"pinned_experts", plan.device.num_pinned_experts}}},
          {"predicted", ToJson(choice.estimate)}};
}

std::string Json(const Described& described, const std::vector<PolicyChoice>& choices,
                 const std::vector<WhatIf>& whatifs) {
  json::array list, helps;
  for (const PolicyChoice& choice : choices) list.push_back(ToJson(choice));
  for (const WhatIf& whatif : whatifs) {
    helps.push_back(json::object{{"change", whatif.change},
                                 {"generation_tokens_per_second", whatif.estimate.generation_tokens_per_s()},
                                 {"gain", Gain(whatif.estimate, choices.front().estimate)}});
  }
  json::object all = ToJson(described);
  all["choices"] = std::move(list);
  all["what_would_help"] = std::move(helps);
  return std::string(json::serialize(all)) + "\n";
}

absl::StatusOr<std::string> Plot(const Described& described, const PolicyChoice& best) {
  PENSTOCK_ASSIGN_OR_RETURN(const Hrm hrm, HrmOf(best, described.model, described.hardware));
  return PlotHrm(hrm, DecodePoints(best, described.model, hrm, described.workload),
                 fmt::format("Decoding {}", described.model.name()));
}

// A plan, and all that was compared with it.
struct Planned {
  Described described;  // with the options of the best policy
  std::vector<PolicyChoice> choices;
  std::vector<WhatIf> whatifs;

  const PolicyChoice& best() const { return choices.front(); }
};

absl::StatusOr<Planned> MakePlan(const DescribedFlags& flags,
                                 std::function<CallerMemory(const ModelInfo&)> caller_memory = {}) {
  PENSTOCK_ASSIGN_OR_RETURN(Described described, Describe(flags));
  if (caller_memory) described.options.caller_memory = std::move(caller_memory);
  DrawnChoices drawn;
  PENSTOCK_ASSIGN_OR_RETURN(
      std::vector<PolicyChoice> choices,
      SearchPolicies(described.model, described.hardware, described.workload, described.options, {.drawn = &drawn}));
  std::vector<WhatIf> whatifs = WhatIfs(described, flags.config.path, choices.front(), drawn).Run();
  described.options = choices.front().options;
  return Planned{std::move(described), std::move(choices), std::move(whatifs)};
}

}  // namespace

absl::StatusOr<std::string> PlanJson(const DescribedFlags& flags,
                                     std::function<CallerMemory(const ModelInfo&)> caller_memory) {
  PENSTOCK_ASSIGN_OR_RETURN(const Planned plan, MakePlan(flags, std::move(caller_memory)));
  return Json(plan.described, plan.choices, plan.whatifs);
}

absl::StatusOr<int> PlanCommand(const PlanFlags& flags) {
  if (flags.described.hardware == "list") {
    PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, PresetTable(), "stdout"));
    return 0;
  }
  const std::string& model_dir = flags.described.model.engine.model_dir;
  PENSTOCK_ASSIGN_OR_RETURN(OutputFile policy, OutputFile::Open("--output", flags.policy_output_path, model_dir));
  PENSTOCK_ASSIGN_OR_RETURN(OutputFile plot, OutputFile::Open("--plot", flags.plot_path, model_dir));
  PENSTOCK_ASSIGN_OR_RETURN(const Planned plan, MakePlan(flags.described));
  const std::string report = flags.as_json ? Json(plan.described, plan.choices, plan.whatifs)
                                           : Text(plan.described, flags.described.workload, plan.choices, plan.whatifs);
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, report, "stdout"));
  if (plot.is_wanted()) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string drawing, Plot(plan.described, plan.best()));
    PENSTOCK_RETURN_IF_ERROR(plot.Write(drawing));
  }
  PENSTOCK_RETURN_IF_ERROR(policy.Write(std::string(json::serialize(PolicyJson(plan.best().options))) + "\n"));
  if (policy.is_wanted()) {
    LogInfo("wrote {}, for penstock run --policy; a prompt and its answer may have {} tokens together",
            Printable(flags.policy_output_path), plan.best().plan.context_length);
  }
  return 0;
}

}  // namespace penstock::cli
