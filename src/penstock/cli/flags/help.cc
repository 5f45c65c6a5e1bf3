#include "penstock/cli/flags/help.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "penstock/base/status.h"

namespace penstock::cli {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kTextColumn = 30;  // where the texts of flags begin

constexpr char kExitCodes[] =
    "0 done, 1 a fault of Penstock, 2 bad usage, 3 invalid model, 4 invalid input, 5 reading or writing failed, 6 the "
    "memory budget or the machine is too small, 7 stopped (--resume continues), 8 finished, with failed requests";
constexpr char kVariables[] =
    "Each flag is also a variable, PENSTOCK_MEMORY for --memory (of --output: PENSTOCK_RUN_OUTPUT, with the command's "
    "name), and a line in the file that --options-file names.";

// Appends `text` in lines of at most kColumns, the first of which begins at `column`; later ones are indented.
void AppendWrapped(std::string_view text, size_t column, size_t indent, std::string& out) {
  bool is_first = true;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const size_t width = end + (is_first ? 0 : 1);
    if (!is_first && column + width > kColumns) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
      is_first = true;
      continue;
    }
    if (!is_first) out += ' ';
    out += text.substr(0, end);
    column += width;
    is_first = false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  out += '\n';
}

// Appends "  left  text", with the text in its column.
void AppendRow(const std::string& left, std::string_view text, std::string& out) {
  out += "  " + left;
  if (left.size() + 4 > kTextColumn) {
    out += '\n' + std::string(kTextColumn, ' ');
  } else {
    out += std::string(kTextColumn - 2 - left.size(), ' ');
  }
  AppendWrapped(text, kTextColumn, kTextColumn, out);
}

std::string NamesOf(const FlagHelp& flag) {
  std::string names;
  for (const std::string& name : flag.names) names += (names.empty() ? "" : ", ") + name;
  return flag.type.empty() ? names : names + " " + flag.type;
}

std::string TextOf(const FlagHelp& flag) {
  return flag.notes.empty() ? flag.text : fmt::format("{} [{}]", flag.text, flag.notes);
}

// Returns the groups in the order in which flags name them; kGeneralGroup stands last.
std::vector<std::string> GroupsOf(const CommandHelp& command) {
  std::vector<std::string> groups;
  for (const FlagHelp& flag : command.flags) {
    if (std::ranges::find(groups, flag.group) == groups.end()) groups.push_back(flag.group);
  }
  std::stable_partition(groups.begin(), groups.end(), [](const std::string& group) { return group != kGeneralGroup; });
  return groups;
}

std::string UsageOf(const CommandHelp& command) {
  std::string usage = command.name;
  if (!command.commands.empty()) usage += command.needs_command ? " COMMAND" : " [COMMAND]";
  for (const FlagHelp& flag : command.flags) {
    const std::string& name = flag.names.back();
    const bool is_positional = !name.starts_with('-');
    if (is_positional) {
      usage += flag.is_required ? " " + name : fmt::format(" [{}]", name);
    } else if (flag.is_required) {
      usage += fmt::format(" {} {}", name, flag.type);
    } else if (name == "--model" || name == "--output") {  // most runs of a command give them
      usage += fmt::format(" [{} {}]", name, flag.type);
    }
  }
  return usage + " [FLAGS]";
}

// Returns the names of flags that a command line may begin with a dash.
std::string DashedNames(const CommandHelp& command) {
  std::string names;
  for (const FlagHelp& flag : command.flags) {
    for (const std::string& name : flag.names) {
      if (name.starts_with('-')) names += (names.empty() ? "" : " ") + name;
    }
  }
  return names;
}

std::string CommandNames(const CommandHelp& command) {
  std::string names;
  for (const CommandHelp& sub : command.commands) {
    names += (names.empty() ? "" : " ") + sub.name.substr(sub.name.rfind(' ') + 1);
  }
  return names;
}

std::string Joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

// Returns the words that may stand where no flag stands: commands, or the values of an argument without dashes.
std::string BareWords(const CommandHelp& command) {
  std::string words = CommandNames(command);
  for (const FlagHelp& flag : command.flags) {
    if (!flag.names.back().starts_with('-') && !flag.values.empty())
      words += (words.empty() ? "" : " ") + Joined(flag.values);
  }
  return words;
}

