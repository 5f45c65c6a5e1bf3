// Keeps measurements, so that they need not be repeated: JSON files in $XDG_CACHE_HOME/penstock or ~/.cache/penstock.
#pragma once

#include <optional>
#include <string_view>

#include "penstock/base/json.h"

namespace penstock {

// Returns the content that was kept under this identity. Returns nothing when its file is missing, damaged or not ours.
std::optional<json::object> ReadKept(std::string_view kind, const json::object& identity);

// Replaces the content that was kept under this identity. Does nothing when neither XDG_CACHE_HOME nor HOME names a
// folder. Logs a warning when the file cannot be written.
void Keep(std::string_view kind, const json::object& identity, const json::object& content);

}  // namespace penstock
