// Short names for the parts of which formats of answers are composed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "penstock/output_format.h"

namespace penstock::form {

using Parts = std::vector<OutputFormat>;

inline OutputFormat Text(std::string text) { return {OutputFormat::Kind::kText, std::move(text)}; }
inline OutputFormat Regex(std::string pattern) { return {OutputFormat::Kind::kRegex, std::move(pattern)}; }
inline OutputFormat Sequence(Parts parts) { return {OutputFormat::Kind::kSequence, {}, std::move(parts)}; }
inline OutputFormat Choice(Parts parts) { return {OutputFormat::Kind::kChoice, {}, std::move(parts)}; }
inline OutputFormat Optional(OutputFormat part) { return Choice({Text(""), std::move(part)}); }
inline OutputFormat Repeat(OutputFormat part) { return {OutputFormat::Kind::kRepeat, {}, {std::move(part)}}; }
// Any text without these parts; with a schema, what a string of it says.
inline OutputFormat TextWithout(Parts parts, std::string schema = {}) {
  return {OutputFormat::Kind::kString, std::move(schema), std::move(parts)};
}

}  // namespace penstock::form
