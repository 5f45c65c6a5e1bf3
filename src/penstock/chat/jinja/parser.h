// Parses tokens into a tree, with bounded nesting.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/chat/jinja/ast.h"

namespace penstock::jinja {

// A syntax error gives kModel with the template's line. REQUIRES: source is UTF-8.
absl::StatusOr<Body> ParseTemplate(std::string_view source);

}  // namespace penstock::jinja
