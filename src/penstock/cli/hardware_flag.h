// --hardware: a preset, a file that penstock probe wrote, or this machine.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"

namespace penstock::cli {

// kUsage when `spec` is neither a file nor a preset, kInput when the file holds no Hardware.
absl::StatusOr<Hardware> ParseHardwareFlag(const std::string& spec);

}  // namespace penstock::cli
