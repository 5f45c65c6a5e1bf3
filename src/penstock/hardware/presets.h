// Machines by name, from what their makers publish: for plans and simulations of hardware that is not here.
//
// A spec is a preset, and parts that are to be others: "rtx4090", "rtx4090:dram=128GiB,disk=nvme5",
// "none:cpu=epyc-9654" (no device), "2xt4:link=6GB/s" (what is known to be reached instead of the data sheet). Data
// sheets promise more than programs reach; each part says what share of its numbers is reckoned with.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"

namespace penstock {

// kUsage names what there is.
absl::StatusOr<Hardware> HardwarePreset(std::string_view spec);

struct PresetInfo {
  std::string_view kind;  // "machine", "gpu", "cpu", "disk"
  std::string_view name;
  std::string summary;      // its numbers
  std::string_view source;  // of the numbers
};
std::vector<PresetInfo> AllPresets();

}  // namespace penstock
