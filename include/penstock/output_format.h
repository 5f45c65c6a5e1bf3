// Formats that answers follow: JSON, JSON of a schema, or texts of a regular expression or a grammar.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

struct OutputFormat {
  enum class Kind : uint8_t {
    kJson,        // a JSON object; `text` is empty
    kJsonSchema,  // JSON that is valid under the JSON Schema (draft 2020-12) in `text`
    kRegex,       // a text that the regular expression in `text` matches from its beginning to its end
    kGrammar,     // a text of the rule "root" of the GBNF grammar in `text`
  };
  Kind kind = Kind::kJson;
  std::string text = {};
  bool operator==(const OutputFormat&) const = default;
};

// A compiled format for one model's vocabulary. Immutable; threads may share it.
class Constraint;

}  // namespace penstock
