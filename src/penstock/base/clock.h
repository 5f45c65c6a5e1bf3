// Elapsed time on a monotonic clock, and the date.
#pragma once

#include <chrono>
#include <string>

namespace penstock {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns the date in UTC, such as "2026-11-21".
std::string Today();

}  // namespace penstock
