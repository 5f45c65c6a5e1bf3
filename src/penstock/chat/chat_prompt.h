// Renders a chat into a prompt with the model's chat templates.
//
// A chat arrives as OpenAI's clients write it. A template sees it as Hugging Face's transformers would pass it, with
// one exception: the arguments of called functions become objects instead of text, as in vLLM, unless that would round
// a number. If a template fails on this, simpler forms are tried: parts joined, "" for no content, arguments as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/chat/chat_parts.h"
#include "penstock/chat/chat_template.h"

namespace penstock {

class ChatPrompts {
 public:
  // `special_tokens` holds bos_token and others by name. Returns kInput if a template is invalid.
  static absl::StatusOr<ChatPrompts> Create(const ChatTemplateTexts& texts, json::object special_tokens);

  // Returns the prompt up to where the model's answer begins, or kInput as ChatTemplate::Render does. A chat that
  // continues its last message ends with the text of that message; kInput if the template does not write it.
  absl::StatusOr<std::vector<TextSegment>> Render(const ChatParts& chat) const;
  // Returns ChatTemplate::Literals of all templates, joined.
  std::string Literals() const;

 private:
  struct Variant {
    ChatTemplate chat_template;
    std::vector<std::string> part_roles;  // roles whose messages may have lists of parts
    bool writes_tools = true;
  };

  absl::StatusOr<std::vector<TextSegment>> RenderWhole(const ChatParts& chat) const;
  absl::StatusOr<std::optional<Variant>> MakeVariant(const std::optional<std::string>& source) const;
  absl::StatusOr<std::vector<TextSegment>> RenderWith(const ChatTemplate& chat_template, const ChatParts& chat,
                                                      json::array messages, const TemplateLimits& limits = {}) const;
  // Returns whether the template writes the tools of a chat.
  bool WritesTools(const ChatTemplate& chat_template) const;
  // Returns whether the template writes a list of parts, in a message of this role, as the texts of the parts.
  bool TakesParts(const ChatTemplate& chat_template, std::string_view role) const;

  json::object special_tokens_;
  std::optional<Variant> general_;
  std::optional<Variant> tool_use_;
};

}  // namespace penstock
