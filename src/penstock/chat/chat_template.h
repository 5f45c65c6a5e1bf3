// Chat templates: a bounded interpreter for the Jinja dialect of Hugging Face's chat templates.
//
// A template is data from the model folder. It sees its arguments and nothing else, and runs within limits on steps,
// depth and output size. Every piece of output knows its origin. Text of the template (and bos_token / eos_token) may
// become special tokens. Strings that come from messages may not, whatever filters they went through. If a filter mixes
// both in one character or number, the result counts as a message's.
//
// One exception: the `role` of an element of `messages` is template text if it is exactly system, user, assistant, tool
// or developer. That closed set can do no harm, and templates such as Phi-3's build special tokens around it ("<|" +
// role + "|>"). Any other role stays message text, and so do names, keys, tool definitions and documents.
//
// The dialect is that of transformers' apply_chat_template: Jinja in an immutable sandbox with trim_blocks,
// lstrip_blocks, loop controls, generation blocks, tojson, raise_exception and strftime_now. A template that uses one
// of these gets an error that says so: include, import, extends, autoescape, and the filters urlencode, urlize,
// striptags, pprint, xmlattr, filesizeformat, wordwrap, random.
//
// Differences from Jinja in Python:
// - Values that Python prints with an address in memory (functions, generators) cannot be printed.
// - Unlike in Python, a generator (a result of map or select) has a length, slices and a form in JSON.
// - The items of a generator are computed at once, but an error shows only when its item is read.
// - Integers have 64 bits. An overflow is an error, but "1e20|int" is 0.
// - A name is looked up when it is used, so a later assignment in an outer scope is visible.
// - upper, lower and the is...() methods know only Unicode's simple case mappings and categories.
//
// strftime_now() never reads the clock: a job has the date of its start, also when it is resumed. It formats the
// trusted variable `current_time` ("YYYY-MM-DD" or "YYYY-MM-DDTHH:MM:SS"), or 2024-07-26 00:00:00 if there is none.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

struct TemplateLimits {
  int64_t max_steps = kMaxTemplateSteps;
  int64_t max_output_bytes = kMaxTemplateOutputBytes;
  int max_depth = kMaxTemplateDepth;
};

class ChatTemplate {
 public:
  // Parses `source`. A syntax error gives kModel with the template's line.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Returns everything that the template can write by itself: its text and its string constants, each followed by a NUL
  // byte.
  const std::string& Literals() const;

  // Renders with two sets of global variables: `trusted` (bos_token, eos_token, add_generation_prompt ...), whose
  // strings have Origin::kTemplate, and `untrusted` (messages, tools ...), whose strings have Origin::kMessage.
  // Adjacent output of one origin is one segment. Returns kInput with the template's line for raise_exception(),
  // undefined operations and exceeded limits.
  absl::StatusOr<std::vector<TextSegment>> Render(const json::object& trusted, const json::object& untrusted,
                                                  const TemplateLimits& limits = {}) const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

// A model may name its templates; only these two names have a meaning.
struct ChatTemplateTexts {
  std::optional<std::string> general;   // the one named `default`, or the only one
  std::optional<std::string> tool_use;  // for requests with tools
};

// Finds the chat templates of a model folder where transformers does. It reads chat_template.jinja and
// additional_chat_templates/*.jinja, or else `chat_template` in tokenizer_config.json (a string, or a list of named
// ones), or else the older chat_template.json. Returns kModel if a file is invalid, and kInput "has no chat template"
// if all are absent.
absl::StatusOr<ChatTemplateTexts> FindChatTemplates(const ModelFolder& folder);
absl::StatusOr<ChatTemplateTexts> FindChatTemplates(const Gguf& gguf);

// The folder of additional templates.
inline constexpr char kTemplateFolder[] = "additional_chat_templates";
absl::StatusOr<std::vector<std::string>> TemplateFolderFiles(const ModelFolder& folder);

}  // namespace penstock
