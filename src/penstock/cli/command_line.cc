#include "penstock/cli/command_line.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

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
    spdlog::warn("environment variable {} is not known{}", Printable(name),
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

const CLI::App* ChosenCommand(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? nullptr : chosen[0];
}

absl::Status UsageFault(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = ChosenCommand(app);
  std::string message = error.what();
  std::string hint;
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && command != nullptr) {
    const auto extras = command->remaining();
    if (!extras.empty()) {
      message = fmt::format("unknown argument '{}'", extras[0]);
      const std::string nearest = Nearest(extras[0], FlagNames(*command));
      if (!nearest.empty()) hint = fmt::format("; did you mean --{}?", nearest);
    }
  }
  if (command != nullptr) {
    const CLI::Option* file_option = command->get_config_ptr();
    if (file_option != nullptr && file_option->count() > 0) {
      const std::string path = file_option->as<std::string>();
      for (const std::string& word : CLI::detail::split(message, ' ')) {
        std::string key = word;
        CLI::detail::remove_quotes(key);
        key.erase(0, key.find_first_not_of('-'));
        while (!key.empty() && (key.back() == ':' || key.back() == ',')) key.pop_back();
        const int line = key.empty() ? 0 : LineOfKey(path, key);
        if (line > 0) return UsageError("{}, line {}: {}{}", path, line, message, hint);
      }
    }
  }
  return UsageError("{}{} (see penstock {}--help)", message, hint,
                    command == nullptr ? "" : command->get_name() + " ");
}

}  // namespace

void AddModelFlags(CLI::App& app, ModelFlags& flags) {
  EngineOptions& engine = flags.engine;
  app.add_option("-m,--model", engine.model_dir, "Hugging Face model folder")->required()->type_name("DIR");
  app.add_option("--memory", flags.memory, "DRAM budget for everything Penstock allocates (default: 3/4 of what is free)")
      ->type_name("SIZE");
  app.add_option("--device", flags.device, "auto or cpu")->capture_default_str();
  app.add_option("--schedule", flags.schedule, "auto or on-demand")->capture_default_str();
  app.add_option("--batch-size", engine.batch_size, "sequences at once (default: as many as the budget allows, at most 64)")
      ->check(CLI::Range(int64_t{1}, kMaxBatchSize));
  app.add_option("--prefill-chunk", engine.prefill_chunk, "prompt rows per step (default: up to 256)")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app.add_option("--context-length", engine.context_length,
                 "longest prompt with its answer, in tokens (default: the model's, at most 8192)")
      ->check(CLI::Range(int64_t{2}, kMaxContext));
  app.add_option("-t,--threads", engine.threads, "compute threads (default: all usable CPUs)")
      ->check(CLI::Range(1, kMaxThreads));
  app.add_option("--dtype", engine.dtype, "auto, f32 or bf16")->capture_default_str();
  app.add_option("--kv-dtype", engine.kv_dtype, "auto, f32 or bf16")->capture_default_str();
}

absl::StatusOr<EngineOptions> ToEngineOptions(const ModelFlags& flags) {
  EngineOptions options = flags.engine;
  if (!flags.memory.empty()) {
    auto bytes = ParseBytes(flags.memory);
    if (!bytes.ok()) return Annotate(bytes.status(), "--memory");
    options.memory_bytes = *bytes;
  }
  if (flags.device.starts_with("cuda")) {
    return ResourceError("--device {}: this build has no GPU support; use --device cpu", flags.device);
  }
  if (flags.device != "auto" && flags.device != "cpu") {
    return UsageError("--device '{}' is unknown: expected auto or cpu", flags.device);
  }
  if (flags.schedule != "auto" && flags.schedule != "on-demand") {
    return UsageError("--schedule '{}' is unknown: expected auto or on-demand", flags.schedule);
  }
  return options;
}

void AddSamplingFlags(CLI::App& app, SamplingOverrides& flags) {
  app.add_option("-n,--max-tokens", flags.max_tokens, "longest answer, in tokens (default 256)")
      ->check(CLI::Range(int64_t{1}, kMaxContext));
  app.add_option("--temperature", flags.temperature, "0: greedy")->check(CLI::Range(0.0, 100.0));
  app.add_option("--top-k", flags.top_k, "0: off")->check(CLI::Range(int64_t{0}, kMaxVocabSize));
  app.add_option("--top-p", flags.top_p, "1: off")->check(CLI::Range(1e-9, 1.0));
  app.add_option("--min-p", flags.min_p, "0: off")->check(CLI::Range(0.0, 1.0));
  app.add_option("--repetition-penalty", flags.repetition_penalty, "1: off")->check(CLI::Range(0.001, 100.0));
  app.add_option("--seed", flags.seed, "of the random numbers (default 0)");
  app.add_option_function<std::vector<std::string>>(
         "--stop", [&flags](const std::vector<std::string>& texts) { flags.stop = texts; },
         "text before which generation ends; may be given several times")
      ->allow_extra_args(false)
      ->type_name("TEXT");
  app.add_flag_function(
      "--ignore-eos", [&flags](int64_t) { flags.ignore_eos = true; },
      "go on after the end-of-sequence token, up to --max-tokens");
}

void AddLogFlags(CLI::App& app, LogFlags& flags) {
  app.add_option("--log-level", flags.level, "trace, debug, info, warning, error or off")->capture_default_str();
  app.add_flag("-q,--quiet", flags.quiet, "no progress, no notes: errors only");
  app.set_config("--options-file", "", "file with flags, one per line: memory = \"16GiB\"")->type_name("FILE");
  app.allow_config_extras(false);
}

absl::Status ApplyLogFlags(const LogFlags& flags) { return SetUpLogging(flags.quiet ? "error" : flags.level); }

int ReportError(const absl::Status& status) {
  std::fprintf(stderr, "penstock: error: %s\n", Message(status).c_str());
  return ExitCode(status);
}

int Main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed stdout is a failed write, not the end
  std::signal(SIGXFSZ, SIG_IGN);
  if (!SetUpLogging("info").ok()) return 1;

  CLI::App app("Penstock runs Mixture-of-Experts language models that do not fit into memory.", "penstock");
  app.set_version_flag("--version", "penstock " PENSTOCK_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(38);
  const Command commands[] = {MakeRunCommand(app), MakeGenerateCommand(app), MakeInspectCommand(app),
                              MakeTokenizeCommand(app), MakePerplexityCommand(app)};
  BindVariables(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);  // --help, --version
    return ReportError(UsageFault(app, error));
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const absl::StatusOr<int> exit_code = command.run();
    return exit_code.ok() ? *exit_code : ReportError(exit_code.status());
  }
  return ReportError(UsageError("no command given"));
}

}  // namespace penstock::cli
