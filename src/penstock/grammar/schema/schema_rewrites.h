// Says `not`, `if` and the keywords of dependences by other keywords. Pure functions of a schema's JSON, and of
// the schemas that it refers to.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/grammar/schema/schema_parts.h"

namespace penstock::grammar {

// Returns the keyword of a schema that must be rewritten; "" if it has none.
std::string_view RewrittenKeyword(const SchemaPart& part);

// Returns a schema that holds only where these keywords of the part hold. kInput if it would have to be the opposite of
// a keyword that has none.
absl::StatusOr<json::value> Rewritten(const SchemaPart& part, const SchemaReader& reader);

// Returns a schema that holds only where the part's does not. It may leave out objects that differ in other members
// than those that can be told apart. kInput as above.
absl::StatusOr<json::value> OppositeSchema(const SchemaPart& part, const SchemaReader& reader);

// Returns the texts of {"type": "string", "not": {"enum": [texts]}}; nullptr if the schema is not of this form. It is
// what rewriting leaves of `not`.
const json::array* ExcludedTexts(const SchemaPart& part);
// Returns the pattern of {"type": "string", "not": {"pattern": pattern}} likewise.
const json::string* ExcludedPattern(const SchemaPart& part);

}  // namespace penstock::grammar
