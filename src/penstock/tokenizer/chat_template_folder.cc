// Where a model folder keeps its chat template.
#include "penstock/base/json.h"
#include "penstock/tokenizer/chat_template.h"

namespace penstock {
namespace {

constexpr std::string_view kTemplateFile = "chat_template.jinja";
constexpr std::string_view kConfigFile = "tokenizer_config.json";

std::string_view View(const json::string& text) { return {text.data(), text.size()}; }

// The entry named `default` of a list of {"name": ..., "template": ...}.
absl::StatusOr<std::string> DefaultOf(const json::array& templates) {
  for (const json::value& entry : templates) {
    const json::object* object = entry.if_object();
    const json::value* name = object == nullptr ? nullptr : object->if_contains("name");
    const json::value* text = object == nullptr ? nullptr : object->if_contains("template");
    if (name == nullptr || text == nullptr || !name->is_string() || !text->is_string()) {
      return ModelError("{}: chat_template: expected a list of objects with the strings 'name' and 'template'",
                        kConfigFile);
    }
    if (View(name->get_string()) == "default") return std::string(View(text->get_string()));
  }
  return InputError("the model folder has no chat template named 'default' among the {} of {}; use completion requests",
                    templates.size(), kConfigFile);
}

}  // namespace

absl::StatusOr<std::string> FindChatTemplate(const Gguf& gguf) {
  PENSTOCK_ASSIGN_OR_RETURN(std::optional<std::string> text, gguf.metadata.String("tokenizer.chat_template"));
  if (!text.has_value()) {
    return InputError("the model '{}' has no chat template; use completion requests", gguf.files[0].path);
  }
  if (text->size() > kMaxTemplateBytes) {
    return ModelError("{}: key 'tokenizer.chat_template' has {} bytes, the limit is {}", gguf.files[0].path,
                      text->size(), kMaxTemplateBytes);
  }
  return *std::move(text);
}

absl::StatusOr<std::string> FindChatTemplate(const ModelFolder& folder) {
  if (folder.Has(kTemplateFile)) return folder.Read(kTemplateFile, kMaxTemplateBytes);
  if (folder.Has(kConfigFile)) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string text, folder.Read(kConfigFile, kMaxConfigBytes));
    absl::StatusOr<json::value> config = ParseJson(text, Fault::kModel);
    if (!config.ok()) return Annotate(config.status(), kConfigFile);
    if (!config->is_object()) {
      return ModelError("{}: expected an object, found {}", kConfigFile, JsonTypeName(*config));
    }
    const json::value* found = config->get_object().if_contains("chat_template");
    if (found != nullptr && found->is_string()) return std::string(View(found->get_string()));
    if (found != nullptr && found->is_array()) return DefaultOf(found->get_array());
    if (found != nullptr && !found->is_null()) {
      return ModelError("{}: chat_template: expected a string or a list, found {}", kConfigFile, JsonTypeName(*found));
    }
  }
  return InputError("the model folder '{}' has no chat template; use completion requests", folder.path());
}

}  // namespace penstock
