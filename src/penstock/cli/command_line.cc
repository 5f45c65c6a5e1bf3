#include "penstock/cli/command_line.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "penstock/base/choices.h"
#include "penstock/base/clock.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/version.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/flags/common_flags.h"
#include "penstock/cli/flags/flags.h"
#include "penstock/cli/flags/help.h"
#include "penstock/cli/flags/pack_flags.h"
#include "penstock/cli/flags/serve_flags.h"
#include "penstock/cli/flags/simulate_flags.h"
#include "penstock/kernels/kernels.h"
#include "penstock/parallel/launcher.h"
#include "penstock/plan/formats.h"

namespace penstock::cli {
namespace {

// Opens /dev/null in place of closed standard streams, so that no other file gets their numbers and messages in its
// content. The replacement is opened the wrong way round: reading stdin and writing stdout or stderr fail.
void OccupyStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// Jobs of many input files, and models of many shards, keep them open.
void RaiseFileLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

// A subcommand and the function that runs it with the parsed flags.
struct Command {
  CLI::App* app = nullptr;
  std::function<absl::StatusOr<int>()> run;
};

std::string CheckDate(const std::string& text) {
  const std::optional<DateTime> date = ParseDateTime(text);
  return date.has_value() && text.find('T') == std::string::npos ? "" : "expected a date such as 2026-11-21";
}

std::string CheckShard(const std::string& text) {
  const absl::Status status = ParseShard(text).status();
  return status.ok() ? "" : Message(status);
}

std::string TaskHelp() {
  std::string help;
  for (const JobTaskTraits& task : JobTasks()) {
    help += fmt::format("{}{}: {}", help.empty() ? "" : "; ", task.name, task.summary);
  }
  return help;
}

std::string CheckTask(const std::string& text) {
  return FindChoice(text, JobTasks()) != nullptr ? "" : "expected one of " + ChoiceNames(JobTasks());
}

Command AddRunCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = AddCommand(app, "run", "offline batch job: a JSONL file of requests to a JSONL file of results");
  BeginGroup(*command, "Job");
  AddFlag(*command, "-i,--input", flags->job.input_paths,
          "requests, one JSON object per line: files, patterns such as 'shards/*.jsonl', or - for standard input")
      .Required()
      .TypeName("FILE");
  AddFlag(*command, "-o,--output", flags->job.output_path,
          "results, one JSON object per line; - for standard output, which cannot be resumed (not needed with "
          "--validate-only)")
      .TypeName("FILE");
  AddFlag(*command, "--resume", flags->job.resume, "continue the job of the existing output");
  AddFlag(*command, "--retry-failed", flags->job.retry_failed, "like --resume, and run failed requests again");
  AddFlag(*command, "--shard", flags->shard,
          "answer only every N-th request, beginning with the I-th; penstock merge joins the outputs of all N shards")
      .Check(CheckShard)
      .TypeName("I/N");
  AddFlag(*command, "--task", flags->task, TaskHelp())
      .Values(ChoiceNames(JobTasks()))
      .Check(CheckTask)
      .TypeName("NAME")
      .ShowDefault();
  AddFlag(*command, "--drain", flags->job.drain_s,
          "seconds that requests under way have to finish after a signal to stop; a second signal stops at once")
      .NumberFrom(0, 1e6)
      .ShowDefault();
  AddFlag(*command, "--system", flags->job.system, "system message of chats and turns that have none").TypeName("TEXT");
  AddFlag(*command, "--date", flags->job.date,
          "date that chat templates see, as 2026-11-21 (default: the job's first day)")
      .Check(CheckDate)
      .TypeName("DATE");
  AddFlag(*command, "--validate-only", flags->validate_only,
          "only check the input (exit code 8: requests are bad); with --model also count tokens and predict the time");
  AddFlag(*command, "--json", flags->as_json, "with --validate-only: print JSON");
  AddFlag(*command, "--stats", flags->job.stats_path, "write statistics as JSON; - for standard output")
      .TypeName("FILE");
  AddModelFlags(*command, flags->model, /*is_required=*/false);
  AddSamplingFlags(*command, flags->job.sampling);
  AddLogFlags(*command, log);
  SetExamples(*command,
              "penstock run -m models/penstock-demo -i examples/mt_bench/question.jsonl -o answers.jsonl\n"
              "penstock run -m models/penstock-demo -i examples/mt_bench/question.jsonl -o answers.jsonl --resume\n"
              "penstock run -m DIR -i requests.jsonl -o part3.jsonl --shard 3/16 --resume\n"
              "zcat requests.jsonl.gz | penstock run -m DIR -i - -o answers.jsonl --memory 16GiB");
  return {command, [flags, &log] {
            flags->job.quiet = log.quiet;
            return RunCommand(*flags);
          }};
}

Command AddMergeCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<MergeFlags>();
  CLI::App* command = AddCommand(app, "merge", "join the outputs of a job's shards (run --shard) into one output");
  BeginGroup(*command, "Outputs");
  AddFlag(*command, "-o,--output", flags->merge.output_path,
          "file to write, with the results in the order of the input; must not exist")
      .Required()
      .TypeName("FILE");
  AddFlag(*command, "parts", flags->merge.part_paths, "the outputs of all shards, in any order, beside their manifests")
      .Required()
      .TypeName("FILE");
  AddLogFlags(*command, log);
  SetExamples(*command, "penstock merge -o answers.jsonl part1.jsonl part2.jsonl part3.jsonl");
  return {command, [flags] { return MergeCommand(*flags); }};
}

