#include "penstock/grammar/schema/schema_parts.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/grammar/schema/schema_rewrites.h"

namespace penstock::grammar {
namespace {

constexpr size_t kMaxParts = 1024;  // schemas that hold together

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
  kBool
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
    {"items", Shape::kSchema},
    {"prefixItems", Shape::kSchemas},
    {"minItems", Shape::kCount},
    {"maxItems", Shape::kCount},
    {"minLength", Shape::kCount},
    {"maxLength", Shape::kCount},
    {"pattern", Shape::kString},
    {"format", Shape::kString},
    {"minimum", Shape::kNumber},
    {"maximum", Shape::kNumber},
    {"exclusiveMinimum", Shape::kNumber},
    {"exclusiveMaximum", Shape::kNumber},
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
    {"contains", Shape::kSchema},
    {"minContains", Shape::kCount},
    {"maxContains", Shape::kCount},
    {"unevaluatedProperties", Shape::kSchema},
    {"unevaluatedItems", Shape::kSchema},
    {"$ref", Shape::kString},
    {"$defs", Shape::kSchemaMap},
    {"definitions", Shape::kSchemaMap},
    {"uniqueItems", Shape::kBool},
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

bool IsStrings(const json::value& value) {
  return value.is_array() && std::ranges::all_of(value.get_array(), [](const json::value& v) { return v.is_string(); });
}

bool IsSchema(const json::value& value) { return value.is_object() || value.is_bool(); }

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
  }
  return false;
}

std::string_view ShapeName(Shape shape) {
  switch (shape) {
    case Shape::kSchema: return "a schema";
    case Shape::kSchemas: return "a list of schemas";
    case Shape::kSchemaMap: return "an object of schemas";
    case Shape::kCount: return "a count";
    case Shape::kNumber: return "a number";
    case Shape::kString: return "a string";
    case Shape::kStrings: return "a list of strings";
    case Shape::kStringsMap: return "an object of lists of strings";
    case Shape::kList: return "a list";
    default: return "a boolean";
  }
}

constexpr std::pair<std::string_view, TypeSet> kTypeNames[] = {
    {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kNumber},
    {"string", kString}, {"array", kArray},     {"object", kObject}};

TypeSet TypeNamed(const json::value& name) {
  for (const auto& [type, set] : kTypeNames) {
    if (name.is_string() && View(name.get_string()) == type) return set;
  }
  return 0;
}

TypeSet TypesOfKeyword(const json::value& value) {
  if (!value.is_array()) return TypeNamed(value);
  TypeSet types = 0;
  for (const json::value& name : value.get_array()) types |= TypeNamed(name);
  return types;
}

absl::Status CheckType(const SchemaPart& part, const json::value& value) {
  const bool is_list = value.is_array();
  const bool is_valid = is_list ? std::ranges::all_of(value.get_array(), TypeNamed) : TypeNamed(value) != 0;
  return is_valid ? absl::OkStatus() : SchemaError(part, "type", "expected the name of a type, or a list of names");
}

// Decodes a part of a JSON pointer in a URI: "a~1b%20c" is "a/b c".
std::string Decoded(std::string_view text) {
  std::string bytes;
  const auto digit = [&](size_t i) {
    constexpr std::string_view kDigits = "0123456789ABCDEF0123456789abcdef";
    const size_t found = i < text.size() ? kDigits.find(text[i]) : std::string_view::npos;
    return found == std::string_view::npos ? -1 : static_cast<int>(found % 16);
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && digit(i + 1) >= 0 && digit(i + 2) >= 0) {
      bytes += static_cast<char>(16 * digit(i + 1) + digit(i + 2));
      i += 2;
    } else {
      bytes += text[i];
    }
  }
  std::string key;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool is_escape = bytes[i] == '~' && i + 1 < bytes.size() && (bytes[i + 1] == '0' || bytes[i + 1] == '1');
    key += is_escape ? (bytes[++i] == '0' ? '~' : '/') : bytes[i];
  }
  return key;
}

const json::value* ChildOf(const json::value& parent, const std::string& key) {
  if (parent.is_object()) return parent.get_object().if_contains(key);
  if (!parent.is_array() || key.empty() || key.size() > 6 ||
      !std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; })) {
    return nullptr;
  }
  const auto idx = static_cast<size_t>(std::stoul(key));
  return idx < parent.get_array().size() ? &parent.get_array()[idx] : nullptr;
}

}  // namespace

std::string Below(std::string_view path, std::string_view key) { return fmt::format("{}/{}", path, Excerpt(key, 64)); }

bool IsDescription(std::string_view keyword) {
  const auto* const found = std::ranges::find(kKeywords, keyword, &Keyword::name);
  if (found == std::end(kKeywords)) return keyword.starts_with("x-");
  return found->shape == Shape::kDescription || keyword == "$defs" || keyword == "definitions";
}

