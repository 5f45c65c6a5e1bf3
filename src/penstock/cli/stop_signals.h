// Ctrl-C and SIGTERM as a flag.
#pragma once

#include <atomic>

namespace penstock::cli {

// From now on the first signal sets the flag, which asks for a stop at the next border of the work. The second ends the
// process at once with exit code 7, which loses nothing either: what is on disk is whole.
const std::atomic<bool>& StopOnSignals();

}  // namespace penstock::cli
