// Flags and the parsing of the command line: a thin layer over CLI11.
//
// Only flags.cc includes CLI11, because its headers and templates take seconds to compile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/cli/flags/help.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace penstock::cli {

// A flag of a command. Each method changes the flag and returns it. The command owns the flag.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  Flag Required() const;
  Flag TypeName(const std::string& name) const;  // in the help text: "FILE"
  Flag ShowDefault() const;                      // in the help text: the target's present value
  // In completions for shells: the words of "auto, f32, bf16". Other texts stay possible.
  Flag Values(const std::string& words) const;
  Flag SeparatedBy(char delimiter) const;  // for a list: "1,16,64"
  Flag Excludes(const Flag& other) const;

  // Checks of the text. Bounds are inclusive.
  Flag InRange(int64_t min, int64_t max) const;
  Flag NumberFrom(double min, double max) const;  // refuses NaN
  Flag Unsigned() const;                          // an integer without a sign
  // `fault` returns what is wrong with a text, or an empty string.
  Flag Check(std::function<std::string(const std::string&)> fault) const;

 private:
  CLI::Option* option_;
};

// Adds a flag, named "-t,--threads" or "--threads", that sets `target` when it is given. A flag for a bool takes no
// value and sets it to true. A flag for a list of texts may be given several times.
Flag AddFlag(CLI::App& app, const std::string& name, std::string& target, const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<std::string>& target, const std::string& help);
// Takes several texts at once, and may be given several times.
Flag AddFlag(CLI::App& app, const std::string& name, std::vector<std::string>& target, const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, int& target, const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, int64_t& target, const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<int64_t>& target, const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, uint64_t& target, const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<uint64_t>& target, const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, double& target, const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<double>& target, const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, std::vector<int64_t>& target, const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<std::vector<std::string>>& target,
             const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, bool& target, const std::string& help);
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<bool>& target, const std::string& help);

// Adds --options-file: a file that sets flags of this command.
void AddOptionFileFlag(CLI::App& app, const std::string& help);

// Adds a command, or a command of a command.
CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& help);
// Flags that are added from now on stand under this heading.
void BeginGroup(CLI::App& app, const std::string& heading);
// Examples of command lines, one a line, for the end of the help.
void SetExamples(CLI::App& app, const std::string& examples);
// The command also takes the flags of the command that it belongs to.
void TakeFlagsOfParent(CLI::App& command);
// At most one command of this command may be given.
void AllowOneSubcommand(CLI::App& command);
// Returns whether the command was given, once the command line has been parsed.
bool IsChosen(const CLI::App& command);

class CommandLine {
 public:
  CommandLine(const std::string& description, const std::string& name, const std::string& version);
  ~CommandLine();

  CLI::App& app() { return *app_; }

  // Returns what is known of all commands and flags.
  CommandHelp Describe() const;

  // Sets the targets of all flags that were given, and warns of unknown PENSTOCK_* variables. Returns an exit code when
  // only help or --version was asked for, which it prints. kUsage when the command line is wrong. REQUIRES: called
  // once, after all commands and flags have been added.
  absl::StatusOr<std::optional<int>> Parse(int argc, char** argv);

  // Sets the targets of the program's own flags, for callers that are no command line. Takes the flags from `words`
  // alone: environment variables count for nothing. kUsage when a flag is wrong. REQUIRES: as Parse().
  absl::Status ParseWords(std::vector<std::string> words);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace penstock::cli