Command AddGenerateCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = AddCommand(app, "generate", "stream one answer to stdout");
  BeginGroup(*command, "Prompt");
  const Flag prompt =
      AddFlag(*command, "-p,--prompt,prompt", flags->prompt, "the prompt; may also stand without --prompt")
          .TypeName("TEXT");
  const Flag file =
      AddFlag(*command, "--prompt-file", flags->prompt_file, "file that holds the prompt; - for standard input")
          .TypeName("FILE");
  prompt.Excludes(file);
  const Flag system = AddFlag(*command, "--system", flags->system, "system message").TypeName("TEXT");
  AddFlag(*command, "--date", flags->date, "date that chat templates see, as 2026-11-21 (default: today)")
      .Check(CheckDate)
      .TypeName("DATE");
  AddFlag(*command, "--raw", flags->raw, "continue the prompt as plain text, without the model's chat template")
      .Excludes(system);
  AddModelFlags(*command, flags->model);
  AddSamplingFlags(*command, flags->sampling);
  AddLogFlags(*command, log);
  SetExamples(*command,
              "penstock generate -m models/penstock-demo --raw 'Once upon a time'\n"
              "penstock generate -m DIR -p 'Name three rivers.' --system 'Answer in one line.' --temperature 0");
  return {command, [flags] { return GenerateCommand(*flags); }};
}

Command AddServeCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = AddCommand(app, "serve", "HTTP server with the APIs of OpenAI and Anthropic");
  AddServeFlags(*command, *flags);
  AddModelFlags(*command, flags->model);
  AddSamplingFlags(*command, flags->sampling);
  AddLogFlags(*command, log);
  SetExamples(*command,
              "penstock serve -m DIR --memory 16GiB\n"
              "curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"Once upon a time\"}'");
  return {command, [flags] { return ServeCommand(*flags); }};
}

Command AddChatCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = AddCommand(app, "chat", "talk with a model in the terminal; /help lists what you can type");
  BeginGroup(*command, "Chat");
  AddFlag(*command, "--system", flags->system, "system message").TypeName("TEXT");
  AddFlag(*command, "--date", flags->date, "date that chat templates see, as 2026-11-21 (default: today)")
      .Check(CheckDate)
      .TypeName("DATE");
  AddModelFlags(*command, flags->model);
  AddSamplingFlags(*command, flags->sampling);
  AddLogFlags(*command, log);
  SetExamples(*command, "penstock chat -m DIR --memory 16GiB --system 'Answer in one line.'");
  return {command, [flags] { return ChatCommand(*flags); }};
}

Command AddPackCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<PackFlags>();
  CLI::App* command = AddCommand(
      app, "pack", "write a model as a packed store: ready to compute, with checksums, quantised on request");
  AddPackFlags(*command, flags->pack);
  AddLogFlags(*command, log);
  SetExamples(*command,
              "penstock pack -m DIR -o DIR-hqq4 --quantize hqq4\n"
              "penstock pack -m DIR -o DIR-3bits --bits 3 --importance importance.safetensors\n"
              "penstock pack -m DIR -o DIR-bf16 --compress auto");
  return {command, [flags, &log] {
            flags->quiet = log.quiet;
            return PackCommand(*flags);
          }};
}

