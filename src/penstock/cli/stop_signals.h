// Turns Ctrl-C, SIGTERM and SIGHUP into a flag.
#pragma once

#include <atomic>

namespace penstock::cli {

enum class Resumable : bool { kNo, kYes };

// Installs the handlers, except for signals that are ignored. The first signal sets the flag, which asks the work to
// stop at the next safe point. The second signal ends the process at once with exit code 7. It loses nothing either,
// because the files on disk are whole. Its message names --resume if the command has it.
const std::atomic<bool>& StopOnSignals(Resumable resumable = Resumable::kNo);

// Ends the process at once with exit code 7, because another rank neither arrives nor leaves.
void StopStuckRank();

}  // namespace penstock::cli
