// What was found out once and need not be found out again: JSON files in $XDG_CACHE_HOME/penstock or ~/.cache/penstock.
#pragma once

#include <optional>
#include <string_view>

#include "penstock/base/json.h"

namespace penstock {

// The content that was kept under this identity. A file that is not there, not ours, or damaged is like none.
std::optional<json::object> ReadKept(std::string_view kind, const json::object& identity);

// Replaces what was kept under this identity. Where there is no such folder nothing is kept; a warning where it cannot
// be written.
void Keep(std::string_view kind, const json::object& identity, const json::object& content);

}  // namespace penstock