// Returns cases of bash that set the values of the flag before the word.
std::string ValueCases(const CommandHelp& command) {
  std::string cases;
  for (const FlagHelp& flag : command.flags) {
    if (flag.values.empty() || !flag.names.back().starts_with('-')) continue;
    cases += fmt::format("        {}) values='{}' ;;\n", fmt::join(flag.names, "|"), Joined(flag.values));
  }
  return cases;
}

// Appends a case of bash for the words of a command, and for those of its commands.
void AppendBashCases(const CommandHelp& command, const std::string& parent_flags, const std::string& parent_cases,
                     std::string& out) {
  const std::string words = command.name.substr(std::min(command.name.find(' '), command.name.size()));
  const std::string flags = DashedNames(command) + (parent_flags.empty() ? "" : " " + parent_flags);
  out += fmt::format("    '{}')\n      commands='{}'\n      flags='{}'\n", words.empty() ? words : words.substr(1),
                     BareWords(command), flags);
  const std::string cases = ValueCases(command) + parent_cases;
  if (!cases.empty()) out += fmt::format("      case \"$before\" in\n{}      esac\n", cases);
  out += "      ;;\n";
  // A command of a command takes the flags of both.
  const bool is_program = words.empty();
  for (const CommandHelp& sub : command.commands) {
    AppendBashCases(sub, is_program ? "" : DashedNames(command), is_program ? "" : ValueCases(command), out);
  }
}

std::string BashCompletion(const CommandHelp& program) {
  std::string out =
      "# Completion of penstock for bash. Load it with: source <(penstock completion bash)\n"
      "_penstock_words() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before='' said='' commands='' flags='' values='' i\n"
      "  ((COMP_CWORD > 0)) && before=${COMP_WORDS[COMP_CWORD - 1]}\n"
      "  [[ $word == = ]] && word=''\n"  // bash makes three words of --dtype=bf16
      "  [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD - 2]}\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$said ${COMP_WORDS[i]}\" in\n      ";
  std::string known;
  const auto add_known = [&known](const auto& self, const CommandHelp& command) -> void {
    for (const CommandHelp& sub : command.commands) {
      known += fmt::format("{}'{}'", known.empty() ? "" : "|", sub.name.substr(sub.name.find(' ')));
      self(self, sub);
    }
  };
  add_known(add_known, program);
  out += known +
         ") said=\"$said ${COMP_WORDS[i]}\" ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"${said# }\" in\n";
  AppendBashCases(program, "", "", out);
  out +=
      "  esac\n"
      "  if [[ -n $values ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
      "  elif [[ $word == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
      "  elif [[ -n $commands && ${COMP_WORDS[COMP_CWORD - 1]} != -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$commands\" -- \"$word\"))\n"
      "  fi\n"
      "}\n"
      "complete -o default -o bashdefault -F _penstock_words penstock\n";
  return out;
}

// Returns `text` as a quoted word of fish.
std::string FishQuoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

void AppendFish(const CommandHelp& command, std::string& out) {
  const std::string name = command.name.substr(command.name.rfind(' ') + 1);
  const bool is_program = command.name.find(' ') == std::string::npos;
  const std::string condition =
      is_program ? "__fish_use_subcommand" : fmt::format("__fish_seen_subcommand_from {}", name);
  for (const CommandHelp& sub : command.commands) {
    out += fmt::format("complete -c penstock -f -n '{}' -a {} -d {}\n", condition,
                       sub.name.substr(sub.name.rfind(' ') + 1), FishQuoted(sub.text));
  }
  for (const FlagHelp& flag : command.flags) {
    std::string names;
    for (const std::string& flag_name : flag.names) {
      if (flag_name.starts_with("--")) {
        names += " -l " + flag_name.substr(2);
      } else if (flag_name.starts_with('-')) {
        names += " -s " + flag_name.substr(1);
      }
    }
    // The words of an argument without dashes stand alone; those of a flag behind it.
    const std::string values = flag.values.empty() ? "" : " -a " + FishQuoted(Joined(flag.values));
    if (names.empty() && values.empty()) continue;
    const std::string kind = names.empty() ? " -f" : flag.type.empty() ? "" : flag.values.empty() ? " -r" : " -x";
    out += fmt::format("complete -c penstock -n '{}'{}{}{} -d {}\n", condition, names, kind, values,
                       FishQuoted(flag.text));
  }
  for (const CommandHelp& sub : command.commands) AppendFish(sub, out);
}

// Returns `text` with the characters escaped that man would read as its own.
std::string Roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '-') {
      out += "\\-";
    } else if (c == '\\') {
      out += "\\e";
    } else {
      if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
      out += c;
    }
  }
  return out;
}

