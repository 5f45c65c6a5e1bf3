#include "penstock/base/bytes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "penstock/base/status.h"

namespace penstock {
namespace {

// In small letters.
constexpr std::array<std::pair<std::string_view, double>, 14> kUnits = {{{"", 1.0},
                                                                         {"k", 1024.0},
                                                                         {"m", 1048576.0},
                                                                         {"g", 1073741824.0},
                                                                         {"t", 1099511627776.0},
                                                                         {"b", 1.0},
                                                                         {"kb", 1e3},
                                                                         {"mb", 1e6},
                                                                         {"gb", 1e9},
                                                                         {"tb", 1e12},
                                                                         {"kib", 1024.0},
                                                                         {"mib", 1048576.0},
                                                                         {"gib", 1073741824.0},
                                                                         {"tib", 1099511627776.0}}};

bool IsUnit(std::string_view text, std::string_view unit) {
  const auto is_same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b; };
  return std::ranges::equal(text, unit, is_same);
}

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (error == std::errc() && std::isfinite(number) && number > 0) {
    for (const auto& [name, factor] : kUnits) {
      if (!IsUnit(unit, name)) continue;
      const double bytes = number * factor;
      if (bytes < 1 || bytes > 9.0e18) break;
      return static_cast<uint64_t>(bytes);
    }
  }
  return UsageError("size '{}' is not understood: expected a positive number with a unit, such as 512MiB, 16G or 24GB",
                    text);
}

absl::StatusOr<double> ParseRate(std::string_view text) {
  constexpr std::string_view kPerSecond = "/s", kPerhapsBits = "b/s";
  if (text.ends_with(kPerSecond) && !text.ends_with(kPerhapsBits)) {
    const absl::StatusOr<uint64_t> bytes = ParseBytes(text.substr(0, text.size() - kPerSecond.size()));
    if (bytes.ok()) return static_cast<double>(*bytes);
  }
  return UsageError("rate '{}' is not understood: expected a positive number with a unit of bytes, such as 4GB/s",
                    text);
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
