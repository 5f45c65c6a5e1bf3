#include "penstock/cli/flags/common_flags.h"

#include <functional>
#include <span>
#include <string>

#include "penstock/base/choices.h"
#include "penstock/base/limits.h"
#include "penstock/base/text.h"
#include "penstock/cli/flags/flags.h"
#include "penstock/hardware/presets.h"
#include "penstock/plan/formats.h"
#include "penstock/routing/expert_predictor.h"
#include "penstock/schedule/schedule.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock::cli {
namespace {

std::string CheckStopText(const std::string& text) {
  if (IsStopText(text)) return "";
  return fmt::format("expected UTF-8 text of 1 to {} bytes", kMaxStopTextBytes);
}

// Returns the names of machines that --hardware takes.
std::string MachineNames() {
  std::string names;
  for (const PresetInfo& info : AllPresets()) {
    if (info.kind == "machine") names += (names.empty() ? "" : " ") + std::string(info.name);
  }
  return names;
}

}  // namespace

std::string ScheduleHelp() {
  return ScheduleNames() +
         "(default: klotski when experts stream to many sequences, else on-demand); run and serve take auto, too: it "
         "is --policy auto";
}

std::string ScheduleNames() {
  const auto attends_on_host = [](const ScheduleTraits& schedule) { return schedule.attends_on_host; };
  return fmt::format("{}; with a device also {} ", ChoiceNames(Schedules(), std::not_fn(attends_on_host)),
                     ChoiceNames(Schedules(), attends_on_host));
}

void AddMirrorFlag(CLI::App& app, EngineOptions& engine) {
  AddFlag(
      app, "--model-mirror", engine.model_mirrors,
      "a further copy of the model, or of a part of it (penstock mirror), on another disk; experts are read from all "
      "disks at once. May be given several times")
      .TypeName("DIR");
}

void AddLogFlags(CLI::App& app, LogFlags& flags) {
  BeginGroup(app, kGeneralGroup);
  AddFlag(app, "--log-level", flags.level, "trace, debug, info, warning, error or off")
      .Values("trace debug info warning error off")
      .ShowDefault();
  AddFlag(app, "-q,--quiet", flags.quiet, "show only errors: no progress, no notes");
  AddOptionFileFlag(app, "file with flags, one per line: memory = \"16GiB\"");
}

