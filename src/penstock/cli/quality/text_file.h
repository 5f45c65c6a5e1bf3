// Texts that models read: those of perplexity, quality and bench routing.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace penstock::cli {

// Returns the text that --text names: a file's, or standard input's for "-". kInput when it is not UTF-8, kResources
// when a file has more than `memory_bytes` (0: no limit).
absl::StatusOr<std::string> ReadTextFlag(const std::string& path, uint64_t memory_bytes);

}  // namespace penstock::cli