Command AddMirrorCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<MirrorFlags>();
  CLI::App* command =
      AddCommand(app, "mirror", "copy a model's most wanted experts to another disk, from which runs then read, too");
  BeginGroup(*command, "Mirror");
  const std::string model_help = "model: a folder, a packed store or a GGUF file";
  AddFlag(*command, "-m,--model", flags->mirror.model_dir, model_help).Required().TypeName("DIR");
  AddFlag(*command, "-o,--output", flags->mirror.output_dir, "folder to write, for --model-mirror; must not exist")
      .Required()
      .TypeName("DIR");
  AddFlag(*command, "--size", flags->size, "bytes to copy at most: 10GiB (default: all experts)").TypeName("SIZE");
  AddLogFlags(*command, log);
  SetExamples(*command,
              "penstock mirror -m DIR -o /mnt/disk2/mirror --size 10GiB\n"
              "penstock run -m DIR --model-mirror /mnt/disk2/mirror ...");
  return {command, [flags, &log] {
            flags->quiet = log.quiet;
            return MirrorCommand(*flags);
          }};
}

Command AddInspectCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = AddCommand(app, "inspect", "show the contents of a checkpoint: dims, sizes per layer and tier");
  BeginGroup(*command, "Model");
  AddSourceFlags(*command, flags->model_dir, flags->config);
  AddFlag(*command, "--json", flags->as_json, "print JSON");
  AddFlag(*command, "--verify", flags->verify, "read all weights, compare checksums, look for NaN and infinity");
  AddLogFlags(*command, log);
  SetExamples(*command, "penstock inspect -m models/penstock-demo");
  return {command, [flags] { return InspectCommand(*flags); }};
}

Command AddTokenizeCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = AddCommand(app, "tokenize", "text to token ids, one JSON array per text, and back");
  BeginGroup(*command, "Model");
  AddFlag(*command, "-m,--model", flags->model_dir,
          "model: a Hugging Face folder, a packed store, a GGUF file or its folder")
      .Required()
      .TypeName("DIR");
  BeginGroup(*command, "Text");
  const Flag text = AddFlag(*command, "--text,text", flags->text,
                            "the text (with --decode: a JSON array of ids); may also stand without --text")
                        .TypeName("TEXT");
  const Flag file =
      AddFlag(*command, "--file", flags->file, "file with one text per line; - for standard input").TypeName("FILE");
  text.Excludes(file);
  AddFlag(*command, "--no-special", flags->no_special,
          "add no BOS or EOS (with --decode: leave special tokens out of the text)");
  AddFlag(*command, "--as-message", flags->as_message,
          "encode like a chat message: text that looks like a special token stays ordinary text");
  AddFlag(*command, "--decode", flags->decode, "turn ids back into text");
  AddLogFlags(*command, log);
  SetExamples(*command,
              "penstock tokenize -m models/penstock-demo 'Once upon a time'\n"
              "penstock tokenize -m models/penstock-demo --decode --text '[1, 2, 3]'");
  return {command, [flags] { return TokenizeCommand(*flags); }};
}

Command AddPerplexityCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command = AddCommand(app, "perplexity", "how well the model predicts a text");
  BeginGroup(*command, "Text");
  AddFlag(*command, "--text", flags->text_file, "file that holds the text; - for standard input")
      .Required()
      .TypeName("FILE");
  AddModelFlags(*command, flags->model);
  AddLogFlags(*command, log);
  SetExamples(*command, "penstock perplexity -m models/penstock-demo --text book.txt");
  return {command, [flags, &log] {
            flags->quiet = log.quiet;
            return PerplexityCommand(*flags);
          }};
}

Command AddQualityCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<QualityFlags>();
  CLI::App* command =
      AddCommand(app, "quality", "what quantising costs: how far a model's predictions are from another one's");
  BeginGroup(*command, "Comparison");
  AddFlag(*command, "--reference", flags->reference_dir,
          "the model to compare with, usually the same in a better format; each gets half of --memory")
      .Required()
      .TypeName("DIR");
  AddFlag(*command, "--text", flags->text_file, "file that holds the text; - for standard input")
      .Required()
      .TypeName("FILE");
  AddFlag(*command, "--requests", flags->requests_file,
          "JSONL file of requests with output formats or tools: also count the answers that follow them freely")
      .TypeName("FILE");
  AddFlag(*command, "--json", flags->as_json, "print JSON");
  AddModelFlags(*command, flags->model);
  AddLogFlags(*command, log);
  SetExamples(*command, "penstock quality -m demo-hqq3 --reference models/penstock-demo --text book.txt");
  return {command, [flags, &log] {
            flags->quiet = log.quiet;
            return QualityCommand(*flags);
          }};
}

