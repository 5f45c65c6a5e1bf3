#include "penstock/base/bytes.h"
#include "penstock/base/status.h"
#include "penstock/cli/commands.h"

namespace penstock::cli {

absl::StatusOr<EngineOptions> ToEngineOptions(const ModelFlags& flags) {
  EngineOptions options = flags.engine;
  if (!flags.memory.empty()) {
    auto bytes = ParseBytes(flags.memory);
    if (!bytes.ok()) return Annotate(bytes.status(), "--memory");
    options.memory_bytes = *bytes;
  }
  if (flags.device.starts_with("cuda")) {
    return ResourceError("--device {}: this build has no GPU support; use --device cpu", flags.device);
  }
  if (flags.device != "auto" && flags.device != "cpu") {
    return UsageError("--device '{}' is unknown: expected auto or cpu", flags.device);
  }
  if (flags.schedule != "auto" && flags.schedule != "on-demand") {
    return UsageError("--schedule '{}' is unknown: expected auto or on-demand", flags.schedule);
  }
  return options;
}

}  // namespace penstock::cli
