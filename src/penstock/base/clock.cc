#include "penstock/base/clock.h"

#include <fmt/chrono.h>

namespace penstock {

std::optional<DateTime> ParseDateTime(std::string_view text) {
  DateTime time;
  const auto number = [&text](size_t at, size_t size, int low, int high, int& out) {
    out = 0;
    for (size_t i = at; i < at + size; ++i) {
      if (i >= text.size() || text[i] < '0' || text[i] > '9') return false;
      out = out * 10 + (text[i] - '0');
    }
    return out >= low && out <= high;
  };
  const bool has_date = number(0, 4, 1, 9999, time.year) && number(5, 2, 1, 12, time.month) &&
                        number(8, 2, 1, 31, time.day) && text[4] == '-' && text[7] == '-';
  if (!has_date) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(time.year),
                                         std::chrono::month(static_cast<unsigned>(time.month)),
                                         std::chrono::day(static_cast<unsigned>(time.day))};
  if (!date.ok()) return std::nullopt;
  if (text.size() == 10) return time;
  const bool has_time = text.size() == 19 && text[10] == 'T' && text[13] == ':' && text[16] == ':' &&
                        number(11, 2, 0, 23, time.hour) && number(14, 2, 0, 59, time.minute) &&
                        number(17, 2, 0, 59, time.second);
  return has_time ? std::optional<DateTime>(time) : std::nullopt;
}

std::string Today() { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::chrono::system_clock::now())); }

}  // namespace penstock
