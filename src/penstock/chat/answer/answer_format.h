// How a family of models writes its answers: the marks around reasoning, and the form of its tool calls.
//
// A format is found from the model's chat template and vocabulary. Models of one family may differ here, and models of
// several families may agree.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/chat_answer.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

enum class CallForm : uint8_t {
  kNone,
  kHarmony,   // gpt-oss: a message to functions.NAME (harmony.h)
  kJson,      // START {"name": .., "arguments": {..}} END, or a list of such objects
  kMistral,   // [TOOL_CALLS][{"name": ..}], or [TOOL_CALLS]NAME[ARGS]{..}
  kDeepSeek,  // V3: function SEP NAME ```json {..} ```; V3.1: NAME SEP {..}
  kKimi,      // functions.NAME:0 SEP {..}
  kSolar,     // ID SEP NAME SEP {..}
  kPairs,     // GLM-4.5: <tool_call>NAME <arg_key>..</arg_key> <arg_value>..</arg_value> </tool_call>
  kFunction,  // Qwen3-Coder: <tool_call><function=NAME><parameter=KEY>..</parameter></function></tool_call>
  kInvoke,    // MiniMax-M2: <invoke name="NAME"><parameter name="KEY">..</parameter></invoke>
  kDsml,      // DeepSeek-V3.2: kInvoke's tags with "｜DSML｜" in their names, and string="true" for texts
  kGemma,     // Gemma 4: <|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>,KEY:5}<tool_call|>
  kBareJson,  // Llama 3.1 to 4: {"name": .., "parameters": {..}} without marks, if the answer begins with it
  kPython,    // LFM2: <|tool_call_start|>[NAME(KEY="TEXT", KEY=5)]<|tool_call_end|>
};

struct AnswerFormat {
  // Marks around reasoning; empty: the format has none.
  std::string open, close;
  // The template knows only the closing mark, so text before it is reasoning even if nothing opened it.
  bool only_closes = false;
  std::vector<std::string> dropped = {};  // marks around the answer proper, which belong to nothing
  CallForm form = CallForm::kNone;
  std::vector<std::string> starts = {};  // a tool call, or a list of them, begins with one of these
  std::vector<std::string> ends = {};    // may follow a tool call
  bool names_type = false;               // kDeepSeek: "function" stands before the name
  // kJson: objects stand in a list; kMistral: the older form; kPairs: Hunyuan 3's form, with marks around all calls.
  bool lists_calls = false;
  bool breaks_lines = false;  // kPairs: a line ends behind the name, each key and each value
  std::string suffix = {};    // kPairs: stands in each tag before its ">"
  // The marks that are tokens which messages cannot produce (Tokenizer::IsMark).
  std::vector<std::string> marks = {};
  // Those of them that are special tokens, which decoded text leaves out.
  absl::flat_hash_map<TokenId, std::string> hidden = {};

  bool has_reasoning() const { return !close.empty(); }
  // Whether arguments are written as tags, which do not tell their types.
  bool has_tags() const {
    return form == CallForm::kPairs || form == CallForm::kFunction || form == CallForm::kInvoke ||
           form == CallForm::kDsml;
  }
  // Returns the tag with the suffix.
  std::string Tag(std::string_view tag) const;
};

// Finds the format of a model. `literals` is ChatPrompts::Literals(), empty for a model without a chat template.
AnswerFormat FindAnswerFormat(std::string_view literals, const Tokenizer& tokenizer);

// Says where an answer begins: what its prompt has opened or closed, or that it continues a text.
enum class AnswerStart : uint8_t { kUnknown, kInReasoning, kBehindReasoning, kInContent };

// Returns what the end of a prompt says: a template may have opened the reasoning, or closed it.
AnswerStart StartBehind(const AnswerFormat& format, std::span<const TokenId> prompt_ids, const Tokenizer& tokenizer);

// Returns the object "function" of a tool, or the tool itself where there is none; nullptr if it is no object.
const json::object* FunctionOf(const json::value& tool);
// Returns the member `key` of an object if it is a string, else "".
std::string_view StringOf(const json::object& object, std::string_view key);

}  // namespace penstock
