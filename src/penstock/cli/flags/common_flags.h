// Flags that several commands share.
#pragma once

#include <string>

#include "penstock/cli/commands.h"
#include "penstock/cli/flags/flags.h"

namespace penstock::cli {

struct LogFlags {
  std::string level = "info";
  bool quiet = false;
};
void AddLogFlags(CLI::App& app, LogFlags& flags);

// Return help texts: the schedules' names; ScheduleHelp() adds the default, and what `auto` is.
std::string ScheduleNames();
std::string ScheduleHelp();

// Adds --model-mirror.
void AddMirrorFlag(CLI::App& app, EngineOptions& engine);
// AddPolicyFlags() adds the flags of every command that computes or simulates. AddModelFlags() adds to them --model and
// the flags of commands that really compute, among them those of AddTraceFlags(). Each begins a group. `is_required` is
// whether --model must be given.
void AddPolicyFlags(CLI::App& app, ModelFlags& flags, const std::string& schedule_help);
void AddModelFlags(CLI::App& app, ModelFlags& flags, bool is_required = true);
void AddSamplingFlags(CLI::App& app, SamplingOverrides& flags);
void AddTraceFlags(CLI::App& app, EngineOptions& engine);
// Adds the flags that name a model, with weights or without.
void AddSourceFlags(CLI::App& app, std::string& model_dir, ConfigFlags& config);
void AddDescribedFlags(CLI::App& app, DescribedFlags& flags, const std::string& schedule_help);

}  // namespace penstock::cli
