#include "penstock/cli/flags.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include <unistd.h>
#include <CLI/CLI.hpp>

#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock::cli {
namespace {

constexpr char kOptionFileFlag[] = "--options-file";
constexpr std::string_view kVariablePrefix = "PENSTOCK_";
// Variables that are not flags.
constexpr std::string_view kOtherVariables[] = {"PENSTOCK_FORCE_ISA", "PENSTOCK_TEST_SEED"};

std::string VariableName(const std::string& flag) {
  std::string name(kVariablePrefix);
  for (const char c : flag) name.push_back(c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
  return name;
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
  size_t min = 1 + word.size() / 3;
  for (const std::string& name : names) {
    const size_t distance = EditDistance(word, name);
    if (distance <= min) {
      min = distance;
      nearest = name;
    }
  }
  return nearest;
}

// Gives every flag an environment variable, and warns of unknown PENSTOCK_* variables. Commands share variables. Only
// --output has a variable for each command, so that no command overwrites another's results.
void BindVariables(CLI::App& app) {
  std::vector<std::string> known(std::begin(kOtherVariables), std::end(kOtherVariables));
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_lnames().empty() || option->get_lnames()[0] == "help") continue;
      const std::string& flag = option->get_lnames()[0];
      const std::string name = VariableName(flag == "output" ? command->get_name() + "-" + flag : flag);
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

// Returns the line of an option file on which `key` is set; 0 when it is not found.
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

// Returns the value of --options-file or its variable; empty when neither was given.
std::string OptionFile(const CLI::App* command) {
  const CLI::Option* option = command == nullptr ? nullptr : command->get_option_no_throw(kOptionFileFlag);
  return option == nullptr || option->count() == 0 ? std::string() : option->as<std::string>();
}

// The begin of CLI11's message about a key that is not a flag.
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
  // A misspelt --model is both unknown and missing; the first message is more useful.
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

// Parses the command line, and then the option file of the chosen command. The file only sets flags that neither the
// command line nor a variable has set. Throws CLI::ParseError.
absl::Status ParseFlags(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError&) {
    if (OptionFile(ChosenCommand(app)).empty()) throw;  // the file may set the missing flag
  }
  const std::string path = OptionFile(ChosenCommand(app));
  if (path.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxConfigBytes);
  if (!text.ok()) return UsageError("{}: {}", kOptionFileFlag, Message(text.status()));
  std::istringstream stream(*text);
  ChosenCommand(app)->parse_from_stream(stream);
  return absl::OkStatus();
}

template <typename Target>
Flag AddOption(CLI::App& app, const std::string& name, Target& target, const std::string& help) {
  return Flag(app.add_option(name, target, help));
}

}  // namespace

Flag Flag::Required() const { return Flag(option_->required()); }
Flag Flag::TypeName(const std::string& name) const { return Flag(option_->type_name(name)); }
Flag Flag::ShowDefault() const { return Flag(option_->capture_default_str()); }
Flag Flag::SeparatedBy(char delimiter) const { return Flag(option_->delimiter(delimiter)); }
Flag Flag::Excludes(const Flag& other) const { return Flag(option_->excludes(other.option_)); }
Flag Flag::InRange(int64_t min, int64_t max) const { return Flag(option_->check(CLI::Range(min, max))); }
Flag Flag::NumberInRange(double min, double max) const { return Flag(option_->check(CLI::Range(min, max))); }

Flag Flag::NumberFrom(double min, double max) const {
  const auto fault = [min, max](const std::string& text) -> std::string {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool good = error == std::errc() && end == text.data() + text.size() && number >= min && number <= max;
    return good ? "" : fmt::format("expected a number from {} to {}, found '{}'", min, max, text);
  };
  return Flag(option_->check(CLI::Validator(fault, fmt::format("FLOAT in [{} - {}]", min, max))));
}

Flag Flag::Unsigned() const {
  const auto fault = [](const std::string& text) -> std::string {  // CLI11 would read -1 as 2^64 - 1
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool good = error == std::errc() && end == text.data() + text.size();
    return good ? "" : fmt::format("expected an integer from 0 to 2^64 - 1, found '{}'", text);
  };
  return Flag(option_->check(CLI::Validator(fault, "UINT")));
}

Flag Flag::Check(std::function<std::string(const std::string&)> fault) const {
  return Flag(option_->check(CLI::Validator([fault](std::string& text) { return fault(text); }, "")));
}

Flag AddFlag(CLI::App& app, const std::string& name, std::string& target, const std::string& help) {
  return AddOption(app, name, target, help);
}
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<std::string>& target, const std::string& help) {
  return AddOption(app, name, target, help);
}
Flag AddFlag(CLI::App& app, const std::string& name, int& target, const std::string& help) {
  return AddOption(app, name, target, help);
}
Flag AddFlag(CLI::App& app, const std::string& name, int64_t& target, const std::string& help) {
  return AddOption(app, name, target, help);
}
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<int64_t>& target, const std::string& help) {
  return AddOption(app, name, target, help);
}
Flag AddFlag(CLI::App& app, const std::string& name, uint64_t& target, const std::string& help) {
  return AddOption(app, name, target, help);
}
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<uint64_t>& target, const std::string& help) {
  return AddOption(app, name, target, help);
}
Flag AddFlag(CLI::App& app, const std::string& name, double& target, const std::string& help) {
  return AddOption(app, name, target, help);
}
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<double>& target, const std::string& help) {
  return AddOption(app, name, target, help);
}
Flag AddFlag(CLI::App& app, const std::string& name, std::vector<int64_t>& target, const std::string& help) {
  return AddOption(app, name, target, help);
}
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<std::vector<std::string>>& target,
             const std::string& help) {
  const auto set = [&target](const std::vector<std::string>& texts) { target = texts; };
  return Flag(app.add_option_function<std::vector<std::string>>(name, set, help)->allow_extra_args(false));
}
Flag AddFlag(CLI::App& app, const std::string& name, bool& target, const std::string& help) {
  return Flag(app.add_flag(name, target, help));
}
Flag AddFlag(CLI::App& app, const std::string& name, std::optional<bool>& target, const std::string& help) {
  return Flag(app.add_flag_function(
      name, [&target](int64_t) { target = true; }, help));
}

void AddOptionFileFlag(CLI::App& app, const std::string& help) {
  app.add_option(kOptionFileFlag, help)->type_name("FILE");  // ParseFlags() reads it
  app.allow_config_extras(false);
}

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& help) {
  return app.add_subcommand(name, help);
}

void TakeFlagsOfParent(CLI::App& command) { command.fallthrough(); }
void AllowOneSubcommand(CLI::App& command) { command.require_subcommand(0, 1); }
bool IsChosen(const CLI::App& command) { return command.parsed(); }

CommandLine::CommandLine(const std::string& description, const std::string& name, const std::string& version)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->set_version_flag("--version", version);
  app_->require_subcommand(1);
  app_->get_formatter()->column_width(38);
}

CommandLine::~CommandLine() = default;

absl::StatusOr<std::optional<int>> CommandLine::Parse(int argc, char** argv) {
  BindVariables(*app_);
  try {
    PENSTOCK_RETURN_IF_ERROR(ParseFlags(*app_, argc, argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success))
      return app_->exit(error);  // --help, --version
    return UsageFault(*app_, error);
  }
  return std::nullopt;
}

}  // namespace penstock::cli
