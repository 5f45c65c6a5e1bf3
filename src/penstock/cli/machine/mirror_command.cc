#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/machine/pack_progress_line.h"
#include "penstock/cli/stop_signals.h"

namespace penstock::cli {

absl::StatusOr<int> MirrorCommand(const MirrorFlags& flags) {
  MirrorOptions options = flags.mirror;
  if (!flags.size.empty()) {
    const absl::StatusOr<uint64_t> size = ParseBytes(flags.size);
    if (!size.ok()) return Annotate(size.status(), "--size");
    options.size_bytes = *size;
  }
  const std::atomic<bool>& stop_requested = StopOnSignals();
  const auto start = Clock::now();
  PackProgress last;
  {
    PackProgressLine line("copied", flags.quiet);
    PENSTOCK_RETURN_IF_ERROR(MirrorModel(
        options,
        [&](const PackProgress& progress) {
          last = progress;
          line.Update(progress);
        },
        stop_requested));
  }
  LogInfo("{} copied into {} in {:.1f} s", FormatBytes(last.done_bytes), Printable(options.output_dir),
          SecondsSince(start));
  return 0;
}

}  // namespace penstock::cli
