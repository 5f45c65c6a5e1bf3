// Log lines go to stderr; stdout belongs to results. Library code logs rarely and never in a row or expert loop.
#pragma once

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "absl/status/status.h"

namespace penstock {

// Replaces spdlog's default logger with one that writes to stderr. `level`: trace, debug, info, warning, error, off.
absl::Status SetUpLogging(std::string_view level);

enum class LogLevel { kDebug, kInfo, kWarning };

// Writes one line to spdlog's default logger. spdlog's own templates would compile all of fmt into every file that
// logs.
void Log(LogLevel level, std::string_view line);

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace penstock
