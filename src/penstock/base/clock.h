// Elapsed time on a monotonic clock, and the date.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace penstock {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Begins as the day that templates without a date see.
struct DateTime {
  int year = 2024;
  int month = 7;
  int day = 26;
  int hour = 0;
  int minute = 0;
  int second = 0;
};

// Parses "YYYY-MM-DD" or "YYYY-MM-DDTHH:MM:SS"; returns nothing when the text is not a time that exists.
std::optional<DateTime> ParseDateTime(std::string_view text);

// Returns the date in UTC, such as "2026-11-21".
std::string Today();

}  // namespace penstock
