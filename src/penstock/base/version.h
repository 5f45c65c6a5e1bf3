// Penstock's version: the one of the root CMakeLists.txt.
#pragma once

#include <string_view>

namespace penstock {

// As "MAJOR.MINOR.PATCH".
std::string_view Version();

}  // namespace penstock
