// Flags that several commands have.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "penstock/cli/commands.h"

namespace penstock::cli {

inline constexpr char kOptionFileFlag[] = "--options-file";

struct LogFlags {
  std::string level = "info";
  bool quiet = false;
};
void AddLogFlags(CLI::App& app, LogFlags& flags);

// For help texts: the names of the schedules, and with them what auto takes.
std::string ScheduleNames();
std::string ScheduleHelp();

// Flags of every command that computes, or simulates that; and with them --model and what computes.
void AddPolicyFlags(CLI::App& app, ModelFlags& flags);
void AddModelFlags(CLI::App& app, ModelFlags& flags);
void AddSamplingFlags(CLI::App& app, SamplingOverrides& flags);
void AddDescribedFlags(CLI::App& app, DescribedFlags& flags);

// Checks: a number that is not NaN, an integer without a sign.
CLI::Validator NumberFrom(double min, double max);
CLI::Validator UnsignedInteger();

}  // namespace penstock::cli
