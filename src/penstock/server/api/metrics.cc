#include "penstock/server/api/metrics.h"

#include <algorithm>

#include <fmt/format.h>

#include "penstock/base/version.h"

namespace penstock::server {
namespace {

// Quotes a label's value.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + '"';
}

// Writes metrics that share a label.
class TextWriter {
 public:
  explicit TextWriter(std::string label) : label_(std::move(label)) {}

  void Head(std::string_view name, std::string_view type, std::string_view help) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  void Value(std::string_view name, double value, std::string_view further_label = {}) {
    out += fmt::format("{}{{{}{}{}}} {}\n", name, label_, further_label.empty() ? "" : ",", further_label, value);
  }
  template <typename Number>
  void One(std::string_view name, std::string_view type, std::string_view help, Number value) {
    Head(name, type, help);
    Value(name, static_cast<double>(value));
  }

  std::string out;

 private:
  std::string label_;
};

void AppendEngine(const EngineSnapshot& engine, const MemoryPlan& plan, TextWriter& writer) {
  const EngineStats& stats = engine.stats;
  writer.One("vllm:num_requests_running", "gauge", "Requests with a place in the batch.", engine.num_running);
  writer.One("vllm:num_requests_waiting", "gauge", "Requests that wait for a place.", engine.num_waiting);
  writer.One("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache that requests hold; 1 is all of it.",
             engine.num_running == 0 ? 0 : stats.kv_usage);
  writer.One("vllm:prompt_tokens_total", "counter", "Prompt tokens, computed or shared.", stats.prompt_tokens);
  writer.One("vllm:generation_tokens_total", "counter", "Generated tokens.", stats.generated_tokens);
  writer.One("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the KV cache.",
             stats.prompt_tokens);
  writer.One("vllm:prefix_cache_hits_total", "counter", "Prompt tokens that were in the KV cache.",
             stats.prompt_tokens - stats.computed_prompt_tokens);
  writer.One("penstock:prefix_dir_loaded_tokens_total", "counter", "Prompt tokens loaded from --prefix-dir.",
             stats.prefix_dir.loaded_tokens);
  writer.One("penstock:prefix_dir_read_bytes_total", "counter", "Bytes read from it.", stats.prefix_dir.read_bytes);
  writer.One("penstock:prefix_dir_written_bytes_total", "counter", "Bytes written to it.",
             stats.prefix_dir.written_bytes);
  writer.One("penstock:prefix_dir_refused_files_total", "counter", "Damaged files of it, which were removed.",
             stats.prefix_dir.refused_files);
  writer.One("penstock:steps_total", "counter", "Passes over the model.", engine.num_steps);
  writer.One("penstock:prefill_seconds_total", "counter", "Time of passes, share of prompt rows.", stats.prefill_s);
  writer.One("penstock:decode_seconds_total", "counter", "Time of passes, share of decode rows.", stats.decode_s);
  writer.Head("penstock:lane_busy_seconds_total", "counter", "Time that a lane has worked.");
  for (const LaneStats& lane : stats.lanes) {
    writer.Value("penstock:lane_busy_seconds_total", lane.busy_s, "lane=" + Quoted(lane.name));
  }
  if (!stats.directories.empty()) {
    writer.Head("penstock:directory_read_bytes_total", "counter", "Bytes read from a copy of the model.");
    for (const DirectoryStats& directory : stats.directories) {
      writer.Value("penstock:directory_read_bytes_total", static_cast<double>(directory.bytes),
                   "directory=" + Quoted(directory.path));
    }
  }
  writer.One("penstock:expert_cache_hits_total", "counter", "Wanted experts that were in memory.", stats.expert_hits);
  writer.One("penstock:expert_cache_misses_total", "counter", "Wanted experts that were not.", stats.expert_misses);
  writer.One("penstock:experts_prefetched_total", "counter", "Experts read because they were predicted.",
             stats.prefetch_issued);
  writer.One("penstock:experts_prefetched_used_total", "counter", "Those that were wanted before they were evicted.",
             stats.prefetch_used);
  writer.Head("penstock:weight_read_bytes_total", "counter", "Bytes of experts that have moved.");
  writer.Value("penstock:weight_read_bytes_total", static_cast<double>(stats.disk_bytes), "link=\"disk_to_dram\"");
  writer.Value("penstock:weight_read_bytes_total", static_cast<double>(stats.dram_to_device_bytes),
               "link=\"dram_to_device\"");
  writer.Head("penstock:tier_bytes", "gauge", "The memory plan: bytes of a tier by what they hold.");
  for (const auto& [kind, bytes] : {std::pair("dense", plan.dense_bytes), std::pair("kv", plan.kv_bytes),
                                    std::pair("activations", plan.activation_bytes),
                                    std::pair("experts", plan.expert_bytes), std::pair("fixed", plan.fixed_bytes)}) {
    writer.Value("penstock:tier_bytes", static_cast<double>(bytes), fmt::format("tier=\"dram\",kind=\"{}\"", kind));
  }
}

}  // namespace

