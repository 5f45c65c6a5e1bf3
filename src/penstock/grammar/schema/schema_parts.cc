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

constexpr std::pair<std::string_view, TypeSet> kTypeNames[] = {
    {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kNumber},
    {"string", kString}, {"array", kArray},     {"object", kObject}};

TypeSet TypesOfKeyword(const json::value& value) {
  if (!value.is_array()) return TypeNamed(value);
  TypeSet types = 0;
  for (const json::value& name : value.get_array()) types |= TypeNamed(name);
  return types;
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

std::span<const std::pair<std::string_view, TypeSet>> TypeNames() { return kTypeNames; }

TypeSet TypeNamed(const json::value& name) {
  for (const auto& [type, set] : kTypeNames) {
    if (name.is_string() && View(name.get_string()) == type) return set;
  }
  return 0;
}

const json::array* PrefixItemsOf(const SchemaPart& part) {
  if (const json::value* prefix = part.Find("prefixItems"); prefix != nullptr) return prefix->if_array();
  const json::value* items = part.Find("items");
  return items == nullptr ? nullptr : items->if_array();
}

const json::value* OtherItemsOf(const SchemaPart& part) {
  const json::value* items = part.Find("items");
  return items != nullptr && items->is_array() ? part.Find("additionalItems") : items;
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
  std::string ref(View(from.Find("$ref")->get_string()));
  // LiteLLM drops the "#" for Anthropic's API. No schema here has an address to which "/" could be relative.
  if (ref.starts_with("/$defs/") || ref.starts_with("/definitions/")) ref = "#" + ref;
  const auto refuse = [&](std::string_view why) { return SchemaError(from, "$ref", why); };
  if (!ref.starts_with("#") || (ref.size() > 1 && ref[1] != '/')) {
    return refuse("only references within the schema, as #/$defs/name, are supported");
  }
  const json::value* at = &root_;
  std::string_view rest = std::string_view(ref).substr(1);
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
  return SchemaPart{.schema = at, .path = std::move(ref), .is_derived = true};
}

absl::StatusOr<SchemaPart> SchemaReader::Keep(MadeSchemas& made, const SchemaPart& part, std::string_view keyword,
                                              absl::StatusOr<json::value> schema) {
  constexpr uint64_t kMaxBytes = 256 << 10;  // of all
  PENSTOCK_RETURN_IF_ERROR(schema.status());
  num_rewritten_bytes_ += json::serialize(*schema).size();
  if (num_rewritten_bytes_ > kMaxBytes) return SchemaError(part, keyword, "the schemas beside it are too long");
  std::unique_ptr<const json::value>& kept = made[part.schema];
  kept = std::make_unique<const json::value>(*std::move(schema));
  return SchemaPart{.schema = kept.get(), .path = Below(part.path, keyword), .is_derived = true};
}

absl::StatusOr<SchemaPart> SchemaReader::Rewrite(const SchemaPart& part, std::string_view keyword) {
  const auto known = rewritten_.find(part.schema);
  if (known == rewritten_.end()) return Keep(rewritten_, part, keyword, Rewritten(part, *this));
  return SchemaPart{.schema = known->second.get(), .path = Below(part.path, keyword), .is_derived = true};
}

absl::StatusOr<SchemaPart> SchemaReader::OppositeOf(const SchemaPart& part) {
  const auto known = opposites_.find(part.schema);
  if (known == opposites_.end()) return Keep(opposites_, part, "not", OppositeSchema(part, *this));
  return SchemaPart{.schema = known->second.get(), .path = Below(part.path, "not"), .is_derived = true};
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
