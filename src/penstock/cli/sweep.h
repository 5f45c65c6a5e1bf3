// penstock simulate --sweep: finds the best policy of each schedule while one number of the machine changes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "penstock/cli/flags/described_flags.h"

namespace penstock::cli {

// `spec` is one of cpu-memory=64GiB..512GiB, gpu-memory=..., disk=1GB..14GB (per second), link=4GB..64GB (per second),
// batch-size=1..256. Each value is twice the one before. Prints CSV, and draws `plot_path` unless it is empty. Schedule
// "all" gives one curve per schedule, "auto" the best. kUsage for any other text.
absl::Status RunSweep(const Described& described, const std::string& spec, const std::string& plot_path);

}  // namespace penstock::cli
