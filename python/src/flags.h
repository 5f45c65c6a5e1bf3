// Flags of the command line, given as words by a caller of the Python package: {"--memory=12GiB", "--batch-size=8"}.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/engine.h"

namespace penstock::python {

// Takes the flags with which `penstock run` opens a model. kUsage when one is wrong.
absl::StatusOr<EngineOptions> ParseEngineFlags(const std::vector<std::string>& words);

// Takes the flags of `penstock plan`, and returns the JSON that it prints. `is_of_session`: the plan counts the memory
// of a Session instead of that of `penstock run`.
absl::StatusOr<std::string> PlanJsonOf(const std::vector<std::string>& words, bool is_of_session);

// Runs the penstock command with these arguments, and returns its exit code.
int RunCommandLine(std::vector<std::string> arguments);

}  // namespace penstock::python
