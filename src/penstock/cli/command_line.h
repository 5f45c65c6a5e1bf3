// What the commands share: their flags, environment variables, option files, and how an error ends the process.
//
// Precedence: flag, then environment variable PENSTOCK_<FLAG>, then option file, then default.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "penstock/engine.h"
#include "penstock/job/sampling_fields.h"

namespace penstock::cli {

// A command: its flags are added to a subcommand of `app`, and it is run when the user chose it. Returns the exit code.
struct Command {
  CLI::App* app = nullptr;
  std::function<absl::StatusOr<int>()> run;
};

// Flags as text, before they are checked.
struct ModelFlags {
  std::string memory;
  std::string device = "auto";
  std::string schedule = "auto";
  EngineOptions engine;
};

// --model and the flags of every command that computes.
void AddModelFlags(CLI::App& app, ModelFlags& flags);
// The checked options.
absl::StatusOr<EngineOptions> ToEngineOptions(const ModelFlags& flags);

// Sampling flags; those that are not given stay empty and keep the model's defaults.
void AddSamplingFlags(CLI::App& app, SamplingOverrides& flags);

// --quiet, --log-level and --options-file.
struct LogFlags {
  std::string level = "info";
  bool quiet = false;
};
void AddLogFlags(CLI::App& app, LogFlags& flags);
absl::Status ApplyLogFlags(const LogFlags& flags);

// Prints "penstock: error: ..." to stderr and returns the exit code.
int ReportError(const absl::Status& status);

// The whole command line: parses, runs the chosen command, returns the exit code.
int Main(int argc, char** argv);

// One per file of this folder.
Command MakeRunCommand(CLI::App& app);
Command MakeGenerateCommand(CLI::App& app);
Command MakeInspectCommand(CLI::App& app);
Command MakeTokenizeCommand(CLI::App& app);
Command MakePerplexityCommand(CLI::App& app);

}  // namespace penstock::cli
