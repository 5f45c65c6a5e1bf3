#include "penstock/grammar/schema/schema.h"

#include "penstock/grammar/schema/schema_compiler.h"

namespace penstock::grammar {

absl::StatusOr<Grammar> ParseSchema(std::string_view text, Work& work) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value root, ParseJson(text, Fault::kInput));
  if (!root.is_object() && !root.is_bool()) {
    return InputError("expected a schema, which is an object, found {}", JsonTypeName(root));
  }
  return SchemaCompiler(root, work).Run();
}

}  // namespace penstock::grammar
