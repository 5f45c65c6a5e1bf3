#include "penstock/tokenizer/json_fields.h"

#include <utility>

namespace penstock {

const json::value* JsonFields::Find(std::string_view key) const {
  const json::value* value = object_->if_contains(json::string_view(key.data(), key.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

absl::StatusOr<const json::value*> JsonFields::Require(std::string_view key, std::string_view type) const {
  const json::value* value = Find(key);
  if (value == nullptr) return ModelError("{}: field '{}' ({}) is missing", where_, key, type);
  if (JsonTypeName(*value) != type) {
    return ModelError("{}: field '{}': expected {}, found {}", where_, key, type, JsonTypeName(*value));
  }
  return value;
}

absl::StatusOr<std::string> JsonFields::String(std::string_view key) const {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value* value, Require(key, "string"));
  return std::string(value->get_string().data(), value->get_string().size());
}

absl::StatusOr<bool> JsonFields::Bool(std::string_view key, bool if_absent) const {
  if (Find(key) == nullptr) return if_absent;
  PENSTOCK_ASSIGN_OR_RETURN(const json::value* value, Require(key, "boolean"));
  return value->get_bool();
}

absl::StatusOr<const json::array*> JsonFields::Array(std::string_view key) const {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value* value, Require(key, "array"));
  return &value->get_array();
}

absl::StatusOr<const json::object*> JsonFields::Object(std::string_view key) const {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value* value, Require(key, "object"));
  return &value->get_object();
}

absl::StatusOr<int64_t> JsonFields::Integer(std::string_view key) const {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value* value, Require(key, "integer"));
  if (!value->is_int64()) return ModelError("{}: field '{}' is beyond 64 bits", where_, key);
  return value->get_int64();
}

absl::StatusOr<Component> Component::From(const json::value& value, std::string_view where) {
  if (!value.is_object()) return ModelError("{}: expected object, found {}", where, JsonTypeName(value));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string type, JsonFields(value.get_object(), std::string(where)).String("type"));
  return Component(value.get_object(), fmt::format("{} {}", where, type), type);
}

absl::StatusOr<std::string> Component::LiteralPattern(std::string_view key) const {
  PENSTOCK_ASSIGN_OR_RETURN(const json::object* pattern, Object(key));
  const JsonFields fields(*pattern, fmt::format("{}: {}", where(), key));
  if (const json::value* regex = fields.Find("Regex"); regex != nullptr) {
    return ModelError("{}: the pattern {} is not implemented", where(), json::serialize(*regex));
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::string text, fields.String("String"));
  if (text.empty() || text.size() > kMaxComponentTextBytes) {
    return ModelError("{}: pattern of {} bytes, expected 1 to {}", where(), text.size(), kMaxComponentTextBytes);
  }
  return text;
}

absl::Status Component::NotImplemented() const {
  return ModelError("{}: this type is not implemented; the model cannot be tokenized", where());
}

}  // namespace penstock
