// JSON Schema (draft 2020-12): translates a schema into a grammar of JSON texts that are valid under it.
//
// Each text of the grammar is valid; the grammar need not have all valid texts. Members come in the order of the
// schema. An object has no members that the schema does not name, unless it says additionalProperties or names none. A
// keyword that cannot be honoured is an error that names it and its place. Unknown keywords are notes, unless they are
// probably misspelt.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/grammar/grammar.h"

namespace penstock::grammar {

// kInput when the schema is invalid or not supported. `spelling` is that of strings in JSON.
absl::StatusOr<Grammar> ParseSchema(std::string_view text, Spelling spelling, Work& work);
// Translates the part of a schema that allows strings, into what these strings say: without quotes and escapes. They
// are texts of `allowed`, an automaton of code points. Where the schema counts or matches their characters, they have
// no "<".
absl::StatusOr<Grammar> ParseSchemaOfText(std::string_view text, const Dfa& allowed, Work& work);

}  // namespace penstock::grammar
