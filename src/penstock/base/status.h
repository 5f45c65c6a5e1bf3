// Errors that the outside world causes, as values.
//
// Every failure is one line: what failed, where (file, tensor, line, field), expected, found, what to do. It carries a
// Fault, which decides the process's exit code. Our own bugs are PENSTOCK_CHECK failures (check.h), never a Status.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

// Says whose fault an error is; the value is the exit code of the command line.
enum class Fault : int {
  kInternal = 1,   // our own bug
  kUsage = 2,      // wrong flags or arguments
  kModel = 3,      // the model folder is invalid
  kInput = 4,      // the input data (requests, prompts) is invalid
  kIo = 5,         // reading or writing failed
  kResources = 6,  // the budget or the machine does not suffice
  kStopped = 7,    // stopped on request; can be resumed
};

// Returns an error whose message is one printable line (control bytes and invalid UTF-8 are escaped).
absl::Status MakeError(Fault fault, std::string_view message);

template <typename... Args>
absl::Status UsageError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(Fault::kUsage, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status ModelError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(Fault::kModel, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status InputError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(Fault::kInput, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status IoError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(Fault::kIo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status ResourceError(fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(Fault::kResources, fmt::format(format, std::forward<Args>(args)...));
}

// Returns the fault of a failed status; kInternal when MakeError did not make the status. REQUIRES: !status.ok().
Fault FaultOf(const absl::Status& status);

// Returns 0 for OK, otherwise the fault's exit code.
int ExitCode(const absl::Status& status);

// Returns the message as a std::string.
std::string Message(const absl::Status& status);

// Returns the same error with `context` and ": " before its message.
absl::Status Annotate(const absl::Status& status, std::string_view context);

}  // namespace penstock

#define PENSTOCK_CONCAT_INNER(a, b) a##b
#define PENSTOCK_CONCAT(a, b) PENSTOCK_CONCAT_INNER(a, b)

#define PENSTOCK_RETURN_IF_ERROR(expr)                   \
  do {                                                   \
    absl::Status penstock_status_ = (expr);              \
    if (!penstock_status_.ok()) return penstock_status_; \
  } while (false)

#define PENSTOCK_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                   \
  if (!result.ok()) return result.status();               \
  lhs = std::move(result).value()

// Assigns the value to `lhs`, or returns the error: PENSTOCK_ASSIGN_OR_RETURN(auto x, F()).
#define PENSTOCK_ASSIGN_OR_RETURN(lhs, expr) \
  PENSTOCK_ASSIGN_OR_RETURN_IMPL(PENSTOCK_CONCAT(penstock_result_, __LINE__), lhs, expr)
