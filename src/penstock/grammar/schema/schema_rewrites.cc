#include "penstock/grammar/schema/schema_rewrites.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "penstock/base/status.h"

namespace penstock::grammar {
namespace {

constexpr size_t kMaxNumbers = 16;  // of one enum whose opposite is wanted
constexpr double kMaxNumber = 1e9;  // larger ones need not be exact
constexpr std::string_view kRewritten[] = {"not", "if", "dependentRequired", "dependentSchemas", "dependencies"};

json::value AnyOf(json::array schemas) {
  if (schemas.empty()) return false;
  if (schemas.size() == 1) return std::move(schemas[0]);
  return json::object{{"anyOf", std::move(schemas)}};
}

json::value AllOf(json::array schemas) { return json::object{{"allOf", std::move(schemas)}}; }

// Returns a schema of these types; numbers that are no integers have none of their own.
json::value OfTypes(TypeSet types) {
  json::array names;
  for (const auto& [name, set] : TypeNames()) {
    if ((types & set) == set && !(set == kInteger && (types & kNumber) != 0)) names.emplace_back(json::string(name));
  }
  if (names.empty()) return false;
  return json::object{{"type", std::move(names)}};
}

// Returns a schema of objects that have the member, with values of the schema. Other members are free.
json::value WithMember(json::string_view name, json::value schema) {
  return json::object{{"type", "object"},
                      {"properties", json::object{{name, std::move(schema)}}},
                      {"required", json::array{name}},
                      {"additionalProperties", true}};
}

// Returns a schema of objects, or of all values, that lack the member.
json::object WithoutMember(json::string_view name) {
  return {{"properties", json::object{{name, false}}}, {"additionalProperties", true}};
}

json::value ObjectWithoutMember(json::string_view name) {
  json::object schema = WithoutMember(name);
  schema["type"] = "object";
  return schema;
}

// Returns a schema of numbers between neighbours of the list, and beyond its ends.
void AddGaps(std::vector<double> numbers, json::array& schemas) {
  std::ranges::sort(numbers);
  for (size_t i = 0; i <= numbers.size(); ++i) {
    json::object gap = {{"type", "number"}};
    if (i > 0) gap["exclusiveMinimum"] = numbers[i - 1];
    if (i < numbers.size()) gap["exclusiveMaximum"] = numbers[i];
    schemas.emplace_back(std::move(gap));
  }
}

// Returns a schema of other values. It leaves out lists and objects if the values have such.
json::value OtherThan(const json::array& values) {
  TypeSet types = 0;
  json::array texts, schemas;
  std::vector<double> numbers;
  bool has_true = false, has_false = false, has_large = false;
  for (const json::value& value : values) {
    types |= TypeOf(value);
    if (value.is_string()) texts.push_back(value);
    if (value.is_bool()) (value.get_bool() ? has_true : has_false) = true;
    if (!value.is_number()) continue;
    numbers.push_back(value.to_number<double>());
    has_large |= std::abs(numbers.back()) > kMaxNumber;
  }
  if (!numbers.empty()) types |= kInteger | kNumber;
  schemas.push_back(OfTypes(kAllTypes & ~types));
  if (!texts.empty()) {
    schemas.push_back(json::object{{"type", "string"}, {"not", json::object{{"enum", std::move(texts)}}}});
  }
  if (has_true != has_false) schemas.push_back(json::object{{"const", has_false}});
  if (!numbers.empty() && numbers.size() <= kMaxNumbers && !has_large) AddGaps(std::move(numbers), schemas);
  return AnyOf(std::move(schemas));
}

json::value Limited(std::string_view type, std::string_view keyword, json::value limit) {
  return json::object{{"type", json::string(type)}, {keyword, std::move(limit)}};
}

struct CountKeywords {
  std::string_view type, min, max;
};
constexpr CountKeywords kCounts[] = {{"string", "minLength", "maxLength"},
                                     {"array", "minItems", "maxItems"},
                                     {"object", "minProperties", "maxProperties"}};

int64_t CountOf(const json::value& value) {
  return static_cast<int64_t>(std::min(value.to_number<double>(), kMaxNumber));
}

// Returns a schema of counts below the smallest one.
json::value OppositeMin(std::string_view type, std::string_view max, const json::value& value) {
  return CountOf(value) == 0 ? json::value(false) : Limited(type, max, CountOf(value) - 1);
}

// Limits of building an opposite. References may lead back, or to the same schema many times.
struct Opposing {
  const SchemaReader& reader;
  int num_schemas_left = 4096;
  int num_refs_left = 32;
  // An opposite of objects may leave some of them out: not all members that could differ need to.
  bool may_drop = false;
};

bool IsOfObjects(std::string_view name) {
  return name == "properties" || name == "patternProperties" || name == "additionalProperties" ||
         name == "propertyNames";
}

absl::StatusOr<json::value> Opposite(const SchemaPart& part, Opposing& opposing);

absl::StatusOr<json::array> Opposites(const SchemaPart& part, std::string_view keyword, const json::array& schemas,
                                      Opposing& opposing) {
  json::array opposites;
  for (const json::value& schema : schemas) {
    PENSTOCK_ASSIGN_OR_RETURN(opposites.emplace_back(nullptr),
                              Opposite({&schema, Below(part.path, keyword)}, opposing));
  }
  return opposites;
}

absl::StatusOr<json::value> OppositeMembers(const SchemaPart& part, const json::object& properties,
                                            Opposing& opposing) {
  json::array schemas;
  absl::Status fault;
  for (const auto& [name, schema] : properties) {
    absl::StatusOr<json::value> opposite = Opposite({&schema, Below(part.path, "properties")}, opposing);
    if (!opposite.ok()) {
      fault = opposite.status();
    } else if (*opposite != json::value(false)) {
      schemas.push_back(WithMember(name, *std::move(opposite)));
    }
  }
  if (!fault.ok() && (!opposing.may_drop || schemas.empty())) return fault;
  return AnyOf(std::move(schemas));
}

// Returns the opposite of one keyword, beside which no other one stands.
absl::StatusOr<json::value> OppositeOf(const SchemaPart& part, std::string_view name, const json::value& value,
                                       Opposing& opposing) {
  if (name == "not") return value;
  if (name == "const") return OtherThan({value});
  if (name == "enum") return OtherThan(value.get_array());
  if (name == "type") {
    const TypeSet types = SchemaReader::TypesOf({part});
    return OfTypes(kAllTypes & ~((types & kInteger) != 0 ? types | kNumber : types));
  }
  if (name == "properties") return OppositeMembers(part, value.get_object(), opposing);
  if (name == "required") {
    json::array schemas;
    for (const json::value& member : value.get_array()) schemas.push_back(ObjectWithoutMember(member.get_string()));
    return AnyOf(std::move(schemas));
  }
  if (value.is_bool() && name.starts_with("exclusive")) {
    const bool is_min = name == "exclusiveMinimum";
    const json::value* limit = part.Find(is_min ? "minimum" : "maximum");
    if (!value.get_bool() || limit == nullptr) return false;
    return Limited("number", is_min ? "maximum" : "minimum", *limit);
  }
  if (name == "minimum") return Limited("number", "exclusiveMaximum", value);
  if (name == "maximum") return Limited("number", "exclusiveMinimum", value);
  if (name == "exclusiveMinimum") return Limited("number", "maximum", value);
  if (name == "exclusiveMaximum") return Limited("number", "minimum", value);
  if (name == "uniqueItems" && !value.get_bool()) return false;  // it asks for nothing
  for (const auto& [type, min, max] : kCounts) {
    if (name == min) return OppositeMin(type, max, value);
    if (name == max) return Limited(type, min, CountOf(value) + 1);
  }
  if (name == "anyOf" || name == "allOf") {
    PENSTOCK_ASSIGN_OR_RETURN(json::array opposites, Opposites(part, name, value.get_array(), opposing));
    return name == "anyOf" ? AllOf(std::move(opposites)) : AnyOf(std::move(opposites));
  }
  if (name == "pattern") return json::object{{"type", "string"}, {"not", json::object{{name, value}}}};
  if (name == "$ref" && opposing.num_refs_left > 0) {
    --opposing.num_refs_left;
    PENSTOCK_ASSIGN_OR_RETURN(const SchemaPart target, opposing.reader.Resolve(part));
    PENSTOCK_ASSIGN_OR_RETURN(json::value opposite, Opposite(target, opposing));
    ++opposing.num_refs_left;
    return opposite;
  }
  return SchemaError(part, name, "the keyword is not supported in not or if");
}

// Returns a schema that holds only where the part's does not.
absl::StatusOr<json::value> Opposite(const SchemaPart& part, Opposing& opposing) {
  if (--opposing.num_schemas_left < 0) return InputError("{}: it has too many schemas in not or if", part.path);
  if (part.schema->is_bool()) return !part.schema->get_bool();
  PENSTOCK_RETURN_IF_ERROR(CheckKeywords(part, /*is_root=*/false));
  json::array schemas;
  absl::Status fault;
  bool differs_in_members = false;
  for (const auto& [key, value] : part.object()) {
    const std::string_view name(key.data(), key.size());
    if (IsDescription(name)) continue;
    absl::StatusOr<json::value> opposite = OppositeOf(part, name, value, opposing);
    if (!opposite.ok()) {
      if (!opposing.may_drop || !IsOfObjects(name)) return opposite.status();
      fault = opposite.status();
    } else if (*opposite != json::value(false)) {
      differs_in_members |= name == "required" || name == "properties";
      schemas.push_back(*std::move(opposite));
    }
  }
  if (!fault.ok() && !differs_in_members) return fault;
  return AnyOf(std::move(schemas));
}

absl::StatusOr<json::value> RewrittenIf(const SchemaPart& part, const json::value& condition, Opposing& opposing) {
  const json::value* then = part.Find("then");
  const json::value* otherwise = part.Find("else");
  if (then == nullptr && otherwise == nullptr) return true;
  PENSTOCK_ASSIGN_OR_RETURN(json::value opposite, Opposite({&condition, Below(part.path, "if")}, opposing));
  json::array schemas = {then == nullptr ? condition : AllOf({condition, *then})};
  schemas.push_back(otherwise == nullptr ? std::move(opposite) : AllOf({std::move(opposite), *otherwise}));
  return AnyOf(std::move(schemas));
}

// Returns the value of {"type": "string", "not": {keyword: value}}.
const json::value* ExcludedFromStrings(const SchemaPart& part, std::string_view keyword) {
  const json::value* type = part.Find("type");
  const json::value* excluded = part.Find("not");
  if (part.object().size() != 2 || type == nullptr || excluded == nullptr || *type != "string") return nullptr;
  const json::object* schema = excluded->if_object();
  return schema == nullptr || schema->size() != 1 ? nullptr : schema->if_contains(keyword);
}

}  // namespace

const json::array* ExcludedTexts(const SchemaPart& part) {
  const json::value* list = ExcludedFromStrings(part, "enum");
  const bool is_list = list != nullptr && list->is_array() && !list->get_array().empty() &&
                       std::ranges::all_of(list->get_array(), [](const json::value& v) { return v.is_string(); });
  return is_list ? &list->get_array() : nullptr;
}

const json::string* ExcludedPattern(const SchemaPart& part) {
  const json::value* pattern = ExcludedFromStrings(part, "pattern");
  return pattern == nullptr ? nullptr : pattern->if_string();
}

std::string_view RewrittenKeyword(const SchemaPart& part) {
  if (ExcludedTexts(part) != nullptr || ExcludedPattern(part) != nullptr) return "";
  const auto* const found =
      std::ranges::find_if(kRewritten, [&](std::string_view name) { return part.Find(name) != nullptr; });
  return found == std::end(kRewritten) ? "" : *found;
}

absl::StatusOr<json::value> OppositeSchema(const SchemaPart& part, const SchemaReader& reader) {
  Opposing opposing = {.reader = reader, .may_drop = true};
  return Opposite(part, opposing);
}

absl::StatusOr<json::value> Rewritten(const SchemaPart& part, const SchemaReader& reader) {
  Opposing opposing = {.reader = reader};
  json::array schemas;
  if (const json::value* schema = part.Find("not"); schema != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(schemas.emplace_back(nullptr), Opposite({schema, Below(part.path, "not")}, opposing));
  }
  if (const json::value* condition = part.Find("if"); condition != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(schemas.emplace_back(nullptr), RewrittenIf(part, *condition, opposing));
  }
  for (const std::string_view keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const json::value* all = part.Find(keyword);
    if (all == nullptr) continue;
    for (const auto& [name, value] : all->get_object()) {
      const json::value schema = value.is_array() ? json::value(json::object{{"required", value}}) : value;
      schemas.push_back(AnyOf({WithoutMember(name), schema}));
    }
  }
  return AllOf(std::move(schemas));
}

}  // namespace penstock::grammar
