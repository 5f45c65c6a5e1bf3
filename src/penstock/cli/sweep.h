// penstock simulate --sweep: the best policy of each schedule while one number of the machine changes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "penstock/cli/described_flags.h"

namespace penstock::cli {

// `spec`: cpu-memory=64GiB..512GiB, gpu-memory=..., disk=1GB..14GB (a second), link=4GB..64GB (a second),
// batch-size=1..256; every value twice the one before it. Prints CSV, draws `plot_path` unless it is empty. Schedule
// "all": one line for each; "auto": the best. kUsage for what is not understood.
absl::Status RunSweep(const Described& described, const std::string& spec, const std::string& plot_path);

}  // namespace penstock::cli
