#include "penstock/cli/command_line.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>

#include <fcntl.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/base/version.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/common_flags.h"

namespace penstock::cli {
namespace {

constexpr std::string_view kVariablePrefix = "PENSTOCK_";
// Variables that are no flags.
constexpr std::string_view kOtherVariables[] = {"PENSTOCK_FORCE_ISA", "PENSTOCK_TEST_SEED"};

std::string VariableName(const std::string& flag) {
  std::string name(kVariablePrefix);
  for (const char c : flag) name.push_back(c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
  return name;
}

// Levenshtein distance, for "did you mean".
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

std::string Nearest(std::string word, const std::vector<std::string>& names) {
  word = word.substr(0, word.find('='));
  word.erase(0, word.find_first_not_of('-'));
  if (word.size() > 64) return "";
  std::string nearest;
  size_t least = 1 + word.size() / 3;
  for (const std::string& name : names) {
    const size_t distance = EditDistance(word, name);
    if (distance <= least) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

// Gives every flag an environment variable and warns of PENSTOCK_* variables that no flag knows.
void BindVariables(CLI::App& app) {
  std::vector<std::string> known(std::begin(kOtherVariables), std::end(kOtherVariables));
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_lnames().empty() || option->get_lnames()[0] == "help") continue;
      const std::string name = VariableName(option->get_lnames()[0]);
      option->envname(name);
      known.push_back(name);
    }
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(kVariablePrefix) || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = Nearest(std::string(name), known);
    LogWarning("environment variable {} is not known{}", Printable(name),
               nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
  }
}

// The line of an option file on which `key` is set; 0 when it is not found.
int LineOfKey(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos || line.compare(begin, key.size(), key) != 0) continue;
    const size_t after = line.find_first_not_of(" \t", begin + key.size());
    if (after != std::string::npos && line[after] == '=') return number;
  }
  return 0;
}

CLI::App* ChosenCommand(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? nullptr : chosen[0];
}

// What --options-file or its variable says; empty when neither was given.
std::string OptionFile(const CLI::App* command) {
  const CLI::Option* option = command == nullptr ? nullptr : command->get_option_no_throw(kOptionFileFlag);
  return option == nullptr || option->count() == 0 ? std::string() : option->as<std::string>();
}

// How CLI11 begins its message about a key that is no flag.
constexpr std::string_view kUnknownKey = "INI was not able to parse ";

absl::Status UsageFault(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = ChosenCommand(app);
  std::string message = error.what();
  std::string hint;
  const auto name_unknown = [&](std::string_view kind, const std::string& name) {
    message = fmt::format("unknown {} '{}'", kind, name);
    const std::string nearest = Nearest(name, FlagNames(command == nullptr ? app : *command));
    if (!nearest.empty()) hint = fmt::format("; did you mean --{}?", nearest);
  };
  // A misspelt --model is unknown, and missing too; the first says more.
  const auto extras = app.remaining(/*recurse=*/true);
  const bool is_missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (!extras.empty() && (is_missing || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)) {
    name_unknown("argument", extras[0]);
  }
  if (const std::string path = OptionFile(command); !path.empty()) {
    const bool in_file = message.starts_with(kUnknownKey);
    if (in_file) {
      const std::string key = message.substr(kUnknownKey.size());
      name_unknown("flag", key);
      if (const int line = LineOfKey(path, key); line > 0)
        return UsageError("{}, line {}: {}{}", path, line, message, hint);
      return UsageError("{}: {}{}", path, message, hint);
    }
    for (const std::string& word : CLI::detail::split(message, ' ')) {
      std::string key = word;
      CLI::detail::remove_quotes(key);
      key.erase(0, key.find_first_not_of('-'));
      while (!key.empty() && (key.back() == ':' || key.back() == ',')) key.pop_back();
      const int line = key.empty() ? 0 : LineOfKey(path, key);
      if (line > 0) return UsageError("{}, line {}: {}{}", path, line, message, hint);
    }
  }
  return UsageError("{}{} (see penstock {}--help)", message, hint, command == nullptr ? "" : command->get_name() + " ");
}

// Parses the command line, and then the chosen command's option file, which fills what neither a flag nor a variable
// gave. Throws CLI::ParseError.
absl::Status ParseFlags(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError&) {
    if (OptionFile(ChosenCommand(app)).empty()) throw;  // what is missing may stand in the file
  }
  const std::string path = OptionFile(ChosenCommand(app));
  if (path.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxConfigBytes);
  if (!text.ok()) return UsageError("{}: {}", kOptionFileFlag, Message(text.status()));
  std::istringstream stream(*text);
  ChosenCommand(app)->parse_from_stream(stream);
  return absl::OkStatus();
}

