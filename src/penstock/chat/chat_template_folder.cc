// Finds the chat templates in a model folder.
#include "penstock/base/json.h"
#include "penstock/chat/chat_template.h"

namespace penstock {
namespace {

constexpr std::string_view kTemplateFile = "chat_template.jinja";
constexpr std::string_view kDefaultFile = "default.jinja";  // kTemplateFolder has two files that are used
constexpr std::string_view kToolUseFile = "tool_use.jinja";
constexpr std::string_view kConfigFile = "tokenizer_config.json";
constexpr std::string_view kOlderFile = "chat_template.json";
constexpr std::string_view kGgufKey = "tokenizer.chat_template";

absl::Status ReadNamed(const json::array& templates, std::string_view file, ChatTemplateTexts& texts) {
  for (const json::value& entry : templates) {
    const json::object* object = entry.if_object();
    const json::value* name = object == nullptr ? nullptr : object->if_contains("name");
    const json::value* text = object == nullptr ? nullptr : object->if_contains("template");
    if (name == nullptr || text == nullptr || !name->is_string() || !text->is_string()) {
      return ModelError("{}: chat_template: expected a list of objects with the strings 'name' and 'template'", file);
    }
    if (View(name->get_string()) == "default" && !texts.general) texts.general = View(text->get_string());
    if (View(name->get_string()) == "tool_use" && !texts.tool_use) texts.tool_use = View(text->get_string());
  }
  if (texts.general.has_value() || texts.tool_use.has_value()) return absl::OkStatus();
  return InputError("the model folder has no chat template named 'default' among the {} of {}; use completion requests",
                    templates.size(), file);
}

// Adds the templates in the field `chat_template` of a JSON file.
absl::Status ReadField(const ModelFolder& folder, std::string_view file, ChatTemplateTexts& texts) {
  if (!folder.Has(file)) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, folder.Read(file, kMaxConfigBytes));
  absl::StatusOr<json::value> config = ParseJson(text, Fault::kModel);
  if (!config.ok()) return Annotate(config.status(), file);
  if (!config->is_object()) return ModelError("{}: expected an object, found {}", file, JsonTypeName(*config));
  const json::value* found = config->get_object().if_contains("chat_template");
  if (found == nullptr || found->is_null()) return absl::OkStatus();
  if (found->is_array()) return ReadNamed(found->get_array(), file, texts);
  if (!found->is_string()) {
    return ModelError("{}: chat_template: expected a string or a list, found {}", file, JsonTypeName(*found));
  }
  if (!texts.general) texts.general = View(found->get_string());
  return absl::OkStatus();
}

absl::Status ReadGgufTemplate(const Gguf& gguf, const std::string& key, std::optional<std::string>& out) {
  PENSTOCK_ASSIGN_OR_RETURN(out, gguf.metadata.String(key));
  if (out.has_value() && out->size() > kMaxTemplateBytes) {
    return ModelError("{}: key '{}' has {} bytes, the limit is {}", gguf.files[0].path, key, out->size(),
                      kMaxTemplateBytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatTemplateTexts> FindChatTemplates(const Gguf& gguf) {
  ChatTemplateTexts texts;
  PENSTOCK_RETURN_IF_ERROR(ReadGgufTemplate(gguf, std::string(kGgufKey), texts.general));
  PENSTOCK_RETURN_IF_ERROR(ReadGgufTemplate(gguf, fmt::format("{}.tool_use", kGgufKey), texts.tool_use));
  if (!texts.general && !texts.tool_use) {
    return InputError("the model '{}' has no chat template; use completion requests", gguf.files[0].path);
  }
  return texts;
}

absl::StatusOr<std::vector<std::string>> TemplateFolderFiles(const ModelFolder& folder) {
  std::vector<std::string> names;
  if (!folder.Has(kTemplateFolder)) return names;
  PENSTOCK_ASSIGN_OR_RETURN(const ModelFolder templates, folder.OpenFolder(kTemplateFolder));
  for (const std::string_view name : {kDefaultFile, kToolUseFile}) {
    if (templates.Has(name)) names.emplace_back(name);
  }
  return names;
}

absl::StatusOr<ChatTemplateTexts> FindChatTemplates(const ModelFolder& folder) {
  ChatTemplateTexts texts;
  if (folder.Has(kTemplateFolder)) {
    PENSTOCK_ASSIGN_OR_RETURN(const ModelFolder templates, folder.OpenFolder(kTemplateFolder));
    if (templates.Has(kDefaultFile)) {
      PENSTOCK_ASSIGN_OR_RETURN(texts.general, templates.Read(kDefaultFile, kMaxTemplateBytes));
    }
    if (templates.Has(kToolUseFile)) {
      PENSTOCK_ASSIGN_OR_RETURN(texts.tool_use, templates.Read(kToolUseFile, kMaxTemplateBytes));
    }
  }
  if (!texts.general && folder.Has(kTemplateFile)) {
    PENSTOCK_ASSIGN_OR_RETURN(texts.general, folder.Read(kTemplateFile, kMaxTemplateBytes));
  }
  if (!texts.general) PENSTOCK_RETURN_IF_ERROR(ReadField(folder, kConfigFile, texts));
  if (!texts.general || !texts.tool_use) PENSTOCK_RETURN_IF_ERROR(ReadField(folder, kOlderFile, texts));
  if (texts.general || texts.tool_use) return texts;
  return InputError("the model folder '{}' has no chat template ({}, or in {}); use completion requests", folder.path(),
                    kTemplateFile, kConfigFile);
}

}  // namespace penstock
