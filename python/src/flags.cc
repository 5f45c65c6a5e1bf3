#include "flags.h"

#include <string_view>

#include "penstock/base/status.h"
#include "penstock/cli/command_line.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/flags/common_flags.h"
#include "penstock/cli/flags/flags.h"
#include "session.h"

namespace penstock::python {
namespace {

// Points to a help page that a caller from Python did not ask for.
constexpr std::string_view kHint = " (see penstock --help)";

template <typename AddFlags>
absl::Status Parse(const std::vector<std::string>& words, AddFlags add_flags) {
  cli::CommandLine line("", "penstock", "");
  add_flags(line.app());
  const absl::Status status = line.ParseWords(words);
  if (status.ok()) return status;
  std::string message = Message(status);
  if (!message.ends_with(kHint)) return status;
  message.resize(message.size() - kHint.size());
  return MakeError(FaultOf(status), message);
}

}  // namespace

absl::StatusOr<EngineOptions> ParseEngineFlags(const std::vector<std::string>& words) {
  cli::ModelFlags flags;
  PENSTOCK_RETURN_IF_ERROR(Parse(words, [&](CLI::App& app) { cli::AddModelFlags(app, flags); }));
  return cli::ToEngineOptions(flags);
}

absl::StatusOr<std::string> PlanJsonOf(const std::vector<std::string>& words, bool is_of_session) {
  cli::PlanFlags flags;
  const auto add_flags = [&](CLI::App& app) { cli::AddDescribedFlags(app, flags.described, cli::ScheduleNames()); };
  PENSTOCK_RETURN_IF_ERROR(Parse(words, add_flags));
  if (!is_of_session) return cli::PlanJson(flags.described);
  cli::ModelFlags model = flags.described.model;
  model.schedule.reset();  // it may be "all", which an engine does not take
  PENSTOCK_ASSIGN_OR_RETURN(const EngineOptions options, cli::ToEngineOptions(model));
  return cli::PlanJson(flags.described, SessionMemory(options));
}

int RunCommandLine(std::vector<std::string> arguments) {
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  return cli::Main(static_cast<int>(arguments.size()), words.data());
}

}  // namespace penstock::python
