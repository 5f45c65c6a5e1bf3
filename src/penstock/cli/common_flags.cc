#include "penstock/cli/common_flags.h"

#include <charconv>
#include <vector>

#include "penstock/base/limits.h"
#include "penstock/base/text.h"

namespace penstock::cli {
namespace {

CLI::Validator StopText() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        if (IsStopText(text)) return "";
        return fmt::format("expected UTF-8 text of 1 to {} bytes", kMaxStopTextBytes);
      },
      "");
}

}  // namespace

// CLI::Range lets NaN through.
CLI::Validator NumberFrom(double min, double max) {
  return CLI::Validator(
      [min, max](const std::string& text) -> std::string {
        double number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool good = error == std::errc() && end == text.data() + text.size() && number >= min && number <= max;
        return good ? "" : fmt::format("expected a number from {} to {}, found '{}'", min, max, text);
      },
      fmt::format("FLOAT in [{} - {}]", min, max));
}

// CLI11 would read -1 as 2^64 - 1.
CLI::Validator UnsignedInteger() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        uint64_t number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool good = error == std::errc() && end == text.data() + text.size();
        return good ? "" : fmt::format("expected an integer from 0 to 2^64 - 1, found '{}'", text);
      },
      "UINT");
}

std::string ScheduleHelp() { return ScheduleNames() + "(auto: klotski when experts stream, else on-demand)"; }

std::string ScheduleNames() {
  return "auto, on-demand, zero, zigzag, hybrid, klotski; with a device also zigzag-cpu-attention, fastdecode, "
         "cgopipe ";
}

void AddLogFlags(CLI::App& app, LogFlags& flags) {
  app.add_option("--log-level", flags.level, "trace, debug, info, warning, error or off")->capture_default_str();
  app.add_flag("-q,--quiet", flags.quiet, "no progress, no notes: errors only");
  constexpr char kOptionFileHelp[] = "file with flags, one per line: memory = \"16GiB\"";
  app.add_option(kOptionFileFlag, kOptionFileHelp)->type_name("FILE");  // ParseFlags() reads it
  app.allow_config_extras(false);
}

// Flags of every command that computes, or simulates that.
void AddPolicyFlags(CLI::App& app, ModelFlags& flags) {
  EngineOptions& engine = flags.engine;
  app.add_option("--gpu-memory", flags.gpu_memory, "budget for everything Penstock allocates on the device")
      ->type_name("SIZE");
  app.add_option(
         "--policy", flags.policy_path,
         "JSON file that sets schedule, eviction and sizes (flags win); with run also auto: the planner's choice")
      ->type_name("FILE");
  app.add_option("--predictor", flags.predictor,
                 "what hybrid fetches ahead by: none, gate, correlation, history, sequence (auto: what bench routing "
                 "found best for the model, else none)");
  app.add_option("--batch-size", flags.batch_size,
                 "sequences at once (default: as many as the budget allows, at most 64)")
      ->check(CLI::Range(int64_t{1}, kMaxBatchSize));
  app.add_option("--micro-batch-size", flags.micro_batch_size,
                 "sequences that go through a layer together (default: all)")
      ->check(CLI::Range(int64_t{1}, kMaxBatchSize));
  app.add_option("--prefill-chunk", flags.prefill_chunk, "prompt rows per step (default: up to 256)")
      ->check(CLI::Range(int64_t{1}, kMaxPrefillChunk));
  app.add_option("--context-length", engine.context_length,
                 "longest prompt with its answer, in tokens (default: the model's, at most 8192)")
      ->check(CLI::Range(int64_t{2}, kMaxContext));
  app.add_option("--attention-window", engine.attention_window,
                 "each token sees the first and at least this many last tokens only (StreamingLLM; default: all)")
      ->check(CLI::Range(int64_t{1}, kMaxContext));
  app.add_option("--attention-sinks", engine.attention_sinks, "first tokens that stay in sight (default 4)")
      ->check(CLI::Range(int64_t{0}, kMaxContext));
  app.add_option("-t,--threads", engine.threads, "compute threads (default: all usable CPUs)")
      ->check(CLI::Range(1, kMaxThreads));
  app.add_option("--dtype", engine.dtype, "auto, f32 or bf16")->capture_default_str();
  app.add_option("--kv-dtype", engine.kv_dtype, "auto, f32, bf16 or int8")->capture_default_str();
  app.add_option("--trace", engine.trace_path, "write every task as Chrome trace JSON (opens in ui.perfetto.dev)")
      ->type_name("FILE");
  app.add_option("--trace-html", engine.trace_html_path, "write a page that shows the last two seconds, lane by lane")
      ->type_name("FILE");
}