// Adds the flags of every command that computes or simulates.
void AddPolicyFlags(CLI::App& app, ModelFlags& flags, const std::string& schedule_help) {
  EngineOptions& engine = flags.engine;
  AddFlag(app, "--gpu-memory", flags.gpu_memory,
          "budget for everything Penstock allocates on the device: 20GiB, or 80% of what it has free (default: 90%)")
      .TypeName("SIZE");
  AddFlag(app, "-t,--threads", engine.threads, "compute threads (default: all usable CPUs)").InRange(1, kMaxThreads);
  AddFlag(app, "--context-length", engine.context_length,
          "longest prompt with its answer, in tokens (default: the model's, at most 8192)")
      .InRange(2, kMaxContext);
  const std::string dtypes = "auto, " + ChoiceNames(ComputeDtypes());
  AddFlag(app, "--dtype", flags.dtype, dtypes).Values(dtypes).ShowDefault();
  AddFlag(app, "--activations", flags.activations, "auto (int8), " + ChoiceNames(ActivationFormats()))
      .Values("auto, " + ChoiceNames(ActivationFormats()))
      .ShowDefault();
  const std::string kv_dtypes = "auto, " + ChoiceNames(KvFormats());
  AddFlag(app, "--kv-dtype", flags.kv_dtype, kv_dtypes).Values(kv_dtypes).ShowDefault();
  const std::string comm_dtypes = "auto, " + ChoiceNames(CommFormats());
  AddFlag(app, "--comm-dtype", flags.comm_dtype, "outputs of experts between ranks: " + comm_dtypes)
      .Values(comm_dtypes)
      .ShowDefault();
  AddFlag(app, "--parallel", flags.parallel,
          "how ranks divide the model: auto, or attention=dp (by sequences) or tp (by heads), experts=ep (whole) or tp "
          "(cut)")
      .ShowDefault();
  AddFlag(app, "--expert-placement", flags.expert_placement,
          "place whole experts on ranks so that each gets equally many choices, by a trace of --record-routing; each "
          "rank holds N more of each layer")
      .TypeName("FILE[,replicas=N]");
  AddFlag(app, "--attention-window", engine.attention_window,
          "each token sees only the first tokens and at least this many last ones (StreamingLLM; default: all)")
      .InRange(1, kMaxContext);
  AddFlag(app, "--attention-sinks", engine.attention_sinks,
          "with --attention-window: number of first tokens that every token sees")
      .InRange(0, kMaxContext)
      .ShowDefault();
  AddFlag(app, "--no-prefix-sharing", flags.no_prefix_sharing,
          "compute every prompt in full, also what prompts begin with in common");
  AddFlag(app, "--speculate", flags.speculate,
          "fill rows that cost little with guesses of the next tokens, which change no answer: auto, off")
      .Values("auto, off")
      .ShowDefault()
      .Check([](const std::string& text) { return text == "auto" || text == "off" ? "" : "expected auto or off"; });
  BeginGroup(app, "Schedule");
  AddFlag(app, "--schedule", flags.schedule, schedule_help).Values("auto, " + ChoiceNames(Schedules()));
  AddFlag(app, "--policy", flags.policy_path,
          "JSON file that sets schedule, eviction and sizes (flags win); with run also auto: the planner's choice")
      .TypeName("FILE");
  const std::string predictors =
      ChoiceNames(Predictors(), [](const PredictorTraits& p) { return !p.is_simulated_only && !p.needs_network; });
  AddFlag(app, "--predictor", flags.predictor,
          "predictor by which hybrid fetches ahead: " + predictors +
              ", sida:FILE, or sida:FILE,mode=replace to leave the routers out (auto: the best one for the model by "
              "bench routing, else none)")
      .Values("auto, sida:, " + predictors);
  AddFlag(app, "--batch-size", flags.batch_size,
          "sequences at once (default: as many as the budget allows, at most 64; plan and --policy auto choose)")
      .InRange(1, kMaxBatchSize);
  AddFlag(app, "--micro-batch-size", flags.micro_batch_size,
          "sequences that go through a layer together (default: all)")
      .InRange(1, kMaxBatchSize);
  AddFlag(app, "--prefill-chunk", flags.prefill_chunk,
          "prompt rows per step (default: up to 256, or up to 2048 when steps read experts from the disk)")
      .InRange(1, kMaxPrefillChunk);
}

// Adds the files that show what a run did.
void AddTraceFlags(CLI::App& app, EngineOptions& engine) {
  BeginGroup(app, "Records");
  AddFlag(app, "--trace", engine.trace_path, "write every task as Chrome trace JSON (opens in ui.perfetto.dev)")
      .TypeName("FILE");
  AddFlag(app, "--trace-html", engine.trace_html_path, "write a page that shows the last two seconds, lane by lane")
      .TypeName("FILE");
}

// Adds --model and the flags of every command that computes.
void AddModelFlags(CLI::App& app, ModelFlags& flags, bool is_required) {
  EngineOptions& engine = flags.engine;
  BeginGroup(app, "Model and memory");
  const Flag model = AddFlag(app, "-m,--model", engine.model_dir,
                             "model: a Hugging Face folder, a packed store, a GGUF file or its folder")
                         .TypeName("DIR");
  if (is_required) model.Required();
  AddMirrorFlag(app, engine);
  AddFlag(app, "--memory", flags.memory,
          "DRAM budget for everything Penstock allocates: 16GiB, or 50% of what is free (default: 75%)")
      .TypeName("SIZE");
  AddFlag(app, "--device", engine.device,
          "auto (a GPU if there is one), cpu, cuda[:I[,share=S]] or emulated[:link=4GB/s,threads=1]")
      .Values("auto cpu cuda emulated")
      .ShowDefault();
  AddPolicyFlags(app, flags, ScheduleHelp());
  BeginGroup(app, "Prefixes on disk");
  AddFlag(app, "--prefix-dir", engine.prefix_dir,
          "keep the KV entries of prompts in this folder, also for later runs, which need not compute them")
      .TypeName("DIR");
  AddFlag(app, "--prefix-dir-size", flags.prefix_dir_size,
          "most that --prefix-dir holds; what was used longest ago goes first (default: 8GiB)")
      .TypeName("SIZE");
  AddTraceFlags(app, engine);
  AddFlag(app, "--record-routing", engine.routing_path, "write which experts each token chose, for simulations")
      .TypeName("FILE");
  AddFlag(app, "--record-scores", engine.routing_scores,
          "with --record-routing: also write the tokens and the router's scores, which bench routing needs");
  AddFlag(app, "--record-correlation", engine.correlation_path,
          "write the correlation table that klotski predicts from, for later runs (policy: correlation_table)")
      .TypeName("FILE");
}

