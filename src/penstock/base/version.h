// Penstock's version, as in the root CMakeLists.txt.
#pragma once

#include <string_view>

namespace penstock {

// Returns a version such as "0.2.0".
std::string_view Version();

}  // namespace penstock
