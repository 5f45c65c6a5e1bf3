#include "penstock/cli/flags/flags.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
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
// Variables that are not flags. The test programs read those that begin with kTestPrefix.
constexpr std::string_view kOtherVariables[] = {"PENSTOCK_FORCE_ISA"};
constexpr std::string_view kTestPrefix = "PENSTOCK_TEST_";

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

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::string Nearest(std::string word, const std::vector<std::string>& names) {
  word = word.substr(0, word.find('='));
  word.erase(0, word.find_first_not_of('-'));
  if (word.size() > 64) return "";
  constexpr size_t kMinPrefix = 3;
  const auto is_longer = [&](const std::string& name) { return word.size() >= kMinPrefix && name.starts_with(word); };
  if (const auto longer = std::ranges::find_if(names, is_longer); longer != names.end()) return *longer;
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

// Gives the flags of the command, and of its own commands, their variables, and lists the names.
void BindVariables(CLI::App& command, std::vector<std::string>& known) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty() || option->get_lnames()[0] == "help" || option->get_lnames()[0] == "version")
      continue;
    const std::string& flag = option->get_lnames()[0];
    const std::string name = VariableName(flag == "output" ? command.get_name() + "-" + flag : flag);
    option->envname(name);
    known.push_back(name);
  }
  for (CLI::App* sub : command.get_subcommands(nullptr)) BindVariables(*sub, known);
}

// Gives every flag an environment variable, and warns of unknown PENSTOCK_* variables. Commands share variables. Only
// --output has a variable for each command, so that no command overwrites another's results.
void BindVariables(CLI::App& app) {
  std::vector<std::string> known(std::begin(kOtherVariables), std::end(kOtherVariables));
  BindVariables(app, known);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(kVariablePrefix) || name.starts_with(kTestPrefix)) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    // --output has no variable of its own name.
    const bool is_output = name == VariableName("output");
    const std::string nearest = is_output ? VariableName("run-output") : Nearest(std::string(name), known);
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
// In CLI11's message about a flag at the end of the line. The flag's type with all its checks follows.
constexpr std::string_view kMissingValue = ": 1 required ";
// Stands before the words of Flag::Values() in a check's description, the only place that CLI11 has for them.
constexpr std::string_view kValuesMark = "values: ";
// CLI11 adds this to the name of a section.
constexpr std::string_view kSectionMark = ".++";

// Returns which flag was probably meant for a file or folder without one; empty if none.
std::string HintOfFlag(const CLI::App& command, const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return "";
  const bool is_model = std::filesystem::is_directory(path, error) || path.ends_with(".gguf");
  const char* const flag = is_model ? "--model" : "--input";
  if (command.get_option_no_throw(flag) == nullptr) return "";
  return fmt::format("; did you mean {} {}?", flag, Printable(path));
}

absl::Status UsageFault(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = ChosenCommand(app);
  std::string message = error.what();
  std::string hint;
  const auto name_unknown = [&](std::string_view kind, const std::string& name) {
    message = fmt::format("unknown {} '{}'", kind, name);
    const bool is_command = command == nullptr && !name.starts_with('-');
    const std::string nearest =
        Nearest(name, is_command ? CommandNames(app) : FlagNames(command == nullptr ? app : *command));
    if (!nearest.empty()) hint = fmt::format("; did you mean {}{}?", is_command ? "" : "--", nearest);
  };
  // A misspelt --model is both unknown and missing; the first message is more useful.
  const auto extras = app.remaining(/*recurse=*/true);
  const bool is_missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (!extras.empty() && (is_missing || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)) {
    const bool has_dash = extras[0].starts_with('-');
    name_unknown(command == nullptr && !has_dash ? "command" : "argument", extras[0]);
    if (command != nullptr && !has_dash && hint.empty()) hint = HintOfFlag(*command, extras[0]);
  } else if (is_missing && command == nullptr) {
    message = "expected a command";
  } else if (const size_t end = message.find(kMissingValue); end != std::string::npos) {
    message = message.substr(0, end) + ": a value is required";
  }
  if (const std::string path = OptionFile(command); !path.empty()) {
    const bool in_file = message.starts_with(kUnknownKey);
    if (in_file) {
      std::string key = message.substr(kUnknownKey.size());
      if (key.ends_with(kSectionMark)) {
        key.resize(key.size() - kSectionMark.size());
        return UsageError("{}: sections such as [{}] have no meaning here; write only lines 'flag = value'", path, key);
      }
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

// Returns "1 to 64" of a check's "INT in [1 - 64]"; empty when the flag has no range.
std::string RangeOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find("in [");
  if (begin == std::string::npos) return "";
  std::string range = type.substr(begin + 4, type.find(']') - begin - 4);
  if (const size_t dash = range.find(" - "); dash != std::string::npos) range.replace(dash, 3, " to ");
  return range;
}

// Returns the words that Flag::Values() was given.
std::vector<std::string> ValuesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find(kValuesMark);
  if (begin == std::string::npos) return {};
  const std::string text = type.substr(begin + kValuesMark.size());
  std::vector<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (c != ' ' && c != ',' && c != ';') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, ""));
    }
  }
  return words;
}

FlagHelp DescribeFlag(const CLI::Option& option) {
  FlagHelp flag;
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  if (flag.names.empty()) flag.names.push_back(option.get_name());
  if (option.get_expected_max() > 0) {
    const std::string type = option.get_type_name();
    flag.type = type.substr(0, type.find_first_of(": "));
    if (flag.type == "INT" || flag.type == "UINT") flag.type = "N";
    if (flag.type == "FLOAT") flag.type = "X";
  }
  flag.text = option.get_description();
  flag.group = option.get_group();
  flag.values = ValuesOf(option);
  flag.is_required = option.get_required();
  const std::string range = RangeOf(option);
  std::string value = option.get_default_str();
  if (value.starts_with('[')) value = value.substr(1, value.size() - 2);  // a list
  flag.notes = flag.is_required ? "required" : value.empty() ? "" : "default: " + value;
  if (!range.empty()) flag.notes += (flag.notes.empty() ? "" : "; ") + range;
  return flag;
}

