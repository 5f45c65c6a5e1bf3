// What a model's chat templates make of a chat.
//
// A chat comes as clients of OpenAI write it; a template sees it as Hugging Face's transformers would pass it, but for
// arguments of called functions: their text becomes the object that it is (as vLLM does), unless a number of it would
// be rounded. A template that cannot take what it gets has what it can take: parts joined, "" for no content, arguments
// as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/chat/chat_template.h"

namespace penstock {

struct Chat {
  json::array messages;    // objects, each with a "role"; a list as "content" has text parts only
  json::value tools;       // a list, or null
  json::object variables;  // further ones of the template: documents, enable_thinking ...
};

class ChatPrompts {
 public:
  // `special_tokens`: bos_token and others by name. kInput when a template is invalid.
  static absl::StatusOr<ChatPrompts> Create(const ChatTemplateTexts& texts, json::object special_tokens);

  // The prompt, up to where the model's answer begins. kInput as ChatTemplate::Render.
  absl::StatusOr<std::vector<TextSegment>> Render(const Chat& chat) const;
  // ChatTemplate::Literals of all templates.
  std::string Literals() const;

 private:
  struct Variant {
    ChatTemplate chat_template;
    std::vector<std::string> part_roles;  // whose messages may have lists of parts
  };

  absl::StatusOr<std::optional<Variant>> MakeVariant(const std::optional<std::string>& source) const;
  absl::StatusOr<std::vector<TextSegment>> RenderWith(const ChatTemplate& chat_template, const Chat& chat,
                                                      json::array messages, const TemplateLimits& limits = {}) const;
  // Does the template write a list of parts in a message of this role as their texts?
  bool TakesParts(const ChatTemplate& chat_template, std::string_view role) const;

  json::object special_tokens_;
  std::optional<Variant> general_;
  std::optional<Variant> tool_use_;
};

}  // namespace penstock