// A file must never get the number of a closed standard stream, or messages would be written into it. What takes the
// place here refuses to be used: reading from it or writing to it fails.
void OccupyStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// A subcommand, and what runs it with the flags that were parsed.
struct Command {
  CLI::App* app = nullptr;
  std::function<absl::StatusOr<int>()> run;
};

Command AddRunCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command =
      app.add_subcommand("run", "offline batch job: a JSONL file of requests to a JSONL file of results");
  AddModelFlags(*command, flags->model);
  command->add_option("-i,--input", flags->job.input_path, "requests, one JSON object per line ('-': standard input)")
      ->required()
      ->type_name("FILE");
  command->add_option("-o,--output", flags->job.output_path, "results, one JSON object per line")->type_name("FILE");
  command->add_flag("--resume", flags->job.resume, "continue the job of this output");
  command->add_flag("--validate-only", flags->validate_only, "check the input, load no model, write nothing");
  command->add_option("--stats", flags->job.stats_path, "write statistics as JSON")->type_name("FILE");
  AddSamplingFlags(*command, flags->job.sampling);
  AddLogFlags(*command, log);
  return {command, [flags, &log] {
            flags->job.quiet = log.quiet;
            return RunCommand(*flags);
          }};
}

Command AddGenerateCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "stream one answer to stdout");
  AddModelFlags(*command, flags->model);
  auto* prompt = command->add_option("-p,--prompt", flags->prompt, "the prompt")->type_name("TEXT");
  auto* file =
      command->add_option("--prompt-file", flags->prompt_file, "file that holds the prompt")->type_name("FILE");
  prompt->excludes(file);
  command->add_option("--system", flags->system, "system message")->type_name("TEXT");
  command->add_flag("--raw", flags->raw, "continue the prompt as plain text, without the model's chat template");
  AddSamplingFlags(*command, flags->sampling);
  AddLogFlags(*command, log);
  return {command, [flags] { return GenerateCommand(*flags); }};
}

Command AddPackCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<PackFlags>();
  CLI::App* command =
      app.add_subcommand("pack", "write a model as a packed store: compute-ready, checksummed, quantised if asked for");
  command->add_option("-m,--model", flags->pack.model_dir, "Hugging Face model folder")->required()->type_name("DIR");
  command->add_option("-o,--output", flags->pack.output_dir, "folder to write; must not exist")
      ->required()
      ->type_name("DIR");
  command->add_option("--quantize", flags->pack.quantize, "none, int8, hqq4 or hqq3")->capture_default_str();
  command->add_option("--dtype", flags->pack.dtype, "auto (the checkpoint's own) or bf16")->capture_default_str();
  command->add_option("-t,--threads", flags->pack.threads, "compute threads (default: all usable CPUs)")
      ->check(CLI::Range(1, kMaxThreads));
  AddLogFlags(*command, log);
  return {command, [flags, &log] {
            flags->quiet = log.quiet;
            return PackCommand(*flags);
          }};
}

Command AddInspectCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "what is in a checkpoint: dims, sizes per layer and tier");
  command
      ->add_option("-m,--model", flags->model_dir,
                   "model: a Hugging Face folder, a packed store, a GGUF file or its folder")
      ->required()
      ->type_name("DIR");
  command->add_flag("--json", flags->as_json, "print JSON");
  command->add_flag("--verify", flags->verify, "read all weights and look for NaN and infinity");
  AddLogFlags(*command, log);
  return {command, [flags] { return InspectCommand(*flags); }};
}

Command AddTokenizeCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "text to token ids, one JSON array per text, and back");
  command
      ->add_option("-m,--model", flags->model_dir,
                   "model: a Hugging Face folder, a packed store, a GGUF file or its folder")
      ->required()
      ->type_name("DIR");
  auto* text =
      command->add_option("--text", flags->text, "the text (with --decode: a JSON array of ids)")->type_name("TEXT");
  auto* file = command->add_option("--file", flags->file, "file with one text per line")->type_name("FILE");
  text->excludes(file);
  command->add_flag("--no-special", flags->no_special,
                    "add no BOS or EOS (with --decode: leave special tokens out of the text)");
  command->add_flag("--as-message", flags->as_message,
                    "encode as a chat message is encoded: what looks like a special token stays ordinary text");
  command->add_flag("--decode", flags->decode, "turn ids back into text");
  AddLogFlags(*command, log);
  return {command, [flags] { return TokenizeCommand(*flags); }};
}