CommandHelp DescribeApp(const CLI::App& app, const std::string& parent) {
  CommandHelp command{.name = parent.empty() ? app.get_name() : parent + " " + app.get_name(),
                      .text = app.get_description(),
                      .flags = {},
                      .commands = {},
                      .needs_command = app.get_require_subcommand_min() > 0,
                      .examples = app.get_footer()};
  for (const CLI::Option* option : app.get_options()) command.flags.push_back(DescribeFlag(*option));
  for (const std::string& name : CommandNames(app)) {
    command.commands.push_back(DescribeApp(*app.get_subcommand(name), command.name));
  }
  return command;
}

// Returns the command whose help was asked for: the innermost one that was given.
const CommandHelp& ChosenHelp(const CLI::App& app, const CommandHelp& help) {
  for (const CLI::App* chosen : app.get_subcommands()) {
    for (const CommandHelp& command : help.commands) {
      if (command.name == help.name + " " + chosen->get_name()) return ChosenHelp(*chosen, command);
    }
  }
  return help;
}

template <typename Number>
CLI::Validator NumberCheck(std::string_view kind, Number min, Number max, const std::string& description) {
  const auto fault = [kind, min, max](const std::string& text) -> std::string {
    Number number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool good = error == std::errc() && end == text.data() + text.size() && number >= min && number <= max;
    return good ? "" : fmt::format("expected {} from {} to {}, found '{}'", kind, min, max, text);
  };
  return CLI::Validator(fault, description);
}

template <typename Target>
Flag AddOption(CLI::App& app, const std::string& name, Target& target, const std::string& help) {
  return Flag(app.add_option(name, target, help));
}

}  // namespace

Flag Flag::Required() const { return Flag(option_->required()); }
Flag Flag::TypeName(const std::string& name) const { return Flag(option_->type_name(name)); }
Flag Flag::ShowDefault() const { return Flag(option_->capture_default_str()); }
Flag Flag::Values(const std::string& words) const {
  return Flag(
      option_->check(CLI::Validator([](std::string&) { return std::string(); }, std::string(kValuesMark) + words)));
}
Flag Flag::SeparatedBy(char delimiter) const { return Flag(option_->delimiter(delimiter)); }
Flag Flag::Excludes(const Flag& other) const { return Flag(option_->excludes(other.option_)); }
Flag Flag::InRange(int64_t min, int64_t max) const {
  return Flag(option_->check(NumberCheck<int64_t>("an integer", min, max, fmt::format("INT in [{} - {}]", min, max))));
}
Flag Flag::NumberFrom(double min, double max) const {
  return Flag(option_->check(NumberCheck<double>("a number", min, max, fmt::format("FLOAT in [{} - {}]", min, max))));
}
Flag Flag::Unsigned() const {  // CLI11 would read -1 as 2^64 - 1
  return Flag(option_->check(NumberCheck<uint64_t>("an integer", 0, std::numeric_limits<uint64_t>::max(), "UINT")));
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
Flag AddFlag(CLI::App& app, const std::string& name, std::vector<std::string>& target, const std::string& help) {
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
  CLI::App* command = app.add_subcommand(name, help);
  command->set_help_flag("-h,--help", "print this page")->group(kGeneralGroup);
  return command;
}

void BeginGroup(CLI::App& app, const std::string& heading) { app.option_defaults()->group(heading); }
void SetExamples(CLI::App& app, const std::string& examples) { app.footer(examples); }

void TakeFlagsOfParent(CLI::App& command) { command.fallthrough(); }
void AllowOneSubcommand(CLI::App& command) { command.require_subcommand(0, 1); }
bool IsChosen(const CLI::App& command) { return command.parsed(); }

CommandLine::CommandLine(const std::string& description, const std::string& name, const std::string& version)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->set_help_flag("-h,--help", "print this page")->group(kGeneralGroup);
  app_->set_version_flag("--version", version, "print the version, its commit and the instruction set in use")
      ->group(kGeneralGroup);
  app_->require_subcommand(1);
}

CommandLine::~CommandLine() = default;

CommandHelp CommandLine::Describe() const { return DescribeApp(*app_, ""); }

absl::StatusOr<std::optional<int>> CommandLine::Parse(int argc, char** argv) {
  BindVariables(*app_);
  try {
    PENSTOCK_RETURN_IF_ERROR(ParseFlags(*app_, argc, argv));
  } catch (const CLI::CallForHelp&) {
    if (const auto extras = app_->remaining(); ChosenCommand(*app_) == nullptr && !extras.empty()) {
      return UsageFault(*app_, CLI::ExtrasError(extras));
    }
    PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, FormatHelp(ChosenHelp(*app_, Describe())), "stdout"));
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app_->exit(error);  // --version
    return UsageFault(*app_, error);
  }
  return std::nullopt;
}

absl::Status CommandLine::ParseWords(std::vector<std::string> words) {
  app_->require_subcommand(0);
  app_->set_help_flag();  // removes it, and --version: nobody asks for a page here
  app_->set_version_flag();
  std::ranges::reverse(words);  // CLI11 takes the last word first
  try {
    app_->parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return UsageFault(*app_, error);
  }
  return absl::OkStatus();
}

}  // namespace penstock::cli