void AddSamplingFlags(CLI::App& app, SamplingOverrides& flags) {
  BeginGroup(app, "Answers (where a flag is not given, the model's own default counts)");
  AddFlag(app, "-n,--max-tokens", flags.max_tokens,
          "longest answer, in tokens (default: max_new_tokens of the model, else 256); LongRoPE's factors depend on it")
      .InRange(1, kMaxContext);
  AddFlag(app, "--temperature", flags.temperature, "0: greedy").NumberFrom(0, kMaxTemperature);
  AddFlag(app, "--top-k", flags.top_k, "0: off").InRange(0, kMaxVocabSize);
  AddFlag(app, "--top-p", flags.top_p, "1: off").NumberFrom(1e-9, 1);
  AddFlag(app, "--min-p", flags.min_p, "0: off").NumberFrom(0, 1);
  AddFlag(app, "--repetition-penalty", flags.repetition_penalty, "1: off")
      .NumberFrom(kMinRepetitionPenalty, kMaxRepetitionPenalty);
  AddFlag(app, "--presence-penalty", flags.presence_penalty, "subtracted from logits of generated tokens; 0: off")
      .NumberFrom(-kMaxPenalty, kMaxPenalty);
  AddFlag(app, "--frequency-penalty", flags.frequency_penalty, "the same, for each time that a token was generated")
      .NumberFrom(-kMaxPenalty, kMaxPenalty);
  AddFlag(app, "--min-tokens", flags.min_tokens, "shortest answer, in tokens").InRange(0, kMaxContext);
  AddFlag(app, "--seed", flags.seed, "seed of the random numbers (default: 0)").Unsigned();
  AddFlag(app, "--stop", flags.stop, "text before which generation ends; may be given several times")
      .Check(CheckStopText)
      .TypeName("TEXT");
  AddFlag(app, "--ignore-eos", flags.ignore_eos, "continue after the end-of-sequence token, up to --max-tokens");
}

void AddSourceFlags(CLI::App& app, std::string& model_dir, ConfigFlags& config) {
  AddFlag(app, "-m,--model", model_dir, "model: a folder, a packed store or a GGUF file (or give --config)")
      .TypeName("DIR");
  AddFlag(app, "--config", config.path, "a model's config.json; no weights are needed").TypeName("FILE");
  const std::string weights = ChoiceNames(std::span<const WeightFormatTraits>(kWeightFormats));
  AddFlag(app, "--weights", config.weights, "with --config: " + weights).Values(weights).ShowDefault();
}

void AddDescribedFlags(CLI::App& app, DescribedFlags& flags, const std::string& schedule_help) {
  EngineOptions& engine = flags.model.engine;
  BeginGroup(app, "Model and machine");
  AddSourceFlags(app, engine.model_dir, flags.config);
  AddMirrorFlag(app, engine);
  AddFlag(app, "--hardware", flags.hardware,
          "auto (this machine), a preset like rtx4090:dram=128GiB,disk=nvme4, a file of penstock probe, or list "
          "(prints the presets)")
      .Values("auto list " + MachineNames())
      .ShowDefault();
  AddFlag(app, "--workload", flags.workload,
          "prompt=N,gen=N[,max-prompt=N,requests=N,shared=N,sampled=1], or mtbench, reasoning, summarization, klotski")
      .Values("mtbench reasoning summarization klotski prompt=")
      .ShowDefault();
  AddFlag(app, "--memory", flags.model.memory,
          "DRAM budget: 16GiB, or 50% of the hardware's (default: 90%; of this machine, 75% of what is free)")
      .TypeName("SIZE");
  AddFlag(app, "--device", engine.device, "auto, cpu or gpu").Values("auto cpu gpu").ShowDefault();
  AddFlag(app, "--ranks", flags.ranks, "machines like this that share the model's experts")
      .InRange(1, kMaxRanks)
      .ShowDefault();
  AddFlag(app, "--network", flags.network,
          "network between them: 1gbe, 10gbe, 25gbe, 100gbe, ib-hdr and others (--hardware list), or a rate like 1GB/s")
      .TypeName("NAME");
  AddPolicyFlags(app, flags.model, schedule_help);
}

}  // namespace penstock::cli
