// Log lines go to stderr; stdout belongs to results. Library code logs rarely and never in a row or expert loop.
#pragma once

#include <string_view>

#include <spdlog/spdlog.h>

#include "absl/status/status.h"

namespace penstock {

// `level`: trace, debug, info, warning, error, off. Replaces spdlog's default logger by one that writes to stderr.
absl::Status SetUpLogging(std::string_view level);

}  // namespace penstock