void AppendManCommand(const CommandHelp& command, std::string& out) {
  out += fmt::format(".SS {}\n{}\n.PP\n.B {}\n", Roff(command.name), Roff(command.text), Roff(UsageOf(command)));
  for (const std::string& group : GroupsOf(command)) {
    out += fmt::format(".PP\n{}:\n", Roff(group));
    for (const FlagHelp& flag : command.flags) {
      if (flag.group == group) out += fmt::format(".TP\n.B {}\n{}\n", Roff(NamesOf(flag)), Roff(TextOf(flag)));
    }
  }
  if (!command.examples.empty()) out += ".PP\nExamples:\n.PP\n.nf\n" + Roff(command.examples) + "\n.fi\n";
  for (const CommandHelp& sub : command.commands) AppendManCommand(sub, out);
}

}  // namespace

std::string FormatHelp(const CommandHelp& command) {
  std::string out;
  const bool is_program = command.name.find(' ') == std::string::npos;
  AppendWrapped(is_program ? command.text : fmt::format("{}: {}", command.name, command.text), 0, 0, out);
  out += '\n';
  AppendWrapped("Usage: " + UsageOf(command), 0, 7, out);
  if (!command.commands.empty()) {
    out += "\nCommands\n";
    for (const CommandHelp& sub : command.commands) {
      AppendRow(sub.name.substr(sub.name.rfind(' ') + 1), sub.text, out);
    }
  }
  for (const std::string& group : GroupsOf(command)) {
    out += '\n' + group + '\n';
    for (const FlagHelp& flag : command.flags) {
      if (flag.group == group) AppendRow(NamesOf(flag), TextOf(flag), out);
    }
  }
  if (!command.examples.empty()) {
    out += "\nExamples\n";
    for (std::string_view rest = command.examples; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      out += fmt::format("  {}\n", rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  out += '\n';
  if (!is_program) {
    AppendWrapped(kVariables, 0, 0, out);
  } else {
    AppendWrapped("penstock help COMMAND lists the flags of a command.", 0, 0, out);
  }
  AppendWrapped(fmt::format("Exit codes: {}.", kExitCodes), 0, 12, out);
  return out;
}

absl::StatusOr<std::string> FormatCompletion(const CommandHelp& program, const std::string& shell) {
  if (shell == "bash") return BashCompletion(program);
  if (shell == "zsh") {
    return "#compdef penstock\n# Completion of penstock for zsh. Load it with: source <(penstock completion zsh)\n"
           "autoload -U +X bashcompinit && bashcompinit\n" +
           BashCompletion(program) +
           // zsh runs the installed file when it completes for the first time.
           "[[ ${funcstack[1]} == _penstock ]] && _bash_complete -o default -o bashdefault -F _penstock_words\n";
  }
  if (shell == "fish") {
    std::string out = "# Completion of penstock for fish. Load it with: penstock completion fish | source\n";
    AppendFish(program, out);
    return out;
  }
  return UsageError("completion: expected bash, zsh or fish, found '{}'", shell);
}

std::string FormatManPage(const CommandHelp& program, const std::string& version) {
  std::string out = fmt::format(
      ".TH PENSTOCK 1 \"\" \"{0}\"\n.SH NAME\npenstock \\- {1}\n.SH SYNOPSIS\n.B penstock\nCOMMAND [FLAGS]\n"
      ".SH DESCRIPTION\n{1}\n{2}\n.SH COMMANDS\n",
      Roff(version), Roff(program.text), Roff(kVariables));
  for (const CommandHelp& command : program.commands) AppendManCommand(command, out);
  out += fmt::format(".SH EXIT STATUS\n{}.\n", Roff(kExitCodes));
  return out;
}

std::vector<char*> ReplaceHelpCommand(int argc, char** argv) {
  static char help_flag[] = "--help";
  std::vector<char*> words(argv, argv + argc);
  if (words.size() < 2 || std::string_view(words[1]) != "help") return words;
  words.erase(words.begin() + 1);
  words.push_back(help_flag);
  return words;
}

}  // namespace penstock::cli
