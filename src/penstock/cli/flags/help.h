// The texts that are made from the flags of all commands: --help, completion for shells, and the manual page.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock::cli {

struct FlagHelp {
  std::vector<std::string> names;  // "-t", "--threads"; of an argument without dashes: "table"
  std::string type;                // "FILE"; empty: the flag takes no value
  std::string text;
  std::vector<std::string> values;  // some texts that the flag takes; empty: no words are known
  std::string notes;                // "required", the default and the range; may be empty
  std::string group;                // the heading under which the flag stands
  bool is_required = false;
};

struct CommandHelp {
  std::string name;  // "penstock bench routing"
  std::string text;
  std::vector<FlagHelp> flags;
  std::vector<CommandHelp> commands;
  bool needs_command = false;  // one of `commands` must be given
  std::string examples;        // one a line
};

// The group that stands last.
inline constexpr char kGeneralGroup[] = "General";

// Returns the page of --help, at most 100 columns wide.
std::string FormatHelp(const CommandHelp& command);

// Returns a script for "bash", "zsh" or "fish". kUsage for other shells.
absl::StatusOr<std::string> FormatCompletion(const CommandHelp& program, const std::string& shell);

// Returns the manual page of the program and all its commands, in man's own language.
std::string FormatManPage(const CommandHelp& program, const std::string& version);

// Turns the words "penstock help run" into "penstock run --help".
std::vector<char*> ReplaceHelpCommand(int argc, char** argv);

}  // namespace penstock::cli
