#include "penstock/base/logging.h"

#include <algorithm>
#include <array>
#include <string>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "penstock/base/status.h"

namespace penstock {

absl::Status SetUpLogging(std::string_view level) {
  constexpr std::array<std::string_view, 6> kLevels = {"trace", "debug", "info", "warning", "error", "off"};
  if (std::find(kLevels.begin(), kLevels.end(), level) == kLevels.end()) {
    return UsageError("--log-level '{}' is unknown: expected trace, debug, info, warning, error or off", level);
  }
  auto logger = std::make_shared<spdlog::logger>("penstock", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("penstock: %v");
  spdlog::set_default_logger(std::move(logger));
  spdlog::set_level(spdlog::level::from_str(std::string(level)));
  return absl::OkStatus();
}

void Log(LogLevel level, std::string_view line) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn};
  spdlog::default_logger_raw()->log(kLevels[static_cast<int>(level)], spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace penstock
