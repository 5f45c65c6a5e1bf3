// Strict parsing of JSON from outside: bounded depth, valid UTF-8, no duplicate keys, errors with line and column.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"

namespace penstock {

namespace json = boost::json;

struct JsonLimits {
  int max_depth = kMaxJsonDepth;
  // Takes the values Infinity, -Infinity and NaN, which Python's json writes. They become strings, so whoever needs a
  // number refuses them.
  bool takes_python_words = false;
};
inline constexpr JsonLimits kPythonJson = {.takes_python_words = true};  // for configs of models

// Parses one JSON document. Refuses trailing bytes, a byte-order mark, comments, NaN, numbers beyond double, and
// duplicate keys. Errors carry `fault` and read "line 3, column 7: ...".
absl::StatusOr<json::value> ParseJson(std::string_view text, Fault fault, const JsonLimits& limits = {});

inline std::string_view View(const json::string& text) { return {text.data(), text.size()}; }

// Returns the place of a byte offset as "line 3, column 7", both counted from 1; columns count bytes.
std::string JsonPlace(std::string_view text, size_t offset);

// Returns "string", "integer", "number", ... for messages.
std::string_view JsonTypeName(const json::value& value);

// Returns the value as people write it: 0.25, while JSON's own text is 2.5E-1. Objects and arrays are JSON.
std::string JsonForPeople(const json::value& value);

}  // namespace penstock
