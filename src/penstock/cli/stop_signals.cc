#include "penstock/cli/stop_signals.h"

#include <csignal>
#include <string_view>

#include <unistd.h>

#include "penstock/base/status.h"

namespace penstock::cli {
namespace {

std::atomic<bool> stop_requested{false};

void OnStopSignal(int) {
  if (!stop_requested.exchange(true)) return;
  constexpr std::string_view kLine = "penstock: error: stopped at once by a second signal\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  _exit(static_cast<int>(Fault::kStopped));
}

}  // namespace

const std::atomic<bool>& StopOnSignals() {
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
