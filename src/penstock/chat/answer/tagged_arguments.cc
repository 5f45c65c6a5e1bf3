#include "penstock/chat/answer/tagged_arguments.h"

#include <algorithm>

#include <xxhash.h>

#include "penstock/base/text.h"
#include "penstock/chat/answer/answer_format.h"

namespace penstock {
namespace {

constexpr int kMaxSchemaDepth = 8;
constexpr std::string_view kTypeNames[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
constexpr JsonTypes kUnknownType = 1U << 31;

JsonTypes BitOf(std::string_view type) {
  const auto found = std::ranges::find(kTypeNames, type);
  return found == std::end(kTypeNames) ? 0 : 1U << (found - std::begin(kTypeNames));
}

JsonTypes BitsOf(const json::value& type) {
  if (type.is_string()) return BitOf(View(type.get_string()));
  JsonTypes bits = 0;
  if (!type.is_array()) return bits;
  for (const json::value& one : type.get_array()) bits |= one.is_string() ? BitOf(View(one.get_string())) : 0;
  return bits;
}

// Returns the definition to which a reference such as "#/$defs/name" refers, or nullptr.
const json::value* DefinitionOf(std::string_view reference, const json::object& root) {
  for (const std::string_view list : {"$defs", "definitions"}) {
    const std::string prefix = fmt::format("#/{}/", list);
    const json::value* definitions = root.if_contains(list);
    if (!reference.starts_with(prefix) || definitions == nullptr || !definitions->is_object()) continue;
    return definitions->get_object().if_contains(reference.substr(prefix.size()));
  }
  return nullptr;
}

// The same as TypesOf(), with kUnknownType where a part of the schema does not tell.
JsonTypes TypesBelow(const json::value& schema, const json::object& root, int depth) {
  if (!schema.is_object() || depth > kMaxSchemaDepth) return kUnknownType;
  const json::object& object = schema.get_object();
  if (const json::value* type = object.if_contains("type"); type != nullptr && BitsOf(*type) != 0) {
    return BitsOf(*type);
  }
  JsonTypes bits = 0;
  for (const char* name : {"anyOf", "oneOf", "allOf"}) {
    const json::value* list = object.if_contains(name);
    if (list == nullptr || !list->is_array()) continue;
    for (const json::value& one : list->get_array()) bits |= TypesBelow(one, root, depth + 1);
  }
  if (const std::string_view reference = StringOf(object, "$ref"); !reference.empty()) {
    const json::value* definition = DefinitionOf(reference, root);
    bits |= definition == nullptr ? kUnknownType : TypesBelow(*definition, root, depth + 1);
  }
  if (const json::value* constant = object.if_contains("const")) bits |= BitOf(JsonTypeName(*constant));
  const json::value* choices = object.if_contains("enum");
  if (bits == 0 && choices != nullptr && choices->is_array()) {
    for (const json::value& choice : choices->get_array()) bits |= BitOf(JsonTypeName(choice));
  }
  return bits == 0 ? kUnknownType : bits;
}

uint64_t HashOf(std::string_view tool, std::string_view parameter) {
  return XXH3_64bits_withSeed(parameter.data(), parameter.size(), XXH3_64bits(tool.data(), tool.size()));
}

std::string JsonOf(const ToolTypes& types, std::string_view tool, const TaggedArgument& argument) {
  const std::string& text = argument.text;
  std::string_view bare = WithoutTrailingSpace(WithoutLeadingSpace(text));
  if (types.IsBoolean(tool, argument.key)) {  // some models write Python's literals
    if (bare == "True") bare = "true";
    if (bare == "False") bare = "false";
  }
  if (argument.kind != TaggedArgument::Kind::kText) {
    const absl::StatusOr<json::value> value = ParseJson(bare, Fault::kInput);
    const bool is_json = argument.kind == TaggedArgument::Kind::kJson;
    if (value.ok() && (is_json || types.Allows(tool, argument.key, *value))) return std::string(bare);
  }
  return std::string(json::serialize(json::value(json::string_view(text.data(), text.size()))));
}

}  // namespace

JsonTypes TypesOf(const json::value& schema, const json::object& root) {
  const JsonTypes bits = TypesBelow(schema, root, 0);
  return (bits & kUnknownType) != 0 ? 0 : bits;
}

ToolTypes::ToolTypes(const json::value& tools) {
  if (!tools.is_array()) return;
  for (const json::value& tool : tools.get_array()) {
    const json::object* function = FunctionOf(tool);
    if (function != nullptr) tools_.push_back(HashOf(StringOf(*function, "name"), ""));
    const json::value* parameters = function == nullptr ? nullptr : function->if_contains("parameters");
    if (parameters == nullptr || !parameters->is_object()) continue;
    const json::value* properties = parameters->get_object().if_contains("properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->get_object()) {
      const JsonTypes bits = TypesOf(schema, parameters->get_object());
      if (bits != 0) types_.emplace_back(HashOf(StringOf(*function, "name"), {key.data(), key.size()}), bits);
    }
  }
  std::ranges::sort(types_);
  types_.shrink_to_fit();
}

JsonTypes ToolTypes::Find(std::string_view tool, std::string_view parameter) const {
  const uint64_t hash = HashOf(tool, parameter);
  const auto found = std::ranges::lower_bound(types_, hash, {}, [](const auto& entry) { return entry.first; });
  return found == types_.end() || found->first != hash ? 0 : found->second;
}

bool ToolTypes::IsBoolean(std::string_view tool, std::string_view parameter) const {
  return Find(tool, parameter) == kBooleanType;
}

bool ToolTypes::HasTool(std::string_view name) const {
  return std::ranges::find(tools_, HashOf(name, "")) != tools_.end();
}

bool ToolTypes::Allows(std::string_view tool, std::string_view parameter, const json::value& value) const {
  if (value.is_string()) return false;
  const JsonTypes bits = Find(tool, parameter);
  JsonTypes own = BitOf(JsonTypeName(value));
  if (own == kIntegerType) own |= kNumberType;
  return bits == 0 || (bits & own) != 0;
}

std::string JsonOfTags(const ToolTypes& types, std::string_view tool, const std::vector<TaggedArgument>& arguments) {
  std::string out = "{";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& key = arguments[i].key;
    const auto is_same = [&key](const TaggedArgument& later) { return later.key == key; };
    if (std::any_of(arguments.begin() + static_cast<int64_t>(i) + 1, arguments.end(), is_same)) continue;
    if (out.size() > 1) out += ", ";
    out += std::string(json::serialize(json::value(key))) + ": " + JsonOf(types, tool, arguments[i]);
  }
  return out + "}";
}

TagMarks TagsOf(const AnswerFormat& format) {
  switch (format.form) {
    case CallForm::kPairs: {
      const std::string line_end = format.breaks_lines ? "\n" : "", value = format.Tag("<arg_value>");
      return {format.Tag("<arg_key>"),
              format.Tag("</arg_key>") + line_end,
              value,
              value,
              format.Tag("</arg_value>"),
              line_end};
    }
    case CallForm::kFunction: return {"<parameter=", ">", "\n", "\n", "</parameter>", "\n"};
    case CallForm::kDsml:
      return {"<｜DSML｜parameter name=\"", "\"", " string=\"true\">", " string=\"false\">",
              "</｜DSML｜parameter>",       "\n"};
    default: return {"<parameter name=\"", "\">", "", "", "</parameter>", "\n"};
  }
}

std::string JsonPattern(JsonTypes types) {
  std::string pattern = "(?:null";
  if ((types & kBooleanType) != 0) pattern += "|true|false";
  if ((types & (kIntegerType | kNumberType)) != 0) pattern += "|-?[0-9][0-9.eE+-]*";
  if ((types & kArrayType) != 0) pattern += R"(|\[[\s\S]*)";
  if ((types & kObjectType) != 0) pattern += R"(|\{[\s\S]*)";
  return R"([\s]*)" + pattern + R"()[\s]*)";
}

}  // namespace penstock