Command AddCalibrateCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command =
      AddCommand(app, "calibrate", "record which inputs of a model's matrices matter on a text, for pack --importance");
  BeginGroup(*command, "Calibration");
  AddFlag(*command, "--text", flags->text_file, "file that holds the text; - for standard input")
      .Required()
      .TypeName("FILE");
  AddFlag(*command, "-o,--output", flags->output_path, "file to write").Required().TypeName("FILE");
  AddFlag(*command, "--products", flags->with_products,
          "also record products of inputs, so that weights can make up for each other's errors; takes 1 KiB for each "
          "input of each expert");
  AddModelFlags(*command, flags->model);
  AddLogFlags(*command, log);
  SetExamples(*command,
              "penstock calibrate -m models/penstock-demo --text book.txt -o importance.safetensors --products");
  return {command, [flags, &log] {
            flags->quiet = log.quiet;
            return CalibrateCommand(*flags);
          }};
}

// The subcommand also takes the flags of penstock bench.
Command AddBenchRoutingCommand(CLI::App& bench, const std::shared_ptr<BenchFlags>& bench_flags) {
  auto flags = std::make_shared<BenchRoutingFlags>();
  CLI::App* command = AddCommand(
      bench, "routing",
      "find the eviction and predictor that suit a model's routing, by share of its experts in memory; also takes the "
      "flags of penstock bench");
  TakeFlagsOfParent(*command);
  BeginGroup(*command, "Routing");
  const Flag trace = AddFlag(*command, "--routing", flags->trace_path,
                             "routing of an earlier run, recorded with --record-routing and --record-scores")
                         .TypeName("FILE");
  AddFlag(*command, "--text", flags->text_path, "record a run now, with prompts cut from this text (-: standard input)")
      .TypeName("FILE")
      .Excludes(trace);
  AddFlag(*command, "--requests", flags->requests, "with --text: number of prompts").InRange(1, 10'000).ShowDefault();
  AddFlag(*command, "--prompt", flags->prompt_tokens, "with --text: tokens of each prompt")
      .InRange(1, kMaxContext / 2)
      .ShowDefault();
  AddFlag(*command, "--gen", flags->new_tokens, "with --text: tokens of each answer")
      .InRange(1, kMaxContext / 2)
      .ShowDefault();
  AddFlag(*command, "--room", flags->room, "percentages of the experts that fit, separated by commas")
      .SeparatedBy(',')
      .InRange(1, 100)
      .ShowDefault();
  AddFlag(*command, "--runs", flags->runs,
          "with --text: real runs of each pair at most, besides the prediction; 0: none")
      .InRange(0, 100)
      .ShowDefault();
  AddFlag(*command, "--seconds", flags->seconds,
          "with --text: time for the real runs; pairs with the best predictions run first")
      .NumberFrom(0, 1e6)
      .ShowDefault();
  SetExamples(*command, "penstock bench routing -m models/penstock-demo --text book.txt");
  return {command, [flags, bench_flags] {
            flags->bench = *bench_flags;
            return BenchRoutingCommand(*flags);
          }};
}

// Returns the subcommand and the command itself.
std::array<Command, 2> AddBenchCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command =
      AddCommand(app, "bench", "tokens per second of a model on random tokens; default sizes are cut to what fits");
  BeginGroup(*command, "Measurements");
  AddFlag(*command, "--prefill", flags->prefill, "prompt lengths to measure, separated by commas; 0: none")
      .SeparatedBy(',')
      .InRange(0, kMaxContext)
      .ShowDefault();
  AddFlag(*command, "--decode", flags->decode, "numbers of sequences to measure, separated by commas; 0: none")
      .SeparatedBy(',')
      .InRange(0, kMaxBatchSize)
      .ShowDefault();
  AddFlag(*command, "--context", flags->context, "tokens of each decoding sequence before the measured ones")
      .InRange(1, kMaxContext)
      .ShowDefault();
  AddFlag(*command, "--empty-context", flags->empty_context,
          "decode: use zeros for the KV entries of the context instead of computing them");
  AddFlag(*command, "--steps", flags->steps, "measured decode steps").InRange(1, 100'000).ShowDefault();
  AddFlag(*command, "--shared", flags->shared, "tokens with which all prompts and contexts begin in common")
      .InRange(0, kMaxContext)
      .ShowDefault();
  AddFlag(*command, "--repetitions", flags->repetitions, "runs of each prefill").InRange(1, 1000).ShowDefault();
  AddFlag(*command, "--json", flags->as_json, "print a JSON object for each measurement");
  AddFlag(*command, "--hardware", flags->hardware_path,
          "JSON of penstock probe --model: also predict the decode steps from it; needs --record-routing (bench "
          "routing: default is this machine)")
      .TypeName("FILE");
  AddModelFlags(*command, flags->model);
  AddLogFlags(*command, log);
  SetExamples(*command, "penstock bench -m DIR --prefill 512 --decode 1,64 --memory 50%");
  AllowOneSubcommand(*command);
  return {AddBenchRoutingCommand(*command, flags), {command, [flags] { return BenchCommand(*flags); }}};
}

Command AddPlanCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command =
      AddCommand(app, "plan", "predict before running: will it run, how fast, what limits it, what would help");
  AddDescribedFlags(*command, flags->described, ScheduleNames() + "(default: all are tried)");
  BeginGroup(*command, "Results");
  AddFlag(*command, "-o,--output", flags->policy_output_path, "write the policy into a file, for penstock run --policy")
      .TypeName("FILE");
  AddFlag(*command, "--plot", flags->plot_path, "draw the roofline with the policy's place on it, as SVG")
      .TypeName("FILE");
  AddFlag(*command, "--json", flags->as_json, "print JSON");
  AddLogFlags(*command, log);
  SetExamples(*command,
              "penstock plan -m DIR --memory 12GiB --workload prompt=400,gen=128,requests=1000\n"
              "penstock plan --config config.json --weights hqq4 --hardware rtx4090:dram=128GiB,disk=nvme4");
  return {command, [flags] { return PlanCommand(*flags); }};
}

