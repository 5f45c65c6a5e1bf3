// Penstock's version, as in the root CMakeLists.txt.
#pragma once

#include <string_view>

namespace penstock {

// Returns MAJOR.MINOR.PATCH.
std::string_view Version();

}  // namespace penstock
