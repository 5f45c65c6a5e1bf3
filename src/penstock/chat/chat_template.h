// Chat templates: a bounded interpreter for the Jinja dialect of Hugging Face's chat templates.
//
// A template is data from the model folder. It sees its arguments and nothing else, and runs within limits on steps,
// depth and output size. Every piece of output knows its origin: text of the template (and bos_token / eos_token) may
// become special tokens, strings that come from messages may not, whatever filters they went through. Where a filter
// mixes both in one character or number, the result counts as a message's.
//
// One exception: the `role` of an element of `messages` is template text when it is exactly system, user, assistant,
// tool or developer. That closed set can do no harm, and templates such as Phi-3's build special tokens around it
// ("<|" + role + "|>"). Any other role stays message text, and so do names, keys, tool definitions and documents.
//
// The dialect is that of transformers' apply_chat_template: Jinja in an immutable sandbox with trim_blocks,
// lstrip_blocks, loop controls, generation blocks, tojson, raise_exception and strftime_now. Not implemented, with an
// error that says so: include, import, extends, autoescape, and the filters urlencode, urlize, striptags, pprint,
// xmlattr, filesizeformat, wordwrap, random. Differences: what Python prints with an address in memory (functions,
// generators) cannot be printed; a generator, as map and select give it, has a length, slices and a form in JSON, which
// fail in Python; the items of a generator are made at once, though a failure shows only when the item is asked for;
// integers have 64 bits (an overflow is an error, but "1e20|int" is 0); a name is looked up when it is used, so that
// what an outer level sets later is not hidden before; upper, lower and the is...() methods know Unicode's simple case
// mappings and categories only.
//
// strftime_now() never reads the clock, so that a job gives the same prompts on every run: it formats the trusted
// variable `current_time` ("YYYY-MM-DD" or "YYYY-MM-DDTHH:MM:SS"), or 2024-07-26 00:00:00 when there is none.
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
  // Parses `source`. kModel with the template's line on a syntax error.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // What the template can write of its own: its text and its string constants, with a NUL byte after each.
  const std::string& Literals() const;

  // Renders with `trusted` (bos_token, eos_token, add_generation_prompt ...; strings have Origin::kTemplate) and
  // `untrusted` (messages, tools ...; strings have Origin::kMessage) as global variables. kInput with the template's
  // line for raise_exception(), undefined operations, and exceeded limits. Adjacent output of one origin is one
  // segment.
  absl::StatusOr<std::vector<TextSegment>> Render(const json::object& trusted, const json::object& untrusted,
                                                  const TemplateLimits& limits = {}) const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

// Of the names that a model may give to its templates, those with a meaning.
struct ChatTemplateTexts {
  std::optional<std::string> general;   // `default`, or the only one
  std::optional<std::string> tool_use;  // for requests with tools
};

// The chat templates of a model folder, as transformers looks for them: chat_template.jinja and
// additional_chat_templates/*.jinja, else `chat_template` in tokenizer_config.json (a string, or a list of named ones),
// else the older chat_template.json. kModel when a file is invalid, kInput "has no chat template" when all are absent.
absl::StatusOr<ChatTemplateTexts> FindChatTemplates(const ModelFolder& folder);
absl::StatusOr<ChatTemplateTexts> FindChatTemplates(const Gguf& gguf);

// The folder of further templates, and their names in it.
inline constexpr char kTemplateFolder[] = "additional_chat_templates";
absl::StatusOr<std::vector<std::string>> TemplateFolderFiles(const ModelFolder& folder);

}  // namespace penstock
