#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/grammar/schema/schema_parts.h"

namespace penstock::grammar {
namespace {

// The values that a keyword may have.
enum class Shape : uint8_t {
  kDescription,
  kAny,
  kTypes,
  kList,
  kSchema,
  kSchemas,
  kSchemaMap,
  kCount,
  kNumber,
  kString,
  kStrings,
  kStringsMap,
  kBool,
  kNumberOrBool,
  kItems,
  kDependencies,
};

struct Keyword {
  std::string_view name;
  Shape shape = Shape::kDescription;
};

constexpr Keyword kKeywords[] = {
    {"type", Shape::kTypes},
    {"enum", Shape::kList},
    {"const", Shape::kAny},
    {"properties", Shape::kSchemaMap},
    {"patternProperties", Shape::kSchemaMap},
    {"additionalProperties", Shape::kSchema},
    {"propertyNames", Shape::kSchema},
    {"required", Shape::kStrings},
    {"minProperties", Shape::kCount},
    {"maxProperties", Shape::kCount},
    {"items", Shape::kItems},
    {"additionalItems", Shape::kSchema},
    {"prefixItems", Shape::kSchemas},
    {"minItems", Shape::kCount},
    {"maxItems", Shape::kCount},
    {"minLength", Shape::kCount},
    {"maxLength", Shape::kCount},
    {"pattern", Shape::kString},
    {"format", Shape::kString},
    {"minimum", Shape::kNumber},
    {"maximum", Shape::kNumber},
    {"exclusiveMinimum", Shape::kNumberOrBool},
    {"exclusiveMaximum", Shape::kNumberOrBool},
    {"multipleOf", Shape::kNumber},
    {"anyOf", Shape::kSchemas},
    {"oneOf", Shape::kSchemas},
    {"allOf", Shape::kSchemas},
    {"not", Shape::kSchema},
    {"if", Shape::kSchema},
    {"then", Shape::kSchema},
    {"else", Shape::kSchema},
    {"dependentRequired", Shape::kStringsMap},
    {"dependentSchemas", Shape::kSchemaMap},
    {"dependencies", Shape::kDependencies},
    {"contains", Shape::kSchema},
    {"minContains", Shape::kCount},
    {"maxContains", Shape::kCount},
    {"unevaluatedProperties", Shape::kSchema},
    {"unevaluatedItems", Shape::kSchema},
    {"$ref", Shape::kString},
    {"$defs", Shape::kSchemaMap},
    {"definitions", Shape::kSchemaMap},
    {"uniqueItems", Shape::kBool},
    {"nullable"},  // of OpenAPI 3.0: the null that it allows is no valid answer by JSON Schema
    {"title"},
    {"description"},
    {"default"},
    {"examples"},
    {"example"},
    {"deprecated"},
    {"readOnly"},
    {"writeOnly"},
    {"$comment"},
    {"$schema"},
    {"$id"},
    {"$anchor"},
    {"contentEncoding"},
    {"contentMediaType"},
    {"contentSchema"},
};

// Keywords of JSON Schema that limit values, and are not supported.
constexpr std::string_view kUnsupported[] = {"$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy"};

bool IsStrings(const json::value& value) {
  return value.is_array() && std::ranges::all_of(value.get_array(), [](const json::value& v) { return v.is_string(); });
}

bool IsCount(const json::value& value) {
  if (value.is_int64()) return value.get_int64() >= 0;
  return value.is_uint64() ||
         (value.is_double() && value.get_double() >= 0 && std::floor(value.get_double()) == value.get_double());
}

bool HasShape(const json::value& value, Shape shape) {
  switch (shape) {
    case Shape::kDescription:
    case Shape::kAny:
    case Shape::kTypes: return true;
    case Shape::kList: return value.is_array();
    case Shape::kSchema: return IsSchema(value);
    case Shape::kSchemas: return value.is_array() && std::ranges::all_of(value.get_array(), IsSchema);
    case Shape::kSchemaMap:
      return value.is_object() &&
             std::ranges::all_of(value.get_object(), [](const auto& member) { return IsSchema(member.value()); });
    case Shape::kCount: return IsCount(value);
    case Shape::kNumber: return value.is_number();
    case Shape::kString: return value.is_string();
    case Shape::kStrings: return IsStrings(value);
    case Shape::kStringsMap:
      return value.is_object() &&
             std::ranges::all_of(value.get_object(), [](const auto& member) { return IsStrings(member.value()); });
    case Shape::kBool: return value.is_bool();
    case Shape::kNumberOrBool: return value.is_number() || value.is_bool();
    case Shape::kItems: return HasShape(value, Shape::kSchema) || HasShape(value, Shape::kSchemas);
    case Shape::kDependencies:
      return value.is_object() && std::ranges::all_of(value.get_object(), [](const auto& member) {
               return IsSchema(member.value()) || IsStrings(member.value());
             });
  }
  return false;
}

std::string_view ShapeName(Shape shape) {
  switch (shape) {
    case Shape::kItems:
    case Shape::kSchema: return "a schema";
    case Shape::kSchemas: return "a list of schemas";
    case Shape::kDependencies:
    case Shape::kSchemaMap: return "an object of schemas";
    case Shape::kCount: return "a count";
    case Shape::kNumberOrBool:
    case Shape::kNumber: return "a number";
    case Shape::kString: return "a string";
    case Shape::kStrings: return "a list of strings";
    case Shape::kStringsMap: return "an object of lists of strings";
    case Shape::kList: return "a list";
    default: return "a boolean";
  }
}

absl::Status CheckType(const SchemaPart& part, const json::value& value) {
  const bool is_list = value.is_array();
  const bool is_valid = is_list ? std::ranges::all_of(value.get_array(), TypeNamed) : TypeNamed(value) != 0;
  return is_valid ? absl::OkStatus() : SchemaError(part, "type", "expected the name of a type, or a list of names");
}

// Returns the keyword that an unknown one probably means, or "". Shorter names resemble too many others.
std::string_view MeantKeyword(std::string_view name) {
  constexpr size_t kMinBytes = 5, kMinBytesOfTwo = 9, kMaxBytes = 64;
  if (name.size() > kMaxBytes || name.starts_with('_')) return "";  // a keyword that was switched off
  for (const Keyword& keyword : kKeywords) {
    if (IsDescription(keyword.name)) continue;
    const size_t distance = name.size() < kMinBytes ? kMaxBytes : EditDistance(name, keyword.name);
    const bool is_near = distance <= (name.size() < kMinBytesOfTwo ? 1 : 2);
    if (is_near || SimplifiedName(name) == SimplifiedName(keyword.name)) return keyword.name;
  }
  return "";
}

// An unknown keyword is a note. It must not be a limit that nobody keeps.
absl::Status CheckUnknown(const SchemaPart& part, std::string_view name) {
  if (std::ranges::find(kUnsupported, name) != std::end(kUnsupported)) {
    return SchemaError(part, name, "the keyword is not supported");
  }
  const std::string_view meant = MeantKeyword(name);
  if (meant.empty()) return absl::OkStatus();
  return SchemaError(part, name, fmt::format("the keyword is unknown; did you mean {}?", meant));
}

}  // namespace

bool IsDescription(std::string_view keyword) {
  const auto* const found = std::ranges::find(kKeywords, keyword, &Keyword::name);
  if (found == std::end(kKeywords)) return std::ranges::find(kUnsupported, keyword) == std::end(kUnsupported);
  return found->shape == Shape::kDescription || keyword == "$defs" || keyword == "definitions";
}

absl::Status CheckKeywords(const SchemaPart& part, bool is_root) {
  for (const auto& [key, value] : part.object()) {
    const std::string_view name(key.data(), key.size());
    const auto* const keyword = std::ranges::find(kKeywords, name, &Keyword::name);
    if (keyword == std::end(kKeywords)) {
      PENSTOCK_RETURN_IF_ERROR(CheckUnknown(part, name));
      continue;
    }
    if (!HasShape(value, keyword->shape)) {
      return SchemaError(part, name,
                         fmt::format("expected {}, found {}", ShapeName(keyword->shape), JsonTypeName(value)));
    }
    if (name == "$id" && !is_root) return SchemaError(part, name, "the keyword is only supported at the root");
    if (name == "type") PENSTOCK_RETURN_IF_ERROR(CheckType(part, value));
    const bool is_empty_list = keyword->shape == Shape::kSchemas && value.get_array().empty();
    if (is_empty_list && name != "prefixItems") return SchemaError(part, name, "expected at least one schema");
  }
  return absl::OkStatus();
}

}  // namespace penstock::grammar
