#include "penstock/cli/hardware_flag.h"

#include <filesystem>

#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/hardware/presets.h"
#include "penstock/hardware/probe.h"

namespace penstock::cli {

absl::StatusOr<Hardware> ParseHardwareFlag(const std::string& spec) {
  if (spec == "auto") return ProbeMachine();
  std::error_code error;
  if (!std::filesystem::exists(spec, error)) return HardwarePreset(spec);
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(spec, kMaxConfigBytes));
  const absl::StatusOr<json::value> value = ParseJson(text, Fault::kInput);
  if (!value.ok()) return Annotate(value.status(), Printable(spec));
  absl::StatusOr<Hardware> hardware = ParseHardware(*value);
  if (!hardware.ok()) return Annotate(hardware.status(), Printable(spec));
  return hardware;
}

}  // namespace penstock::cli
