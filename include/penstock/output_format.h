// Formats that answers follow: JSON, JSON of a schema, texts of a regular expression or a grammar, or what is composed
// of these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

struct OutputFormat {
  enum class Kind : uint8_t {
    kJson,        // a JSON object; `text` is empty
    kJsonSchema,  // JSON that is valid under the JSON Schema (draft 2020-12) in `text`
    kRegex,       // a text that the regular expression in `text` matches from its beginning to its end
    kGrammar,     // a text of the rule "root" of the GBNF grammar in `text`
    // Engine::FormatOfAnswer() composes the format of a whole answer of these, too.
    kText,        // `text`, where tokens that are marks stand as MarkText() spells them
    kString,      // what a string under the schema in `text` says (empty: any text): not a text of a kRegex among
                  // `parts`, and without any kText among them
    kTaggedJson,  // as kJsonSchema, with no "<" other than as an escape
    kSequence,    // `parts`, one after the other
    kChoice,      // one of `parts`
    kRepeat,      // `parts[0]`, any number of times
  };
  Kind kind = Kind::kJson;
  std::string text = {};
  std::vector<OutputFormat> parts = {};
  bool operator==(const OutputFormat&) const = default;
};

// A compiled format for one model's vocabulary. Immutable; threads may share it.
class Constraint;

}  // namespace penstock
