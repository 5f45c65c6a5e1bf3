// Arguments that a model writes as tags: they become JSON, with the types of the tool's schema.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/base/json.h"

namespace penstock {

// Returns {"key": value, ...}. A value that is JSON of a type that the schema allows stays as it is written; any other
// value becomes a string. Without a schema, any JSON but a string stays. The last of equal keys counts.
std::string JsonOfTags(const json::value& tools, std::string_view tool_name,
                       const std::vector<std::pair<std::string, std::string>>& arguments);

}  // namespace penstock
