// Families with experts that Penstock does not run, and what it lacks for them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace penstock {

struct UnsupportedFamily {
  std::string_view architecture;  // architectures[0] in config.json
  std::string_view gguf = {};     // general.architecture; empty: GGUF does not have it
  std::string_view lack;          // what Penstock does not compute
};

std::span<const UnsupportedFamily> UnsupportedFamilies();

// Returns ": Penstock does not compute <lack>" for a name in config.json or in GGUF, or nothing for an unknown name.
std::string LackOf(std::string_view architecture);

}  // namespace penstock