Command AddSimulateCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<SimulateFlags>();
  CLI::App* command = AddCommand(app, "simulate", "run a workload in virtual time, on hardware that you need not have");
  AddSimulateFlags(*command, *flags);
  AddLogFlags(*command, log);
  SetExamples(*command, "penstock simulate --config config.json --hardware t4 --workload mtbench --schedule all");
  return {command, [flags] { return SimulateCommand(*flags); }};
}

Command AddListCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<ListFlags>();
  CLI::App* command = AddCommand(app, "list", "what flags and policy files may name, with a line on each");
  BeginGroup(*command, "Tables");
  AddFlag(*command, "table", flags->table, ListNames() + " (default: all)").Values(ListNames());
  AddLogFlags(*command, log);
  SetExamples(*command, "penstock list schedules");
  return {command, [flags] { return ListCommand(*flags); }};
}

Command AddProbeCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<ProbeFlags>();
  CLI::App* command = AddCommand(
      app, "probe", "measure this machine: memory, arithmetic, kernels, disk; plan and run --policy auto use it");
  BeginGroup(*command, "Probe");
  AddFlag(*command, "-m,--model", flags->model.engine.model_dir,
          "measure only the kernels of this model's formats, and the disk that holds it")
      .TypeName("DIR");
  AddMirrorFlag(*command, flags->model.engine);
  const std::string dtypes = "auto, " + ChoiceNames(ComputeDtypes());
  AddFlag(*command, "--dtype", flags->model.dtype, "with --model: " + dtypes).Values(dtypes);
  AddFlag(*command, "--disk", flags->disk_dir,
          "without --model: a folder on the disk to measure (a file of 1 GiB is written there for a moment), or none")
      .TypeName("DIR");
  AddFlag(*command, "--seconds", flags->seconds,
          "approximate duration; kernels in all formats take ten seconds more (default: 20)")
      .NumberFrom(1, 40);
  AddFlag(*command, "-t,--threads", flags->model.engine.threads,
          "most threads to measure with (default: all usable CPUs)")
      .InRange(1, kMaxThreads);
  AddFlag(*command, "--json", flags->as_json, "print JSON");
  AddFlag(*command, "-o,--output", flags->output_path, "write the JSON into a file, too").TypeName("FILE");
  AddLogFlags(*command, log);
  SetExamples(*command, "penstock probe\npenstock probe -m DIR --output hardware.json");
  return {command, [flags] { return ProbeCommand(*flags); }};
}

Command AddDoctorCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command =
      AddCommand(app, "doctor", "how well this machine suits Penstock and a model, and what would make it faster");
  BeginGroup(*command, "Model");
  AddFlag(*command, "-m,--model", flags->model_dir, "also look at this model, and at the disk that holds it")
      .TypeName("DIR");
  AddFlag(*command, "--json", flags->as_json, "print JSON");
  AddLogFlags(*command, log);
  SetExamples(*command, "penstock doctor -m DIR");
  return {command, [flags] { return DoctorCommand(*flags); }};
}

