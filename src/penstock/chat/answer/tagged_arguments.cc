#include "penstock/chat/answer/tagged_arguments.h"

#include <algorithm>

#include <xxhash.h>

#include "penstock/base/text.h"
#include "penstock/chat/answer/answer_format.h"

namespace penstock {
namespace {

constexpr int kMaxSchemaDepth = 8;
constexpr std::string_view kTypeNames[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
constexpr uint32_t kBoolean = 1 << 1;
constexpr uint32_t kInteger = 1 << 2;
constexpr uint32_t kNumber = 1 << 3;

uint32_t BitOf(std::string_view type) {
  const auto found = std::ranges::find(kTypeNames, type);
  return found == std::end(kTypeNames) ? 0 : 1U << (found - std::begin(kTypeNames));
}

uint32_t BitsOf(const json::value& type) {
  if (type.is_string()) return BitOf(View(type.get_string()));
  uint32_t bits = 0;
  if (!type.is_array()) return bits;
  for (const json::value& one : type.get_array()) bits |= one.is_string() ? BitOf(View(one.get_string())) : 0;
  return bits;
}

// Returns the bits of the types that a schema allows.
uint32_t TypesOf(const json::value& schema, int depth) {
  if (!schema.is_object() || depth > kMaxSchemaDepth) return 0;
  const json::object& object = schema.get_object();
  const json::value* type = object.if_contains("type");
  uint32_t bits = type == nullptr ? 0 : BitsOf(*type);
  for (const char* name : {"anyOf", "oneOf", "allOf"}) {
    const json::value* list = object.if_contains(name);
    if (list == nullptr || !list->is_array()) continue;
    for (const json::value& one : list->get_array()) bits |= TypesOf(one, depth + 1);
  }
  const json::value* choices = object.if_contains("enum");
  if (bits != 0 || choices == nullptr || !choices->is_array()) return bits;
  for (const json::value& choice : choices->get_array()) bits |= BitOf(JsonTypeName(choice));
  return bits;
}

uint64_t HashOf(std::string_view tool, std::string_view parameter) {
  return XXH3_64bits_withSeed(parameter.data(), parameter.size(), XXH3_64bits(tool.data(), tool.size()));
}

std::string JsonOf(const ToolTypes& types, std::string_view tool, std::string_view parameter, std::string_view text) {
  std::string_view bare = WithoutTrailingSpace(WithoutLeadingSpace(text));
  if (types.IsBoolean(tool, parameter)) {  // some models write Python's literals
    if (bare == "True") bare = "true";
    if (bare == "False") bare = "false";
  }
  const absl::StatusOr<json::value> value = ParseJson(bare, Fault::kInput);
  if (value.ok() && types.Allows(tool, parameter, *value)) return std::string(bare);
  return std::string(json::serialize(json::value(json::string_view(text.data(), text.size()))));
}

}  // namespace

ToolTypes::ToolTypes(const json::value& tools) {
  if (!tools.is_array()) return;
  for (const json::value& tool : tools.get_array()) {
    const json::object* function = FunctionOf(tool);
    const json::value* parameters = function == nullptr ? nullptr : function->if_contains("parameters");
    if (parameters == nullptr || !parameters->is_object()) continue;
    const json::value* properties = parameters->get_object().if_contains("properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->get_object()) {
      const uint32_t bits = TypesOf(schema, 0);
      if (bits != 0) types_.emplace_back(HashOf(StringOf(*function, "name"), {key.data(), key.size()}), bits);
    }
  }
  std::ranges::sort(types_);
  types_.shrink_to_fit();
}

uint32_t ToolTypes::Find(std::string_view tool, std::string_view parameter) const {
  const uint64_t hash = HashOf(tool, parameter);
  const auto found = std::ranges::lower_bound(types_, hash, {}, [](const auto& entry) { return entry.first; });
  return found == types_.end() || found->first != hash ? 0 : found->second;
}

bool ToolTypes::IsBoolean(std::string_view tool, std::string_view parameter) const {
  return Find(tool, parameter) == kBoolean;
}

bool ToolTypes::Allows(std::string_view tool, std::string_view parameter, const json::value& value) const {
  if (value.is_string()) return false;
  const uint32_t bits = Find(tool, parameter);
  uint32_t own = BitOf(JsonTypeName(value));
  if (own == kInteger) own |= kNumber;
  return bits == 0 || (bits & own) != 0;
}

std::string JsonOfTags(const ToolTypes& types, std::string_view tool,
                       const std::vector<std::pair<std::string, std::string>>& arguments) {
  std::string out = "{";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& [key, text] = arguments[i];
    const auto is_same = [&key = key](const auto& later) { return later.first == key; };
    if (std::any_of(arguments.begin() + static_cast<int64_t>(i) + 1, arguments.end(), is_same)) continue;
    if (out.size() > 1) out += ", ";
    out += std::string(json::serialize(json::value(key))) + ": " + JsonOf(types, tool, key, text);
  }
  return out + "}";
}

}  // namespace penstock
