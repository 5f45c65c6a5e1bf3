// Printing as Python does it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "penstock/chat/jinja/interp.h"

namespace penstock::jinja {

// As Python's str.isprintable() sees one character.
bool IsPrintable(char32_t c);
// "1.0", "1e+16", "nan": Python's repr() of a float.
std::string FloatText(double number);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool multiline = false;
  Text indent;          // of one level; used when multiline
  Text item_separator;  // ", "
  Text key_separator;   // ": "
};

// Python's json.dumps().
absl::Status AppendJson(Interp& interp, const Value& value, const JsonStyle& style, int level, Text& out);

// Python's `pattern % args` and `pattern.format(...)`.
Result FormatPercent(Interp& interp, const Text& pattern, const Value& arguments);
Result FormatBraces(Interp& interp, const Text& pattern, const Args& args);

}  // namespace penstock::jinja
