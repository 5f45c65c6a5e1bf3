// Penstock's version: the one of the root CMakeLists.txt.
#pragma once

#include <string_view>

namespace penstock {

// "0.2.0"
std::string_view Version();

}  // namespace penstock
