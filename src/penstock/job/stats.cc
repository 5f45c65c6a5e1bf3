#include "penstock/job/stats.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "penstock/base/bytes.h"
#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/memory/eviction.h"
#include "penstock/schedule/schedule.h"

namespace penstock {
namespace {

// Returns the number in the line of /proc/self/status that `format` reads; 0 when there is none.
uint64_t StatusBytes(const char* format) {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) return 0;
  char line[256];
  unsigned long long kib = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, format, &kib) == 1) break;  // NOLINT(cert-err34-c)
  }
  std::fclose(file);
  return kib * kKiB;
}

double Rate(int64_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; }

}  // namespace

Bound BoundOf(const EngineStats& stats, const MachineRates& rates) {
  Bound bound;
  const auto limit = [&](double amount, double rate, std::string_view name) {
    if (rate <= 0 || amount / rate <= bound.seconds) return;
    bound.seconds = amount / rate;
    bound.limited_by = name;
  };
  const uint64_t disk_bytes = stats.disk_bytes - std::min(stats.disk_bytes, stats.unused_disk_bytes);
  limit(static_cast<double>(disk_bytes), rates.disk_bytes_per_s, "disk");
  limit(static_cast<double>(stats.work.memory_bytes), rates.compute.memory_bytes_per_s, "memory");
  limit(stats.work.flops, rates.compute.ops_per_s, "arithmetic");
  limit(static_cast<double>(stats.host_work.memory_bytes), rates.host.memory_bytes_per_s, "host memory");
  limit(stats.host_work.flops, rates.host.ops_per_s, "host arithmetic");
  limit(static_cast<double>(stats.dram_to_device_bytes), rates.link_bytes_per_s, "dram_to_device");
  limit(static_cast<double>(stats.device_to_dram_bytes), rates.link_bytes_per_s, "device_to_dram");
  return bound;
}

uint64_t PeakRssBytes() { return StatusBytes("VmHWM: %llu kB"); }
uint64_t ResidentBytes() { return StatusBytes("VmRSS: %llu kB"); }

void MemoryLog::Update(double seconds) {
  if (!samples_.empty() && seconds < samples_.back().seconds + distance_s_) return;
  if (samples_.size() == kMaxSamples) {
    for (size_t i = 0; i < kMaxSamples / 2; ++i) samples_[i] = samples_[2 * i];
    samples_.resize(kMaxSamples / 2);
    distance_s_ *= 2;
  }
  samples_.push_back({seconds, ResidentBytes()});
}

static json::array FailuresJson(const std::vector<Failures>& all) {
  json::array list;
  for (const Failures& failures : all) {
    list.push_back(json::object{{"code", failures.code}, {"requests", failures.num_requests}});
  }
  return list;
}

static json::array MemoryJson(const MemoryLog& log) {
  json::array list;
  for (const MemoryLog::Sample& sample : log.samples()) {
    list.push_back(json::object{{"seconds", sample.seconds}, {"resident_bytes", sample.resident_bytes}});
  }
  return list;
}

static json::value LabelsJson(const LabelCounts& labels) {
  if (labels.num_labelled == 0) return nullptr;
  return json::object{{"requests", labels.num_labelled},
                      {"correct", labels.num_correct},
                      {"accuracy", labels.Share(labels.num_correct)},
                      {"correct_per_char", labels.num_correct_per_char},
                      {"accuracy_per_char", labels.Share(labels.num_correct_per_char)}};
}

// Returns what each copy of the model delivered; null without mirrors.
static json::value DirectoriesJson(const std::vector<DirectoryStats>& directories) {
  if (directories.empty()) return nullptr;
  json::array list;
  for (const DirectoryStats& directory : directories) {
    list.push_back(json::object{{"path", ReplaceInvalidUtf8(directory.path)},
                                {"bytes", directory.bytes},
                                {"bytes_per_second", directory.bytes_per_s},
                                {"left_out", directory.is_left_out}});
  }
  return list;
}

static json::object SecondsJson(const JobNumbers& numbers) {
  const EngineStats& e = numbers.engine;
  return {{"load", e.load_s}, {"prefill", e.prefill_s}, {"decode", e.decode_s}, {"total", numbers.total_s}};
}

