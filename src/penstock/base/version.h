// Penstock's version, as in the root CMakeLists.txt.
#pragma once

#include <string_view>

namespace penstock {

// Returns MAJOR.MINOR.PATCH.
std::string_view Version();

// Returns the first twelve digits of the commit; empty when the sources were no checkout of git.
std::string_view Commit();

}  // namespace penstock
