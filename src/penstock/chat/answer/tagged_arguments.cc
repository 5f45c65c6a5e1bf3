#include "penstock/chat/answer/tagged_arguments.h"

#include <algorithm>

#include "penstock/base/text.h"
#include "penstock/chat/answer/answer_format.h"

namespace penstock {
namespace {

constexpr int kMaxSchemaDepth = 8;

// Returns the schema of a parameter, or nullptr.
const json::value* SchemaOf(const json::value& tools, std::string_view tool_name, std::string_view key) {
  if (!tools.is_array()) return nullptr;
  for (const json::value& tool : tools.get_array()) {
    const json::object* function = FunctionOf(tool);
    if (function == nullptr || StringOf(*function, "name") != tool_name) continue;
    const json::value* parameters = function->if_contains("parameters");
    if (parameters == nullptr || !parameters->is_object()) return nullptr;
    const json::value* properties = parameters->get_object().if_contains("properties");
    return properties == nullptr || !properties->is_object() ? nullptr : properties->get_object().if_contains(key);
  }
  return nullptr;
}

// Adds the names of the types that a schema allows.
void AddTypes(const json::value& schema, int depth, std::vector<std::string_view>& types) {
  if (!schema.is_object() || depth > kMaxSchemaDepth) return;
  const json::object& object = schema.get_object();
  if (const json::value* type = object.if_contains("type"); type != nullptr) {
    if (type->is_string()) types.push_back(View(type->get_string()));
    if (type->is_array()) {
      for (const json::value& one : type->get_array()) {
        if (one.is_string()) types.push_back(View(one.get_string()));
      }
    }
  }
  for (const char* name : {"anyOf", "oneOf", "allOf"}) {
    const json::value* list = object.if_contains(name);
    if (list == nullptr || !list->is_array()) continue;
    for (const json::value& one : list->get_array()) AddTypes(one, depth + 1, types);
  }
  const json::value* choices = object.if_contains("enum");
  if (!types.empty() || choices == nullptr || !choices->is_array()) return;
  for (const json::value& choice : choices->get_array()) types.push_back(JsonTypeName(choice));
}

bool Allows(const std::vector<std::string_view>& types, const json::value& value) {
  const std::string_view type = JsonTypeName(value);
  return std::ranges::any_of(
      types, [&](std::string_view allowed) { return allowed == type || (allowed == "number" && value.is_number()); });
}

std::string JsonOf(const json::value* schema, std::string_view text) {
  std::vector<std::string_view> types;
  if (schema != nullptr) AddTypes(*schema, 0, types);
  std::string_view bare = WithoutTrailingSpace(WithoutLeadingSpace(text));
  if (types.size() == 1 && types[0] == "boolean") {  // some models write Python's literals
    if (bare == "True") bare = "true";
    if (bare == "False") bare = "false";
  }
  const absl::StatusOr<json::value> value = ParseJson(bare, Fault::kInput);
  const bool stays = value.ok() && !value->is_string() && (types.empty() || Allows(types, *value));
  if (stays) return std::string(bare);
  return std::string(json::serialize(json::value(json::string_view(text.data(), text.size()))));
}

}  // namespace

std::string JsonOfTags(const json::value& tools, std::string_view tool_name,
                       const std::vector<std::pair<std::string, std::string>>& arguments) {
  std::string out = "{";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& [key, text] = arguments[i];
    const auto is_same = [&key = key](const auto& later) { return later.first == key; };
    if (std::any_of(arguments.begin() + static_cast<int64_t>(i) + 1, arguments.end(), is_same)) continue;
    if (out.size() > 1) out += ", ";
    out += std::string(json::serialize(json::value(key))) + ": " + JsonOf(SchemaOf(tools, tool_name, key), text);
  }
  return out + "}";
}

}  // namespace penstock