static json::object LanesJson(const EngineStats& stats) {
  json::object lanes;
  for (const LaneStats& lane : stats.lanes) {
    const double idle_s = std::max(0.0, stats.prefill_s + stats.decode_s - lane.busy_s);
    lanes[lane.name] = json::object{{"busy", lane.busy_s}, {"idle", idle_s}};
  }
  return lanes;
}

static json::object PrefixDirJson(const PrefixDirStats& stats) {
  return {{"loaded_prompt_tokens", stats.loaded_tokens},
          {"read_bytes", stats.read_bytes},
          {"written_bytes", stats.written_bytes},
          {"refused_files", stats.refused_files}};
}

std::string FormatStats(const JobNumbers& numbers) {
  const EngineStats& e = numbers.engine;
  const MemoryPlan& plan = numbers.plan;
  const double generation_s = e.prefill_s + e.decode_s;
  const Bound bound = BoundOf(e, numbers.rates);
  const bool known = bound.seconds > 0 && generation_s > 0;
  json::object bound_json = {{"tokens_per_second", nullptr}, {"limited_by", nullptr}};
  if (known) {
    bound_json = {{"tokens_per_second", Rate(e.generated_tokens, bound.seconds)},
                  {"limited_by", bound.limited_by},
                  {"disk_bytes_per_second", numbers.rates.disk_bytes_per_s},
                  {"memory_bytes_per_second", numbers.rates.compute.memory_bytes_per_s},
                  {"operations_per_second", numbers.rates.compute.ops_per_s}};
    if (numbers.rates.host.ops_per_s > 0) {
      bound_json["host_memory_bytes_per_second"] = numbers.rates.host.memory_bytes_per_s;
      bound_json["host_operations_per_second"] = numbers.rates.host.ops_per_s;
    }
  }
  const json::object stats = {
      {"model", ReplaceInvalidUtf8(numbers.model)},
      {"device", plan.device.name.empty() ? "cpu" : plan.device.name},
      {"schedule", TraitsOf(plan.schedule).name},
      {"policy", json::object{{"batch_size", plan.batch_size},
                              {"eviction", TraitsOf(plan.eviction).name},
                              {"pinned_experts", plan.num_pinned_experts},
                              {"prefill_chunk", plan.prefill_chunk},
                              {"context_length", plan.context_length},
                              {"memory_bytes", plan.budget_bytes},
                              {"kv_bytes", plan.kv_bytes},
                              {"expert_bytes", plan.expert_bytes},
                              {"expert_slots", plan.num_expert_slots},
                              {"experts", plan.num_experts_total},
                              {"micro_batch_size", plan.micro_batch_size}}},
      {"requests", numbers.num_requests},
      {"failed", numbers.num_failed},
      {"failures", FailuresJson(numbers.failures)},
      {"labels", LabelsJson(numbers.labels)},
      {"done_before", numbers.num_resumed},
      {"prompt_tokens", e.prompt_tokens},
      {"computed_prompt_tokens", e.computed_prompt_tokens},
      {"generated_tokens", e.generated_tokens},
      {"speculation", json::object{{"drafted_tokens", e.drafted_tokens}, {"accepted_tokens", e.accepted_tokens}}},
      {"seconds", SecondsJson(numbers)},
      {"tokens_per_second", json::object{{"prefill", Rate(e.prompt_tokens, e.prefill_s)},
                                         {"decode", Rate(e.generated_tokens, e.decode_s)},
                                         {"generation", Rate(e.generated_tokens, generation_s)},
                                         {"predicted_generation", numbers.predicted_tokens_per_s > 0
                                                                      ? json::value(numbers.predicted_tokens_per_s)
                                                                      : json::value(nullptr)}}},
      {"bytes", json::object{{"disk_to_dram", e.disk_bytes},
                             {"dram_to_device", e.dram_to_device_bytes},
                             {"device_to_dram", e.device_to_dram_bytes}}},
      {"directories", DirectoriesJson(e.directories)},
      {"prefix_dir", PrefixDirJson(e.prefix_dir)},
      {"lanes", LanesJson(e)},
      {"expert_cache", json::object{{"hits", e.expert_hits}, {"misses", e.expert_misses}}},
      {"prefetch", json::object{{"issued", e.prefetch_issued},
                                {"used", e.prefetch_used},
                                {"hot_accuracy", Rate(e.prefetch_used, static_cast<double>(e.prefetch_issued))},
                                {"named_hot", e.experts_named_hot},
                                {"named_right", e.experts_named_right}}},
      {"peak_rss_bytes", PeakRssBytes()},
      {"memory", MemoryJson(numbers.memory)},
      {"bound", bound_json},
      {"bound_fraction", known ? json::value(bound.seconds / generation_s) : json::value(nullptr)}};
  return std::string(json::serialize(stats)) + "\n";
}

