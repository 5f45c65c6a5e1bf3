#include "penstock/cli/stop_signals.h"

#include <csignal>

#include <unistd.h>

#include "penstock/base/status.h"

namespace penstock::cli {
namespace {

std::atomic<bool> stop_requested{false};

void OnStopSignal(int) {
  if (stop_requested.exchange(true)) _exit(static_cast<int>(Fault::kStopped));
}

}  // namespace

const std::atomic<bool>& StopOnSignals() {
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return stop_requested;
}

}  // namespace penstock::cli
