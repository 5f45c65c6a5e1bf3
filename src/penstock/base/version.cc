#include "penstock/base/version.h"

#include "commit.h"  // written by cmake/commit.cmake

namespace penstock {

std::string_view Version() { return PENSTOCK_VERSION; }
std::string_view Commit() { return kCommit; }

}  // namespace penstock
