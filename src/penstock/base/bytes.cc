#include "penstock/base/bytes.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 15> kUnits = {{{"", 1.0},
                                                                         {"K", 1024.0},
                                                                         {"M", 1048576.0},
                                                                         {"G", 1073741824.0},
                                                                         {"T", 1099511627776.0},
                                                                         {"B", 1.0},
                                                                         {"kB", 1e3},
                                                                         {"KB", 1e3},
                                                                         {"MB", 1e6},
                                                                         {"GB", 1e9},
                                                                         {"TB", 1e12},
                                                                         {"KiB", 1024.0},
                                                                         {"MiB", 1048576.0},
                                                                         {"GiB", 1073741824.0},
                                                                         {"TiB", 1099511627776.0}}};

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (error == std::errc() && std::isfinite(number) && number > 0) {
    for (const auto& [name, factor] : kUnits) {
      if (unit != name) continue;
      const double bytes = number * factor;
      if (bytes < 1 || bytes > 9.0e18) break;
      return static_cast<uint64_t>(bytes);
    }
  }
  return UsageError("size '{}' is not understood: expected a positive number with a unit, such as 512MiB, 16G or 24GB",
                    text);
}

absl::StatusOr<double> ParseRate(std::string_view text) {
  constexpr std::string_view kPerSecond = "/s";
  if (text.ends_with(kPerSecond)) {
    const absl::StatusOr<uint64_t> bytes = ParseBytes(text.substr(0, text.size() - kPerSecond.size()));
    if (bytes.ok()) return static_cast<double>(*bytes);
  }
  return UsageError("rate '{}' is not understood: expected a positive number with a unit, such as 4GB/s", text);
}

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // Switches to the next unit where the printed number would round up to one digit more.
  while (value >= (unit == 0 ? 1024.0 : 1023.5) && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, kNames[unit]);
}

}  // namespace penstock
