// Threads that may be refused: limits on processes (ulimit -u, a cgroup's pids.max) also count threads.
#pragma once

#include <functional>
#include <thread>

#include "absl/status/statusor.h"

namespace penstock {

// Starts a thread; kResources when the system refuses it.
absl::StatusOr<std::thread> StartThread(std::function<void()> body);

}  // namespace penstock