std::span<const std::pair<std::string_view, TypeSet>> TypeNames() { return kTypeNames; }

absl::Status CheckKeywords(const SchemaPart& part, bool is_root) {
  for (const auto& [key, value] : part.object()) {
    const std::string_view name(key.data(), key.size());
    const auto* const keyword = std::ranges::find(kKeywords, name, &Keyword::name);
    if (keyword == std::end(kKeywords)) {
      if (name.starts_with("x-")) continue;
      return SchemaError(part, name, "the keyword is not supported");
    }
    if (!HasShape(value, keyword->shape)) {
      return SchemaError(part, name,
                         fmt::format("expected {}, found {}", ShapeName(keyword->shape), JsonTypeName(value)));
    }
    if (name == "$id" && !is_root) return SchemaError(part, name, "the keyword is only supported at the root");
    if (name == "uniqueItems" && value.get_bool()) return SchemaError(part, name, "the keyword is not supported");
    if (name == "type") PENSTOCK_RETURN_IF_ERROR(CheckType(part, value));
    const bool is_empty_list = keyword->shape == Shape::kSchemas && value.get_array().empty();
    if (is_empty_list && name != "prefixItems") return SchemaError(part, name, "expected at least one schema");
  }
  return absl::OkStatus();
}

absl::Status SchemaError(const SchemaPart& part, std::string_view keyword, std::string_view message) {
  return InputError("{}: {}", Below(part.path, keyword), message);
}

TypeSet TypeOf(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null: return kNull;
    case json::kind::bool_: return kBoolean;
    case json::kind::string: return kString;
    case json::kind::array: return kArray;
    case json::kind::object: return kObject;
    case json::kind::double_: return std::floor(value.get_double()) == value.get_double() ? kInteger : kNumber;
    default: return kInteger;
  }
}

bool IsSame(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_double() && !b.is_double()) return a == b;
    return a.to_number<double>() == b.to_number<double>();
  }
  if (a.kind() != b.kind()) return false;
  if (a.is_array()) return std::ranges::equal(a.get_array(), b.get_array(), IsSame);
  if (!a.is_object()) return a == b;
  if (a.get_object().size() != b.get_object().size()) return false;
  return std::ranges::all_of(a.get_object(), [&](const auto& member) {
    const json::value* other = b.get_object().if_contains(member.key());
    return other != nullptr && IsSame(member.value(), *other);
  });
}

absl::StatusOr<SchemaPart> SchemaReader::Resolve(const SchemaPart& from) const {
  const std::string_view ref = View(from.Find("$ref")->get_string());
  const auto refuse = [&](std::string_view why) { return SchemaError(from, "$ref", why); };
  if (!ref.starts_with("#") || (ref.size() > 1 && ref[1] != '/')) {
    return refuse("only references within the schema, as #/$defs/name, are supported");
  }
  const json::value* at = &root_;
  std::string_view rest = ref.substr(1);
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const size_t end = std::min(rest.find('/'), rest.size());
    const bool is_below = at != &root_ && at->is_object();
    if (is_below && at->get_object().contains("$id")) return refuse("it refers into a schema with an $id of its own");
    at = ChildOf(*at, Decoded(rest.substr(0, end)));
    if (at == nullptr) return refuse("it refers to nothing");
    rest.remove_prefix(end);
  }
  if (!IsSchema(*at)) return refuse("it refers to something that is no schema");
  return SchemaPart{.schema = at, .path = std::string(ref), .is_derived = true};
}

absl::StatusOr<SchemaPart> SchemaReader::Rewrite(const SchemaPart& part, std::string_view keyword) {
  std::unique_ptr<const json::value>& known = rewritten_[part.schema];
  if (known == nullptr) {
    constexpr uint64_t kMaxBytes = 256 << 10;  // of all
    PENSTOCK_ASSIGN_OR_RETURN(json::value rewritten, Rewritten(part));
    num_rewritten_bytes_ += json::serialize(rewritten).size();
    if (num_rewritten_bytes_ > kMaxBytes) return SchemaError(part, keyword, "the schemas beside it are too long");
    known = std::make_unique<const json::value>(std::move(rewritten));
  }
  return SchemaPart{.schema = known.get(), .path = Below(part.path, keyword), .is_derived = true};
}

