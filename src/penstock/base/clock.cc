#include "penstock/base/clock.h"

#include <fmt/chrono.h>

namespace penstock {

std::string Today() { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::chrono::system_clock::now())); }

}  // namespace penstock
