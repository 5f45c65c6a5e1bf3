#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/logging.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/machine/pack_progress_line.h"
#include "penstock/cli/stop_signals.h"

namespace penstock::cli {
absl::StatusOr<int> PackCommand(const PackFlags& flags) {
  const std::atomic<bool>& stop_requested = StopOnSignals();
  const auto start = Clock::now();
  PackProgress last;
  {
    PackProgressLine line("packed", flags.quiet);
    PENSTOCK_RETURN_IF_ERROR(PackModel(
        flags.pack,
        [&](const PackProgress& progress) {
          last = progress;
          line.Update(progress);
        },
        stop_requested));
  }
  const double seconds = SecondsSince(start);
  LogInfo("{} packed into {} in {:.1f} s", FormatBytes(last.total_bytes), flags.pack.output_dir, seconds);
  return 0;
}

}  // namespace penstock::cli
