// What --device names.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

inline constexpr std::string_view kEmulatedDevice = "emulated";

// A device that is emulated by threads of this machine: memory of its own, links of a given rate.
struct EmulatedDevice {
  std::string name = std::string(kEmulatedDevice);
  double link_bytes_per_s = 4e9;  // each direction
  int num_threads = 1;
};

// "auto", "cpu": nothing; "emulated", "emulated:link=4GB/s,threads=1". kUsage for what is not understood, kResources
// for what this build has not.
absl::StatusOr<std::optional<EmulatedDevice>> ParseDevice(std::string_view text);

}  // namespace penstock