// --model and the flags of every command that computes.
void AddModelFlags(CLI::App& app, ModelFlags& flags) {
  EngineOptions& engine = flags.engine;
  app.add_option("-m,--model", engine.model_dir,
                 "model: a Hugging Face folder, a packed store, a GGUF file or its folder")
      ->required()
      ->type_name("DIR");
  app.add_option("--memory", flags.memory,
                 "DRAM budget for everything Penstock allocates (default: 3/4 of what is free)")
      ->type_name("SIZE");
  app.add_option("--device", engine.device,
                 "auto (a GPU where there is one), cpu, cuda[:I[,share=S]] or emulated[:link=4GB/s,threads=1]")
      ->capture_default_str();
  app.add_option("--schedule", flags.schedule, ScheduleHelp());
  AddPolicyFlags(app, flags);
  app.add_option("--record-routing", engine.routing_path, "write which experts each token chose, for simulations")
      ->type_name("FILE");
  app.add_flag("--record-scores", engine.routing_scores,
               "with --record-routing: also how the router rated experts, which bench routing needs");
  app.add_option("--record-correlation", engine.correlation_path,
                 "write what klotski has learnt to predict from, for later runs (policy: correlation_table)")
      ->type_name("FILE");
}

void AddSamplingFlags(CLI::App& app, SamplingOverrides& flags) {
  app.add_option("-n,--max-tokens", flags.max_tokens, "longest answer, in tokens (default 256)")
      ->check(CLI::Range(int64_t{1}, kMaxContext));
  app.add_option("--temperature", flags.temperature, "0: greedy")->check(NumberFrom(0, kMaxTemperature));
  app.add_option("--top-k", flags.top_k, "0: off")->check(CLI::Range(int64_t{0}, kMaxVocabSize));
  app.add_option("--top-p", flags.top_p, "1: off")->check(NumberFrom(1e-9, 1));
  app.add_option("--min-p", flags.min_p, "0: off")->check(NumberFrom(0, 1));
  app.add_option("--repetition-penalty", flags.repetition_penalty, "1: off")
      ->check(NumberFrom(kMinRepetitionPenalty, kMaxRepetitionPenalty));
  app.add_option("--seed", flags.seed, "of the random numbers (default 0)")->check(UnsignedInteger());
  app.add_option_function<std::vector<std::string>>(
         "--stop", [&flags](const std::vector<std::string>& texts) { flags.stop = texts; },
         "text before which generation ends; may be given several times")
      ->allow_extra_args(false)
      ->check(StopText())
      ->type_name("TEXT");
  app.add_flag_function(
      "--ignore-eos", [&flags](int64_t) { flags.ignore_eos = true; },
      "go on after the end-of-sequence token, up to --max-tokens");
}

void AddDescribedFlags(CLI::App& app, DescribedFlags& flags) {
  EngineOptions& engine = flags.model.engine;
  app.add_option("-m,--model", engine.model_dir, "model: a folder, a packed store or a GGUF file (or give --config)")
      ->type_name("DIR");
  app.add_option("--config", flags.config_path, "a model's config.json; no weights are needed")->type_name("FILE");
  app.add_option("--weights", flags.weights,
                 "with --config: f32, f16, bf16, int8, hqq4, hqq3, fp8, mxfp4, q8_0, q4_0, q4_k, q5_k, q6_k, q4_1, "
                 "q5_0 or q5_1")
      ->capture_default_str();
  app.add_option("--hardware", flags.hardware,
                 "auto (this machine), a preset like rtx4090:dram=128GiB,disk=nvme4, a file of penstock probe, or list "
                 "(prints the presets)")
      ->capture_default_str();
  app.add_option("--workload", flags.workload,
                 "prompt=N,gen=N[,max-prompt=N,requests=N], or mtbench, reasoning, summarization, klotski")
      ->capture_default_str();
  app.add_option("--memory", flags.model.memory, "DRAM budget (default: 9/10 of the hardware's)")->type_name("SIZE");
  app.add_option("--device", engine.device, "auto, cpu or gpu")->capture_default_str();
  AddPolicyFlags(app, flags.model);
}

}  // namespace penstock::cli
