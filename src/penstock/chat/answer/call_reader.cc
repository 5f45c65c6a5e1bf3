#include "penstock/chat/answer/call_reader.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "penstock/base/json.h"
#include "penstock/base/text.h"
#include "penstock/chat/answer/call_cursor.h"
#include "penstock/chat/answer/call_values.h"
#include "penstock/chat/answer/json_pieces.h"

namespace penstock {
namespace {

using Calls = std::vector<ToolCall>;
using Arguments = std::vector<TaggedArgument>;

bool IsJsonObject(std::string_view text) {
  const absl::StatusOr<json::value> value = ParseJson(text, Fault::kInput);
  return value.ok() && value->is_object();
}

// Adds a call that is written as an object with its name and its arguments. Returns whether it is one.
bool AddJsonCall(std::string_view text, Calls& calls) {
  ToolCall call{.name = "", .arguments = "{}"};
  for (const JsonMember& member : SplitJson(text)) {
    const bool is_name = member.key == R"("name")";
    if (!is_name && member.key != R"("arguments")" && member.key != R"("parameters")") continue;
    const absl::StatusOr<json::value> value = ParseJson(member.value, Fault::kInput);
    if (!value.ok()) return false;
    if (is_name) {
      if (!value->is_string()) return false;
      call.name = View(value->get_string());
    } else {
      // Arguments may be the text of an object, as in OpenAI's messages.
      call.arguments = value->is_string() ? std::string(View(value->get_string())) : std::string(member.value);
      if (!IsJsonObject(call.arguments)) return false;
    }
  }
  if (call.name.empty()) return false;
  calls.push_back(std::move(call));
  return true;
}

// Reads one object or a list of them.
bool ReadJsonCalls(Cursor& cursor, Calls& calls) {
  std::string_view text;
  if (!cursor.TakeJson(text)) return false;
  const absl::StatusOr<json::value> value = ParseJson(text, Fault::kInput);
  if (!value.ok()) return cursor.Fail();
  if (value->is_object()) return AddJsonCall(text, calls) || cursor.Fail();
  const std::vector<JsonMember> members = SplitJson(text);
  for (size_t i = 0; i < members.size(); ++i) {
    if (!value->get_array()[i].is_object() || !AddJsonCall(members[i].value, calls)) return cursor.Fail();
  }
  return !calls.empty() || cursor.Fail();
}

// Reads arguments that stand as one JSON object.
bool ReadArguments(Cursor& cursor, std::string name, Calls& calls) {
  std::string_view text;
  if (!cursor.TakeJson(text)) return false;
  if (name.empty() || !IsJsonObject(text)) return cursor.Fail();
  calls.push_back({std::move(name), std::string(text)});
  return true;
}

bool ReadMistral(Cursor& cursor, Calls& calls) {
  cursor.Take("[TOOL_CALLS]");
  cursor.SkipSpace();
  if (cursor.NextIs('[') || cursor.NextIs('{')) return ReadJsonCalls(cursor, calls);
  std::string name, id;
  if (!cursor.TakeName(name)) return false;
  if (cursor.TakeIf("[CALL_ID]")) cursor.TakeName(id);
  return cursor.Take("[ARGS]") && ReadArguments(cursor, std::move(name), calls);
}

bool ReadDeepSeek(const AnswerFormat& format, Cursor& cursor, Calls& calls) {
  cursor.TakeIf(format.starts[0]);
  cursor.SkipSpace();
  std::string name;
  if (!cursor.Take(format.starts[1])) return false;
  cursor.SkipSpace();
  if (!cursor.TakeName(name) || !cursor.Take("<｜tool▁sep｜>")) return false;
  cursor.SkipSpace();
  if (cursor.NextIs('{')) return ReadArguments(cursor, std::move(name), calls);
  if (!cursor.TakeName(name)) return false;  // the first name was the type of the call
  cursor.SkipSpace();
  return cursor.Take("```json") && ReadArguments(cursor, std::move(name), calls);
}

// Returns the name in "functions.NAME:0".
std::string KimiName(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  if (id.starts_with(kPrefix)) id.remove_prefix(kPrefix.size());
  const size_t colon = id.rfind(':');
  const bool has_index =
      colon != std::string_view::npos && id.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  return std::string(has_index ? id.substr(0, colon) : id);
}

bool ReadKimi(const AnswerFormat& format, Cursor& cursor, Calls& calls) {
  cursor.TakeIf(format.starts[0]);
  cursor.SkipSpace();
  std::string id;
  if (!cursor.Take(format.starts[1])) return false;
  cursor.SkipSpace();
  if (!cursor.TakeName(id)) return false;
  cursor.SkipSpace();
  return cursor.Take("<|tool_call_argument_begin|>") && ReadArguments(cursor, KimiName(id), calls);
}

bool ReadSolar(const AnswerFormat& format, Cursor& cursor, Calls& calls) {
  cursor.TakeIf(format.starts[0]);
  cursor.SkipSpace();
  std::string id, name;
  return cursor.Take(format.starts[1]) && cursor.TakeUntil("<|tool_call:name|>", id) && cursor.TakeName(name) &&
         cursor.Take("<|tool_call:args|>") && ReadArguments(cursor, std::move(name), calls);
}

bool AddTagged(const ToolTypes& types, std::string name, const Arguments& arguments, Calls& calls) {
  std::string text = JsonOfTags(types, name, arguments);
  calls.push_back({std::move(name), std::move(text)});
  return true;
}

bool ReadPairs(const AnswerFormat& format, const ToolTypes& types, Cursor& cursor, Calls& calls) {
  const auto tag = [&](std::string_view text) { return format.Tag(text); };
  if (cursor.TakeIf(tag("<tool_calls>"))) cursor.SkipSpace();
  std::string name;
  if (!cursor.Take(tag("<tool_call>"))) return false;
  cursor.SkipSpace();
  if (!cursor.TakeName(name)) return false;
  cursor.SkipSpace();
  if (cursor.TakeIf(tag("<tool_sep>"))) cursor.SkipSpace();
  Arguments arguments;
  while (!cursor.TakeIf(tag("</tool_call>"))) {
    TaggedArgument& argument = arguments.emplace_back();
    if (!cursor.Take(tag("<arg_key>")) || !cursor.TakeUntil(tag("</arg_key>"), argument.key)) return false;
    cursor.SkipSpace();
    if (!cursor.Take(tag("<arg_value>")) || !cursor.TakeUntil(tag("</arg_value>"), argument.text)) return false;
    cursor.SkipSpace();
  }
  return AddTagged(types, std::move(name), arguments, calls);
}

// Reads the parameters of a call up to its end. A key is followed by `key_end`.
bool ReadParameters(Cursor& cursor, std::string_view begin, std::string_view key_end, std::string_view call_end,
                    Arguments& arguments) {
  cursor.SkipSpace();
  while (!cursor.TakeIf(call_end)) {
    TaggedArgument& argument = arguments.emplace_back();
    std::string& value = argument.text;
    if (!cursor.Take(begin) || !cursor.TakeUntil(key_end, argument.key) || !cursor.TakeUntil("</parameter>", value)) {
      return false;
    }
    // A value may stand on lines of its own.
    if (value.starts_with('\n')) value.erase(0, 1);
    if (value.ends_with('\n')) value.pop_back();
    cursor.SkipSpace();
  }
  return true;
}

bool ReadFunction(const ToolTypes& types, Cursor& cursor, Calls& calls) {
  if (cursor.TakeIf("<tool_call>")) cursor.SkipSpace();
  std::string name;
  Arguments arguments;
  return cursor.Take("<function=") && cursor.TakeName(name) && cursor.Take(">") &&
         ReadParameters(cursor, "<parameter=", ">", "</function>", arguments) &&
         AddTagged(types, std::move(name), arguments, calls);
}

bool ReadInvoke(const ToolTypes& types, Cursor& cursor, Calls& calls) {
  if (cursor.TakeIf("<minimax:tool_call>")) cursor.SkipSpace();
  std::string name;
  Arguments arguments;
  return cursor.Take("<invoke name=\"") && cursor.TakeName(name) && cursor.Take("\">") &&
         ReadParameters(cursor, "<parameter name=\"", "\">", "</invoke>", arguments) &&
         AddTagged(types, std::move(name), arguments, calls);
}

bool ReadDsml(const ToolTypes& types, Cursor& cursor, Calls& calls) {
  if (cursor.TakeIf("<｜DSML｜function_calls>")) cursor.SkipSpace();
  std::string name;
  if (!cursor.Take("<｜DSML｜invoke name=\"") || !cursor.TakeName(name) || !cursor.Take("\">")) return false;
  cursor.SkipSpace();
  Arguments arguments;
  while (!cursor.TakeIf("</｜DSML｜invoke>")) {
    TaggedArgument& argument = arguments.emplace_back();
    if (!cursor.Take("<｜DSML｜parameter name=\"") || !cursor.TakeUntil("\"", argument.key)) return false;
    if (cursor.TakeIf(" string=\"")) {
      std::string is_text;
      if (!cursor.TakeUntil("\"", is_text)) return false;
      argument.kind = is_text == "true" ? TaggedArgument::Kind::kText : TaggedArgument::Kind::kJson;
    }
    if (!cursor.Take(">") || !cursor.TakeUntil("</｜DSML｜parameter>", argument.text)) return false;
    cursor.SkipSpace();
  }
  return AddTagged(types, std::move(name), arguments, calls);
}

// Reads arguments in a notation that is not JSON.
bool ReadValues(Cursor& cursor, ValueRead (*read)(std::string_view), std::string name, Calls& calls) {
  std::string arguments;
  if (!cursor.TakeValue(read, arguments)) return false;
  if (!IsJsonObject(arguments)) return cursor.Fail();
  calls.push_back({std::move(name), std::move(arguments)});
  return true;
}

bool ReadGemma(const AnswerFormat& format, Cursor& cursor, Calls& calls) {
  cursor.Take(format.starts[0]);
  cursor.SkipSpace();
  std::string name;
  return cursor.Take("call:") && cursor.TakeName(name) && ReadValues(cursor, ReadGemmaObject, std::move(name), calls);
}

// Any answer may be such an object, so it must name a tool.
bool ReadBareJson(const AnswerFormat& format, const ToolTypes& types, Cursor& cursor, Calls& calls) {
  for (size_t i = 1; i < format.starts.size(); ++i) cursor.TakeIf(format.starts[i]);
  cursor.SkipSpace();
  std::string_view text;
  if (!cursor.TakeJson(text)) return false;
  const absl::StatusOr<json::value> value = ParseJson(text, Fault::kInput);
  if (!value.ok() || !value->is_object()) return cursor.Fail();
  const json::object& object = value->get_object();
  const bool is_call = object.contains("parameters") && types.HasTool(StringOf(object, "name"));
  return (is_call && AddJsonCall(text, calls)) || cursor.Fail();
}

bool ReadPython(const AnswerFormat& format, Cursor& cursor, Calls& calls) {
  cursor.Take(format.starts[0]);
  cursor.SkipSpace();
  Cursor inside = cursor;  // models may be asked for a list of JSON objects
  inside.Take("[");
  inside.SkipSpace();
  if (inside.NextIs('{')) return ReadJsonCalls(cursor, calls);
  if (!cursor.Take("[")) return false;
  do {
    cursor.SkipSpace();
    std::string name;
    if (!cursor.TakeName(name) || !ReadValues(cursor, ReadPythonArguments, std::move(name), calls)) return false;
    cursor.SkipSpace();
  } while (cursor.TakeIf(","));
  return cursor.Take("]");
}

bool ReadBody(const AnswerFormat& format, const ToolTypes& types, Cursor& cursor, Calls& calls) {
  switch (format.form) {
    case CallForm::kJson:
      for (const std::string& start : format.starts) {
        if (cursor.TakeIf(start)) return ReadJsonCalls(cursor, calls);
      }
      return cursor.Fail();
    case CallForm::kMistral: return ReadMistral(cursor, calls);
    case CallForm::kDeepSeek: return ReadDeepSeek(format, cursor, calls);
    case CallForm::kKimi: return ReadKimi(format, cursor, calls);
    case CallForm::kSolar: return ReadSolar(format, cursor, calls);
    case CallForm::kPairs: return ReadPairs(format, types, cursor, calls);
    case CallForm::kFunction: return ReadFunction(types, cursor, calls);
    case CallForm::kInvoke: return ReadInvoke(types, cursor, calls);
    case CallForm::kDsml: return ReadDsml(types, cursor, calls);
    case CallForm::kGemma: return ReadGemma(format, cursor, calls);
    case CallForm::kBareJson: return ReadBareJson(format, types, cursor, calls);
    case CallForm::kPython: return ReadPython(format, cursor, calls);
    case CallForm::kNone:
    case CallForm::kHarmony: break;
  }
  return cursor.Fail();
}

}  // namespace

CallRead ReadCalls(const AnswerFormat& format, const ToolTypes& types, std::string_view text) {
  Cursor cursor(text);
  CallRead read;
  if (ReadBody(format, types, cursor, read.calls)) {
    read.kind = CallRead::Kind::kCalls;
    read.num_bytes = cursor.pos();
    return read;
  }
  read.calls.clear();
  if (cursor.is_cut_off()) read.kind = CallRead::Kind::kCutOff;
  return read;
}

}  // namespace penstock