Command AddPerplexityCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command = app.add_subcommand("perplexity", "how well the model predicts a text");
  AddModelFlags(*command, flags->model);
  command->add_option("--text", flags->text_file, "file that holds the text")->required()->type_name("FILE");
  AddLogFlags(*command, log);
  return {command, [flags] { return PerplexityCommand(*flags); }};
}

// The flags of penstock bench are its flags, too.
Command AddBenchRoutingCommand(CLI::App& bench, const std::shared_ptr<BenchFlags>& bench_flags) {
  auto flags = std::make_shared<BenchRoutingFlags>();
  CLI::App* command = bench.add_subcommand(
      "routing",
      "which eviction and predictor pay for a model's routing, with what share of its experts; takes the flags of "
      "penstock bench, too");
  command->fallthrough();
  CLI::Option* trace = command
                           ->add_option("--routing", flags->trace_path,
                                        "of an earlier run, recorded with --record-routing and --record-scores")
                           ->type_name("FILE");
  command->add_option("--text", flags->text_path, "record now: prompts are cut from this text, and answered")
      ->type_name("FILE")
      ->excludes(trace);
  command->add_option("--requests", flags->requests, "with --text: how many")
      ->check(CLI::Range(int64_t{1}, int64_t{10'000}))
      ->capture_default_str();
  command->add_option("--prompt", flags->prompt_tokens, "with --text: tokens of each prompt")
      ->check(CLI::Range(int64_t{1}, kMaxContext / 2))
      ->capture_default_str();
  command->add_option("--gen", flags->new_tokens, "with --text: tokens of each answer")
      ->check(CLI::Range(int64_t{1}, kMaxContext / 2))
      ->capture_default_str();
  command->add_option("--room", flags->room, "percent of the experts that there is room for, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{100}))
      ->capture_default_str();
  command->add_option("--runs", flags->runs, "with --text: real runs of each pair beside the predicted one; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{100}))
      ->capture_default_str();
  return {command, [flags, bench_flags] {
            flags->bench = *bench_flags;
            return BenchRoutingCommand(*flags);
          }};
}

// Its subcommand, and itself.
std::array<Command, 2> AddBenchCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand("bench", "tokens per second of a model on random tokens");
  AddModelFlags(*command, flags->model);
  command->add_option("--prefill", flags->prefill, "prompt lengths to measure, separated by commas; 0: none")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{0}, kMaxContext))
      ->capture_default_str();
  command->add_option("--decode", flags->decode, "numbers of sequences to measure, separated by commas; 0: none")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{0}, kMaxBatchSize))
      ->capture_default_str();
  command->add_option("--context", flags->context, "tokens of each decoding sequence before the measured ones")
      ->check(CLI::Range(int64_t{1}, kMaxContext))
      ->capture_default_str();
  command->add_flag("--empty-context", flags->empty_context,
                    "decode: take zeros for the KV entries of the context instead of computing them");
  command->add_option("--steps", flags->steps, "measured decode steps")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000}))
      ->capture_default_str();
  command->add_option("--repetitions", flags->repetitions, "of each prefill")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  command->add_flag("--json", flags->as_json, "print a JSON object for each measurement");
  command
      ->add_option(
          "--hardware", flags->hardware_path,
          "JSON of penstock probe --model: predict the decode steps from it, too; needs --record-routing (bench "
          "routing: this machine's, unless another is given)")
      ->type_name("FILE");
  AddLogFlags(*command, log);
  command->require_subcommand(0, 1);
  return {AddBenchRoutingCommand(*command, flags), {command, [flags] { return BenchCommand(*flags); }}};
}

Command AddPlanCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command =
      app.add_subcommand("plan", "say before running: will it run, how fast, what limits it, what would help");
  AddDescribedFlags(*command, flags->described);
  command->add_option("--schedule", flags->described.model.schedule, ScheduleNames() + "(auto: all are tried)");
  command
      ->add_option("-o,--output", flags->policy_output_path, "write the policy into a file, for penstock run --policy")
      ->type_name("FILE");
  command->add_option("--plot", flags->plot_path, "draw the roofline with the policy's place on it, as SVG")
      ->type_name("FILE");
  command->add_flag("--json", flags->as_json, "print JSON");
  AddLogFlags(*command, log);
  return {command, [flags] { return PlanCommand(*flags); }};
}

