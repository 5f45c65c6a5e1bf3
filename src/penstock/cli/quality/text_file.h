// Texts that models read: those of perplexity, quality and bench routing.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace penstock::cli {

// Returns the text that --text names: a file's, or standard input's for "-". kInput when it is not UTF-8.
absl::StatusOr<std::string> ReadTextFlag(const std::string& path);

}  // namespace penstock::cli