std::string FormatStatsOfError(const absl::Status& error) {
  const json::object stats = {{"error", ReplaceInvalidUtf8(Message(error))}, {"exit_code", ExitCode(error)}};
  return std::string(json::serialize(stats)) + "\n";
}

std::string AccuracyText(const LabelCounts& labels) {
  return fmt::format("{:.1f}% ({} of {}), by log-likelihood per character {:.1f}%",
                     100 * labels.Share(labels.num_correct), labels.num_correct, labels.num_labelled,
                     100 * labels.Share(labels.num_correct_per_char));
}

std::string FormatAccuracy(const LabelCounts& labels) {
  return labels.num_labelled == 0 ? "" : fmt::format("accuracy        {}\n", AccuracyText(labels));
}

std::string FormatSummary(const JobNumbers& numbers) {
  const EngineStats& e = numbers.engine;
  const int64_t wanted = e.expert_hits + e.expert_misses;
  std::string text = fmt::format("requests        {}, {} failed", numbers.num_requests, numbers.num_failed);
  if (numbers.num_resumed > 0) text += fmt::format(", {} done before", numbers.num_resumed);
  for (const Failures& failures : numbers.failures) {
    text += fmt::format("\n                {} {}, the first in {}: {}", failures.num_requests, failures.code,
                        failures.first_place, Printable(failures.first_message));
  }
  text += "\n" + FormatAccuracy(numbers.labels);
  text += fmt::format("tokens          {} prompt", e.prompt_tokens);
  if (e.computed_prompt_tokens < e.prompt_tokens) text += fmt::format(" ({} computed)", e.computed_prompt_tokens);
  text += fmt::format(", {} generated\n", e.generated_tokens);
  if (e.drafted_tokens > 0) {
    text += fmt::format("guesses         {} of next tokens, {} right\n", e.drafted_tokens, e.accepted_tokens);
  }
  if (const PrefixDirStats& p = e.prefix_dir; p.read_bytes + p.written_bytes > 0 || p.refused_files > 0) {
    text += fmt::format("prefix folder   {} prompt tokens loaded, {} read, {} written", p.loaded_tokens,
                        FormatBytes(p.read_bytes), FormatBytes(p.written_bytes));
    text += p.refused_files > 0 ? fmt::format(", {} damaged files removed\n", p.refused_files) : "\n";
  }
  text += fmt::format("seconds         {:.2f} load, {:.2f} prefill, {:.2f} decode, {:.2f} total\n", e.load_s,
                      e.prefill_s, e.decode_s, numbers.total_s);
  text += fmt::format("tokens/s        {:.1f} prefill, {:.1f} decode, {:.1f} generation\n",
                      Rate(e.prompt_tokens, e.prefill_s), Rate(e.generated_tokens, e.decode_s),
                      Rate(e.generated_tokens, e.prefill_s + e.decode_s));
  if (numbers.predicted_tokens_per_s > 0) {
    text += fmt::format("predicted       {:.1f} generation, {:.0f}% of it reached\n", numbers.predicted_tokens_per_s,
                        100 * Rate(e.generated_tokens, e.prefill_s + e.decode_s) / numbers.predicted_tokens_per_s);
  }
  text += fmt::format("experts         {} hits, {} misses ({:.1f}% were in memory when wanted), {} read from disk\n",
                      e.expert_hits, e.expert_misses, 100 * Rate(e.expert_hits, static_cast<double>(wanted)),
                      FormatBytes(e.disk_bytes));
  for (const DirectoryStats& directory : e.directories) {
    text += fmt::format("directory       {}: {} at {:.2f} GB/s{}\n", Printable(directory.path),
                        FormatBytes(directory.bytes), 1e-9 * directory.bytes_per_s,
                        directory.is_left_out ? ", left out" : "");
  }
  text += fmt::format("peak memory     {}\n", FormatBytes(PeakRssBytes()));
  return text;
}

}  // namespace penstock
