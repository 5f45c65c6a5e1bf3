#include "penstock/cli/stop_signals.h"

#include <csignal>
#include <string_view>

#include <unistd.h>

#include "penstock/base/status.h"

namespace penstock::cli {
namespace {

std::atomic<bool> stop_requested{false};
std::atomic<bool> can_resume{false};

void StopAtOnce(std::string_view line) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  _exit(static_cast<int>(Fault::kStopped));
}

void OnStopSignal(int) {
  if (!stop_requested.exchange(true)) return;
  StopAtOnce(can_resume ? "penstock: error: stopped at once by a second signal; continue with --resume\n"
                        : "penstock: error: stopped at once by a second signal\n");
}

}  // namespace

void StopStuckRank() {
  StopAtOnce("penstock: error: another rank has neither arrived nor left for 60 s; continue with --resume\n");
}

const std::atomic<bool>& StopOnSignals(Resumable resumable) {
  can_resume = resumable == Resumable::kYes;
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    // A caller that ignores a signal (nohup, a script's background job) wants it to stay ignored.
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
  }
  return stop_requested;
}

}  // namespace penstock::cli