// Main() itself carries out `penstock help COMMAND`; the command is here for lists of commands.
Command AddHelpCommand(CLI::App& app) {
  CLI::App* command = AddCommand(app, "help", "the flags of a command, with examples: penstock help run");
  return {command, [] { return UsageError("help: expected the name of a command"); }};
}

Command AddCompletionCommand(CLI::App& app, const CommandLine& line) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = AddCommand(app, "completion", "script that completes commands and flags in a shell");
  BeginGroup(*command, "Shell");
  AddFlag(*command, "shell", *shell, "bash, zsh or fish").Values("bash zsh fish").Required();
  SetExamples(*command, "source <(penstock completion bash)");
  return {command, [shell, &line]() -> absl::StatusOr<int> {
            PENSTOCK_ASSIGN_OR_RETURN(const std::string script, FormatCompletion(line.Describe(), *shell));
            PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, script, "stdout"));
            return 0;
          }};
}

Command AddManCommand(CLI::App& app, const CommandLine& line) {
  CLI::App* command = AddCommand(app, "man", "the manual page, for man");
  SetExamples(*command, "penstock man | man -l -");
  return {command, [&line]() -> absl::StatusOr<int> {
            const std::string version = "penstock " + std::string(Version());
            PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, FormatManPage(line.Describe(), version), "stdout"));
            return 0;
          }};
}

// Returns "penstock 0.2.0 (commit d41e9267c9f3, avx512)".
std::string VersionLine() {
  const char* forced = std::getenv("PENSTOCK_FORCE_ISA");
  const absl::StatusOr<kernels::Isa> isa = kernels::ChooseIsa(forced == nullptr ? "" : forced);
  const std::string_view isa_name = isa.ok() ? kernels::IsaName(*isa) : "no instruction set";
  const std::string commit = Commit().empty() ? "" : fmt::format("commit {}, ", Commit());
  return fmt::format("penstock {} ({}{})", Version(), commit, isa_name);
}

// Prints "penstock: error: ..." to stderr and returns the exit code.
int ReportError(const absl::Status& status) {
  std::fprintf(stderr, "penstock: error: %s\n", Message(status).c_str());
  return ExitCode(status);
}

}  // namespace

int Main(int argc, char** argv) {
  OccupyStandardStreams();
  std::signal(SIGPIPE, SIG_IGN);  // writing to a closed stdout fails, but does not end the process
  std::signal(SIGXFSZ, SIG_IGN);
  if (!SetUpLogging("info").ok()) return 1;
  RaiseFileLimit();

  CommandLine line("Penstock runs Mixture-of-Experts language models that do not fit into memory.", "penstock",
                   VersionLine());
  CLI::App& app = line.app();
  LogFlags log;
  std::vector<Command> commands;
  const auto add = [&](auto... functions) { (commands.push_back(functions(app, log)), ...); };
  add(AddRunCommand, AddMergeCommand, AddGenerateCommand, AddServeCommand, AddChatCommand, AddPackCommand,
      AddMirrorCommand, AddInspectCommand, AddTokenizeCommand, AddPerplexityCommand, AddQualityCommand,
      AddCalibrateCommand);
  for (Command& command : AddBenchCommand(app, log)) commands.push_back(std::move(command));
  add(AddProbeCommand, AddDoctorCommand, AddPlanCommand, AddSimulateCommand, AddListCommand);
  commands.push_back(AddHelpCommand(app));
  commands.push_back(AddCompletionCommand(app, line));
  commands.push_back(AddManCommand(app, line));
  std::vector<char*> words = ReplaceHelpCommand(argc, argv);
  const absl::StatusOr<std::optional<int>> done = line.Parse(static_cast<int>(words.size()), words.data());
  if (!done.ok() && !IsFirstRank()) {
    // All ranks find the same fault. Rank 0 needs a moment to say it, before the launcher ends it with the others.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return ExitCode(done.status());
  }
  if (!done.ok()) return ReportError(done.status());
  if (done->has_value()) return **done;
  for (const Command& command : commands) {
    if (!IsChosen(*command.app)) continue;
    if (const absl::Status status = SetUpLogging(log.quiet ? "error" : log.level); !status.ok())
      return ReportError(status);
    const absl::StatusOr<int> exit_code = command.run();
    return exit_code.ok() ? *exit_code : ReportError(exit_code.status());
  }
  return ReportError(UsageError("no command given"));
}

}  // namespace penstock::cli
