// Prints values as Python does.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "penstock/chat/jinja/interp.h"

namespace penstock::jinja {

// Returns what Python's str.isprintable() says about one character.
bool IsPrintable(char32_t c);
// Returns Python's repr() of a float: "1.0", "1e+16", "nan".
std::string FloatText(double number);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool multiline = false;
  Text indent;          // for one level; used if multiline
  Text item_separator;  // ", "
  Text key_separator;   // ": "
};

// Appends what Python's json.dumps() returns.
absl::Status AppendJson(Interp& interp, const Value& value, const JsonStyle& style, int level, Text& out);

// Return Python's `pattern % args` and `pattern.format(...)`.
Result FormatPercent(Interp& interp, const Text& pattern, const Value& arguments);
Result FormatBraces(Interp& interp, const Text& pattern, const Args& args);

}  // namespace penstock::jinja