absl::StatusOr<std::optional<SchemaParts>> SchemaReader::Flatten(const SchemaParts& parts) {
  SchemaParts queue = parts, flat;
  for (size_t i = 0; i < queue.size(); ++i) {
    const SchemaPart part = queue[i];
    if (part.schema->is_bool()) {
      if (!part.schema->get_bool()) return std::optional<SchemaParts>();
      continue;
    }
    const auto same = std::ranges::find(flat, part.schema, &SchemaPart::schema);
    if (same != flat.end()) {
      if (same->key() == part.key()) continue;
      // An alternative refers back to the schema that it is an alternative of. It allows nothing that the others do
      // not allow.
      return std::optional<SchemaParts>();
    }
    if (flat.size() >= kMaxParts) return SchemaError(part, "allOf", "too many schemas hold together");
    flat.push_back(part);
    if (std::exchange(flat.back().is_flat, true)) continue;
    PENSTOCK_RETURN_IF_ERROR(CheckKeywords(part, part.schema == &root_));
    if (part.Find("$ref") != nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(queue.emplace_back(), Resolve(part));
    }
    if (const std::string_view keyword = RewrittenKeyword(part); !keyword.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(queue.emplace_back(), Rewrite(part, keyword));
    }
    if (const json::value* all = part.Find("allOf"); all != nullptr) {
      for (size_t k = 0; k < all->get_array().size(); ++k) {
        queue.push_back(
            {.schema = &all->get_array()[k], .path = fmt::format("{}/allOf/{}", part.path, k), .is_derived = true});
      }
    }
  }
  return flat;
}

TypeSet SchemaReader::TypesOf(const SchemaParts& parts) {
  TypeSet types = kAllTypes;
  for (const SchemaPart& part : parts) {
    if (const json::value* type = part.Find("type"); type != nullptr) types &= TypesOfKeyword(*type);
  }
  return types;
}

std::optional<std::vector<const json::value*>> SchemaReader::ValuesOf(const SchemaParts& parts) {
  std::optional<std::vector<const json::value*>> values;
  const auto restrict_to = [&](const std::vector<const json::value*>& allowed) {
    if (!values.has_value()) {
      values = allowed;
      return;
    }
    std::erase_if(*values, [&](const json::value* value) {
      return std::ranges::none_of(allowed, [&](const json::value* other) { return IsSame(*value, *other); });
    });
  };
  for (const SchemaPart& part : parts) {
    if (const json::value* list = part.Find("enum"); list != nullptr) {
      std::vector<const json::value*> allowed;
      for (const json::value& value : list->get_array()) allowed.push_back(&value);
      restrict_to(allowed);
    }
    if (const json::value* value = part.Find("const"); value != nullptr) restrict_to({value});
  }
  return values;
}

absl::StatusOr<bool> SchemaReader::AreDisjoint(const SchemaPart& a, const SchemaPart& b, int depth) {
  constexpr int kMaxDepth = 4;
  if (depth > kMaxDepth) return false;
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<SchemaParts> flat_a, Flatten({a}));
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<SchemaParts> flat_b, Flatten({b}));
  if (!flat_a.has_value() || !flat_b.has_value()) return true;
  const auto types_of = [](const SchemaParts& parts) {
    const auto values = ValuesOf(parts);
    if (!values.has_value()) return TypesOf(parts);
    TypeSet types = 0;
    for (const json::value* value : *values) types |= TypeOf(*value);
    return static_cast<TypeSet>(types & TypesOf(parts));
  };
  const TypeSet both = types_of(*flat_a) & types_of(*flat_b);
  if (both == 0) return true;
  const auto values_a = ValuesOf(*flat_a), values_b = ValuesOf(*flat_b);
  if (values_a.has_value() && values_b.has_value()) {
    return std::ranges::none_of(*values_a, [&](const json::value* value) {
      return std::ranges::any_of(*values_b, [&](const json::value* other) { return IsSame(*value, *other); });
    });
  }
  if (both != kObject) return false;
  // Objects differ if both must have a member whose values differ.
  const auto requires_member = [](const SchemaParts& parts, const json::value& name) {
    return std::ranges::any_of(parts, [&](const SchemaPart& part) {
      const json::value* required = part.Find("required");
      return required != nullptr && std::ranges::find(required->get_array(), name) != required->get_array().end();
    });
  };
  for (const SchemaPart& part : *flat_a) {
    const json::value* properties = part.Find("properties");
    if (properties == nullptr) continue;
    for (const auto& [name, schema] : properties->get_object()) {
      if (!requires_member(*flat_a, json::value(name)) || !requires_member(*flat_b, json::value(name))) continue;
      for (const SchemaPart& other : *flat_b) {
        const json::value* others = other.Find("properties");
        const json::value* found = others == nullptr ? nullptr : others->get_object().if_contains(name);
        if (found == nullptr) continue;
        PENSTOCK_ASSIGN_OR_RETURN(const bool differ, AreDisjoint({.schema = &schema, .path = part.path},
                                                                 {.schema = found, .path = other.path}, depth + 1));
        if (differ) return true;
      }
    }
  }
  return false;
}

}  // namespace penstock::grammar
