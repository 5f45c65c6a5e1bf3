// Machines by name, from their makers' data sheets: for plans and simulations of hardware that is not present.
//
// A spec is a preset, optionally with replaced parts: "rtx4090", "rtx4090:dram=128GiB,disk=nvme5", "none:cpu=epyc-9654"
// (no device), "2xt4:link=6GB/s" (a measured rate instead of the data sheet's). Programs do not reach the data sheets'
// rates; each part states the share of its rates that plans use.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"

namespace penstock {

// Returns kUsage with the list of known names when the spec is invalid.
absl::StatusOr<Hardware> HardwarePreset(std::string_view spec);

// Returns the network between machines, or the link between GPUs of one machine, as the link "between_ranks": a preset
// ("10gbe") or a rate ("1.1GB/s"). kUsage with the list of known names when the spec is invalid.
absl::StatusOr<Link> NetworkPreset(std::string_view spec);

struct PresetInfo {
  std::string_view kind;  // "machine", "gpu", "cpu", "disk", "network"
  std::string_view name;
  std::string summary;      // its numbers
  std::string_view source;  // where the numbers come from
};
std::vector<PresetInfo> AllPresets();

}  // namespace penstock