Command AddSimulateCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<SimulateFlags>();
  CLI::App* command =
      app.add_subcommand("simulate", "run a workload in virtual time, on hardware that need not be here");
  AddDescribedFlags(*command, flags->described);
  command->add_option("--schedule", flags->described.model.schedule, "all (side by side), " + ScheduleHelp());
  command
      ->add_option(
          "--sweep", flags->sweep,
          "the best policy while one number changes, as CSV: cpu-memory=16GiB..256GiB, gpu-memory=.., disk=1GB..14GB "
          "and link=4GB..64GB (a second), batch-size=1..256")
      ->type_name("SPEC");
  command->add_option("--plot", flags->plot_path, "with --sweep: draw it, as SVG")->type_name("FILE");
  command->add_option("--routing-skew", flags->routing.skew, "how much likelier an expert is than the next one")
      ->check(NumberFrom(1, 100))
      ->capture_default_str();
  command
      ->add_option("--routing-repeat", flags->routing.repeat,
                   "how often a sequence's next token chooses an expert of its last one again")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  command
      ->add_option("--gate-accuracy", flags->routing.gate_accuracy,
                   "share of a layer's choices that its gate names one layer before; 0: it is not asked")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--seed", flags->routing.seed, "of the routing")->check(UnsignedInteger());
  command->add_flag("--json", flags->as_json, "print JSON");
  AddLogFlags(*command, log);
  return {command, [flags] { return SimulateCommand(*flags); }};
}

Command AddProbeCommand(CLI::App& app, LogFlags& log) {
  auto flags = std::make_shared<ProbeFlags>();
  CLI::App* command = app.add_subcommand(
      "probe", "measure this machine: memory, arithmetic, kernels, disk; plan and run --policy auto use it");
  command
      ->add_option("-m,--model", flags->model.engine.model_dir,
                   "kernels with this model's weights alone, and the disk where it lies")
      ->type_name("DIR");
  command->add_option("--dtype", flags->model.engine.dtype, "with --model: auto, f32 or bf16");
  command
      ->add_option("--disk", flags->disk_dir,
                   "without --model: a folder on the disk to measure, where 1 GiB is written for a moment, or none")
      ->type_name("DIR");
  command->add_option("--seconds", flags->seconds, "about so long; kernels in all formats take ten more (default: 20)")
      ->check(CLI::Range(1.0, 40.0));
  command
      ->add_option("-t,--threads", flags->model.engine.threads,
                   "most threads to measure with (default: all usable CPUs)")
      ->check(CLI::Range(1, kMaxThreads));
  command->add_flag("--json", flags->as_json, "print JSON");
  command->add_option("-o,--output", flags->output_path, "write the JSON into a file, too")->type_name("FILE");
  AddLogFlags(*command, log);
  return {command, [flags] { return ProbeCommand(*flags); }};
}

// Prints "penstock: error: ..." to stderr and returns the exit code.
int ReportError(const absl::Status& status) {
  std::fprintf(stderr, "penstock: error: %s\n", Message(status).c_str());
  return ExitCode(status);
}

}  // namespace

int Main(int argc, char** argv) {
  OccupyStandardStreams();
  std::signal(SIGPIPE, SIG_IGN);  // a closed stdout is a failed write, not the end
  std::signal(SIGXFSZ, SIG_IGN);
  if (!SetUpLogging("info").ok()) return 1;

  CLI::App app("Penstock runs Mixture-of-Experts language models that do not fit into memory.", "penstock");
  app.set_version_flag("--version", "penstock " + std::string(Version()));
  app.require_subcommand(1);
  app.get_formatter()->column_width(38);
  LogFlags log;
  std::vector<Command> commands = {AddRunCommand(app, log),      AddGenerateCommand(app, log),
                                   AddPackCommand(app, log),     AddInspectCommand(app, log),
                                   AddTokenizeCommand(app, log), AddPerplexityCommand(app, log)};
  for (Command& command : AddBenchCommand(app, log)) commands.push_back(std::move(command));
  commands.push_back(AddProbeCommand(app, log));
  commands.push_back(AddPlanCommand(app, log));
  commands.push_back(AddSimulateCommand(app, log));
  BindVariables(app);
  try {
    if (const absl::Status status = ParseFlags(app, argc, argv); !status.ok()) return ReportError(status);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success))
      return app.exit(error);  // --help, --version
    return ReportError(UsageFault(app, error));
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    if (const absl::Status status = SetUpLogging(log.quiet ? "error" : log.level); !status.ok())
      return ReportError(status);
    const absl::StatusOr<int> exit_code = command.run();
    return exit_code.ok() ? *exit_code : ReportError(exit_code.status());
  }
  return ReportError(UsageError("no command given"));
}

}  // namespace penstock::cli
