#include "penstock/job/input/format_fields.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using Kind = OutputFormat::Kind;

std::string Serialized(const json::value& value) { return std::string(json::serialize(value)); }

// Returns a grammar whose texts are the choices.
std::string GrammarOfChoices(const json::array& choices) {
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) grammar += " | ";
    grammar += '"';
    for (const char c : View(choices[i].get_string())) {
      if (static_cast<uint8_t>(c) < 0x20) {
        grammar += fmt::format("\\x{:02x}", static_cast<int>(c));
      } else {
        if (c == '"' || c == '\\') grammar += '\\';
        grammar += c;
      }
    }
    grammar += '"';
  }
  return grammar;
}

class FormatReader {
 public:
  explicit FormatReader(FieldReader& fields) : fields_(fields) {}

  std::optional<RequestFormat> Run() {
    if (const json::value* value = fields_.Find("response_format"); value != nullptr) ReadResponseFormat(*value);
    if (const json::value* value = fields_.Find("structured_outputs"); value != nullptr) ReadStructuredOutputs(*value);
    constexpr std::pair<std::string_view, std::string_view> kGuided[] = {
        {"guided_json", "json"},       {"guided_regex", "regex"}, {"guided_choice", "choice"},
        {"guided_grammar", "grammar"}, {"grammar", "grammar"},    {"json_schema", "json"}};
    for (const auto& [field, form] : kGuided) {
      const json::value* value = fields_.Find(field);
      if (value != nullptr && *value != json::value("")) ReadForm(field, form, *value);
    }
    return std::move(format_);
  }

 private:
  void Refuse(std::string_view field, std::string message) {
    fields_.Fail("invalid_request", field, std::move(message));
  }

  void Set(std::string_view field, Kind kind, std::string text) {
    if (format_.has_value()) {
      return Refuse(field, fmt::format("{} gives an output format, too; leave one of the two out", format_->field));
    }
    format_ = {{kind, std::move(text)}, std::string(field)};
  }

  // Reads a format in one of the forms that vLLM names.
  void ReadForm(std::string_view field, std::string_view form, const json::value& value) {
    if (form == "json_object") {
      if (!value.is_bool()) return Refuse(field, "json_object: expected true or false");
      if (value.get_bool()) Set(field, Kind::kJson, "");
    } else if (form == "json") {
      if (value.is_string()) return Set(field, Kind::kJsonSchema, std::string(View(value.get_string())));
      if (!value.is_object() && !value.is_bool()) {
        return Refuse(field, fmt::format("expected a JSON schema, found {}", JsonTypeName(value)));
      }
      Set(field, Kind::kJsonSchema, Serialized(value));
    } else if (form == "choice") {
      const json::array* choices = value.if_array();
      const auto is_text = [](const json::value& choice) { return choice.is_string(); };
      if (choices == nullptr || choices->empty() || !std::ranges::all_of(*choices, is_text)) {
        return Refuse(field, "expected a list of texts, and at least one");
      }
      Set(field, Kind::kGrammar, GrammarOfChoices(*choices));
    } else if (form == "regex" || form == "grammar") {
      if (!value.is_string()) return Refuse(field, fmt::format("expected a string, found {}", JsonTypeName(value)));
      Set(field, form == "regex" ? Kind::kRegex : Kind::kGrammar, std::string(View(value.get_string())));
    } else {
      fields_.Fail("unsupported", field,
                   fmt::format("expected one of json, json_object, regex, choice, grammar, found {}", form));
    }
  }

  void ReadStructuredOutputs(const json::value& value) {
    constexpr std::string_view kField = "structured_outputs";
    if (!value.is_object()) {
      return Refuse(kField, fmt::format("expected an object, found {}", JsonTypeName(value)));
    }
    for (const auto& [key, form] : value.get_object()) {
      if (form.is_null()) continue;  // vLLM's clients send nulls for absent fields
      ReadForm(kField, {key.data(), key.size()}, form);
    }
  }

  void ReadResponseFormat(const json::value& value) {
    constexpr std::string_view kField = "response_format";
    const json::object* object = value.if_object();
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    const std::string_view name = type != nullptr && type->is_string() ? View(type->get_string()) : "";
    if (object == nullptr) {
      return Refuse(kField, fmt::format("expected an object such as {{\"type\": \"json_object\"}}, found {}",
                                        JsonTypeName(value)));
    }
    if (name == "text") return;
    if (name == "json_object") return Set(kField, Kind::kJson, "");
    if (name != "json_schema") {
      return fields_.Fail("unsupported", kField,
                          fmt::format("expected the type \"text\", \"json_object\" or \"json_schema\", found {}",
                                      type == nullptr ? "none" : JsonForPeople(*type)));
    }
    const json::value* outer = object->if_contains("json_schema");
    const json::value* schema =
        outer == nullptr || !outer->is_object() ? nullptr : outer->get_object().if_contains("schema");
    if (schema == nullptr) return Refuse(kField, "expected a schema in json_schema.schema");
    ReadForm(kField, "json", *schema);
  }

  FieldReader& fields_;
  std::optional<RequestFormat> format_;
};

}  // namespace

std::optional<RequestFormat> ReadFormatFields(FieldReader& fields) { return FormatReader(fields).Run(); }

}  // namespace penstock
