#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/stop_signals.h"
#include "penstock/job/merge.h"
#include "penstock/job/stats.h"

namespace penstock::cli {

absl::StatusOr<int> MergeCommand(const MergeFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(const MergeSummary summary, MergeShards(flags.merge, StopOnSignals()));
  if (!summary.note.empty()) LogWarning("{}", Printable(summary.note));
  LogInfo("{} results of {} shards are in {}, {} failed", summary.num_results, flags.merge.part_paths.size(),
          Printable(flags.merge.output_path), summary.num_failed);
  if (summary.labels.num_labelled > 0) LogInfo("accuracy {}", AccuracyText(summary.labels));
  return 0;
}

}  // namespace penstock::cli
