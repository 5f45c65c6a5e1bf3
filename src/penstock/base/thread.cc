#include "penstock/base/thread.h"

#include <system_error>
#include <utility>

#include "penstock/base/status.h"

namespace penstock {

absl::StatusOr<std::thread> StartThread(std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& e) {
    return ResourceError("the system refuses another thread ({}); raise the limit on processes (ulimit -u, pids.max)",
                         e.code().message());
  }
}

}  // namespace penstock
