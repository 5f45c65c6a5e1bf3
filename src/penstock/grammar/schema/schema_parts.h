// A set of schemas that a value must satisfy together: "allOf", flattened.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"

namespace penstock::grammar {

// One schema that must hold, and where it stands.
struct SchemaPart {
  const json::value* schema = nullptr;
  std::string path;
  // Alternatives that have been chosen already; what is left of the schema must hold beside them.
  bool without_any_of = false;
  bool without_one_of = false;
  bool is_flat = false;     // what it refers to, and its allOf, are parts of their own
  bool is_derived = false;  // another part asks for it

  auto key() const { return std::tuple(schema, without_any_of, without_one_of); }
  const json::object& object() const { return schema->get_object(); }
  const json::value* Find(std::string_view keyword) const {
    return object().if_contains(json::string_view(keyword.data(), keyword.size()));
  }
};

using SchemaParts = std::vector<SchemaPart>;

// The types of JSON values. kNumber stands for numbers that are no integers.
using TypeSet = uint8_t;
inline constexpr TypeSet kNull = 1 << 0, kBoolean = 1 << 1, kInteger = 1 << 2, kNumber = 1 << 3, kString = 1 << 4,
                         kArray = 1 << 5, kObject = 1 << 6, kAllTypes = (1 << 7) - 1;

TypeSet TypeOf(const json::value& value);
// Whether two values are equal in the sense of JSON Schema: 1 and 1.0 are.
bool IsSame(const json::value& a, const json::value& b);

// Resolves references, and flattens allOf.
class SchemaReader {
 public:
  explicit SchemaReader(const json::value& root) : root_(root) {}

  // Replaces references by what they refer to, and allOf by its parts. Adds what rewritten keywords ask for. Absent:
  // nothing is valid. All keywords of the parts are known, and the values of those that matter have the right types.
  absl::StatusOr<std::optional<SchemaParts>> Flatten(const SchemaParts& parts);
  // Returns the types that all parts allow.
  static TypeSet TypesOf(const SchemaParts& parts);
  // Returns the values that enum or const of the parts allow; absent if no part has them.
  static std::optional<std::vector<const json::value*>> ValuesOf(const SchemaParts& parts);
  // Whether no value is valid under both, for certain.
  absl::StatusOr<bool> AreDisjoint(const SchemaPart& a, const SchemaPart& b, int depth);
  // Returns the schema that $ref of a part refers to.
  absl::StatusOr<SchemaPart> Resolve(const SchemaPart& from) const;
  // Returns a schema that holds only where the part's does not.
  absl::StatusOr<SchemaPart> OppositeOf(const SchemaPart& part);

 private:
  // Schemas by those of which they were made.
  using MadeSchemas = std::map<const json::value*, std::unique_ptr<const json::value>>;

  // Returns the rest of a part whose keyword is rewritten.
  absl::StatusOr<SchemaPart> Rewrite(const SchemaPart& part, std::string_view keyword);
  absl::StatusOr<SchemaPart> Keep(MadeSchemas& made, const SchemaPart& part, std::string_view keyword,
                                  absl::StatusOr<json::value> schema);

  const json::value& root_;
  MadeSchemas rewritten_, opposites_;
  uint64_t num_rewritten_bytes_ = 0;
};

inline bool IsSchema(const json::value& value) { return value.is_object() || value.is_bool(); }

// Checks the names of a schema's keywords, and the types of their values.
absl::Status CheckKeywords(const SchemaPart& part, bool is_root);
// Whether a keyword asks for nothing, as unknown ones do.
bool IsDescription(std::string_view keyword);
// Returns the names of types and what they stand for.
std::span<const std::pair<std::string_view, TypeSet>> TypeNames();

// Returns the types that a name stands for; 0 if it is unknown.
TypeSet TypeNamed(const json::value& name);
// Returns the schemas of the first items, also those of older drafts, where `items` is a list; nullptr without any.
const json::array* PrefixItemsOf(const SchemaPart& part);
// Returns the schema of the items behind them; nullptr without any.
const json::value* OtherItemsOf(const SchemaPart& part);

// Returns the path of a part of a schema: "#/properties/name".
std::string Below(std::string_view path, std::string_view key);
absl::Status SchemaError(const SchemaPart& part, std::string_view keyword, std::string_view message);

}  // namespace penstock::grammar