void Histogram::Add(double value, int64_t times) {
  const auto place = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[place] += times;
  sum_ += value * static_cast<double>(times);
}

void Histogram::Append(std::string_view name, std::string_view help, std::string_view label, std::string& out) const {
  out += fmt::format("# HELP {} {}\n# TYPE {} histogram\n", name, help, name);
  int64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, label, bound, total);
  }
  out += fmt::format("{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, label, sum_, name, label, total);
}

Metrics::Metrics()
    : first_token_s_({0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640}),
      gap_s_({0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6}),
      total_s_({0.1, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280}),
      prompt_tokens_({1, 10, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000}),
      generated_tokens_({1, 10, 50, 100, 200, 500, 1000, 2000, 5000, 10000}) {}

void Metrics::AddRequest(const AnsweringReport& report) {
  const std::lock_guard lock(mutex_);
  if (!report.is_good) {
    ++finished_["abort"];
    return;
  }
  ++finished_[report.finish_reason == FinishReason::kStop ? "stop" : "length"];
  if (report.first_token_s > 0) first_token_s_.Add(report.first_token_s);
  total_s_.Add(report.total_s);
  prompt_tokens_.Add(static_cast<double>(report.prompt_tokens));
  generated_tokens_.Add(static_cast<double>(report.completion_tokens));
}

void Metrics::AddGap(double seconds, int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  if (num_tokens > 0) gap_s_.Add(seconds / static_cast<double>(num_tokens), num_tokens);
}

void Metrics::AddRefusal(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  ++refused_[reason];
}

std::string Metrics::Text(const ModelInfo& model, const MemoryPlan& plan, const EngineSnapshot& engine,
                          int64_t num_connections, uint64_t memory_bytes) const {
  const std::string label = "model_name=" + Quoted(model.name);
  TextWriter writer(label);
  AppendEngine(engine, plan, writer);
  writer.One("penstock:memory_budget_bytes", "gauge", "The budget of --memory.", plan.budget_bytes);
  writer.One("penstock:memory_used_bytes", "gauge", "Resident memory of the process.", memory_bytes);
  writer.One("penstock:connections", "gauge", "Open connections.", num_connections);
  writer.Head("penstock:info", "gauge", "The version, and how the model is run.");
  writer.Value(
      "penstock:info", 1,
      fmt::format("version={},dtype={},family={}", Quoted(Version()), Quoted(model.dtype), Quoted(model.family)));
  const std::lock_guard lock(mutex_);
  writer.Head("vllm:request_success_total", "counter", "Requests that ended, by reason.");
  for (const auto& [reason, count] : finished_) {
    writer.Value("vllm:request_success_total", static_cast<double>(count), "finished_reason=" + Quoted(reason));
  }
  writer.Head("penstock:requests_refused_total", "counter", "Requests that were refused, by reason.");
  for (const auto& [reason, count] : refused_) {
    writer.Value("penstock:requests_refused_total", static_cast<double>(count), "reason=" + Quoted(reason));
  }
  first_token_s_.Append("vllm:time_to_first_token_seconds", "Time to the first token.", label, writer.out);
  gap_s_.Append("vllm:inter_token_latency_seconds", "Time between tokens of an answer.", label, writer.out);
  total_s_.Append("vllm:e2e_request_latency_seconds", "Time of a request.", label, writer.out);
  prompt_tokens_.Append("vllm:request_prompt_tokens", "Prompt tokens of a request.", label, writer.out);
  generated_tokens_.Append("vllm:request_generation_tokens", "Generated tokens of a request.", label, writer.out);
  return std::move(writer.out);
}

}  // namespace penstock::server
