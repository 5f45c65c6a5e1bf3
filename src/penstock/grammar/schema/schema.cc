#include "penstock/grammar/schema/schema.h"

#include "penstock/grammar/schema/schema_compiler.h"

namespace penstock::grammar {
namespace {

absl::StatusOr<json::value> RootOf(std::string_view text) {
  PENSTOCK_ASSIGN_OR_RETURN(json::value root, ParseJson(text, Fault::kInput));
  if (root.is_object() || root.is_bool()) return root;
  return InputError("expected a schema, which is an object, found {}", JsonTypeName(root));
}

}  // namespace

absl::StatusOr<Grammar> ParseSchema(std::string_view text, Spelling spelling, Work& work) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value root, RootOf(text));
  return SchemaCompiler(root, spelling, nullptr, work).Run();
}

absl::StatusOr<Grammar> ParseSchemaOfText(std::string_view text, const Dfa& allowed, Work& work) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value schema, RootOf(text));
  json::object root = {{"allOf", json::array{schema, json::object{{"type", "string"}}}}};
  for (const char* name : {"$defs", "definitions"}) {
    if (schema.is_object() && schema.get_object().contains(name)) root[name] = schema.at(name);
  }
  return SchemaCompiler(json::value(std::move(root)), Spelling::kUtf8, &allowed, work).Run();
}

}  // namespace penstock::grammar
