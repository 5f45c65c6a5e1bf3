#include "penstock/chat/answer/call_reader.h"

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

// Finds the arguments of an object which names a tool before them. Returns where they begin in `text`, or npos.
size_t FindArguments(std::string_view text, std::string& name, std::string_view& key) {
  for (const JsonMember& member : SplitJson(text)) {
    key = member.key;
    const auto begin = static_cast<size_t>(member.value.data() - text.data());
    if (key == R"("name")") {
      const absl::StatusOr<json::value> value = ParseJson(member.value, Fault::kInput);
      if (!name.empty() || !value.ok() || !value->is_string()) break;
      name = View(value->get_string());
    } else if (key == R"("arguments")" || key == R"("parameters")") {
      const bool is_object = !name.empty() && member.value.starts_with('{');
      return is_object && FindJsonEnd(text.substr(0, begin)).kind == JsonExtent::Kind::kCutOff ? begin : text.npos;
    }
  }
  return text.npos;
}

// Reads an object, up to its arguments if the name stands before them.
bool ReadJsonCall(Cursor& cursor, CallRead& read) {
  std::string name;
  std::string_view text = cursor.rest(), key;
  if (cursor.NextIs('{')) {
    if (const size_t begin = FindArguments(text, name, key); begin != text.npos) {
      cursor.Skip(begin);
      read.calls.push_back({std::move(name), ""});
      read.kind = CallRead::Kind::kOpen;
      read.place.in_object = true;
      return true;
    }
  }
  if (!cursor.TakeJson(text)) return false;
  const absl::StatusOr<json::value> value = ParseJson(text, Fault::kInput);
  return (value.ok() && value->is_object() && AddJsonCall(text, read.calls)) || cursor.Fail();
}

// Reads one object, or the first one of a list.
bool ReadJsonCalls(Cursor& cursor, CallRead& read) {
  cursor.SkipSpace();
  read.place.in_list = cursor.NextIs('[') && cursor.Take("[");
  cursor.SkipSpace();
  return ReadJsonCall(cursor, read);
}

// Reads a call up to its arguments, which stand as one JSON object.
bool ReadToArguments(Cursor& cursor, std::string name, CallRead& read) {
  cursor.SkipSpace();
  if (name.empty()) return cursor.Fail();
  if (!cursor.NextIs('{')) return cursor.Fail();
  read.calls.push_back({std::move(name), ""});
  read.kind = CallRead::Kind::kOpen;
  return true;
}

bool ReadMistral(Cursor& cursor, CallRead& read) {
  cursor.Take("[TOOL_CALLS]");
  cursor.SkipSpace();
  if (cursor.NextIs('[') || cursor.NextIs('{')) return ReadJsonCalls(cursor, read);
  std::string name, id;
  if (!cursor.TakeName(name)) return false;
  if (cursor.TakeIf("[CALL_ID]")) cursor.TakeName(id);
  return cursor.Take("[ARGS]") && ReadToArguments(cursor, std::move(name), read);
}

bool ReadDeepSeek(const AnswerFormat& format, Cursor& cursor, CallRead& read) {
  cursor.TakeIf(format.starts[0]);
  cursor.SkipSpace();
  std::string name;
  if (!cursor.Take(format.starts[1])) return false;
  cursor.SkipSpace();
  if (!cursor.TakeName(name) || !cursor.Take("<｜tool▁sep｜>")) return false;
  cursor.SkipSpace();
  if (cursor.NextIs('{')) return ReadToArguments(cursor, std::move(name), read);
  if (!cursor.TakeName(name)) return false;  // the first name was the type of the call
  cursor.SkipSpace();
  return cursor.Take("```json") && ReadToArguments(cursor, std::move(name), read);
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

bool ReadKimi(const AnswerFormat& format, Cursor& cursor, CallRead& read) {
  cursor.TakeIf(format.starts[0]);
  cursor.SkipSpace();
  std::string id;
  if (!cursor.Take(format.starts[1])) return false;
  cursor.SkipSpace();
  if (!cursor.TakeName(id)) return false;
  cursor.SkipSpace();
  return cursor.Take("<|tool_call_argument_begin|>") && ReadToArguments(cursor, KimiName(id), read);
}

bool ReadSolar(const AnswerFormat& format, Cursor& cursor, CallRead& read) {
  cursor.TakeIf(format.starts[0]);
  cursor.SkipSpace();
  std::string id, name;
  return cursor.Take(format.starts[1]) && cursor.TakeUntil("<|tool_call:name|>", id) && cursor.TakeName(name) &&
         cursor.Take("<|tool_call:args|>") && ReadToArguments(cursor, std::move(name), read);
}

// Adds a call whose arguments are tags. If the text is cut off, the call has those arguments that are whole.
bool AddTagged(const Cursor& cursor, const ToolTypes& types, std::string name, Arguments arguments, Calls& calls) {
  if (!cursor.ok() && !cursor.is_cut_off()) return false;
  if (!cursor.ok() && !arguments.empty()) arguments.pop_back();
  std::string text = JsonOfTags(types, name, arguments);
  if (!cursor.ok()) text.pop_back();
  calls.push_back({std::move(name), std::move(text)});
  return cursor.ok();
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
    if (!cursor.Take(tag("<arg_key>")) || !cursor.TakeUntil(tag("</arg_key>"), argument.key)) break;
    cursor.SkipSpace();
    if (!cursor.Take(tag("<arg_value>")) || !cursor.TakeUntil(tag("</arg_value>"), argument.text)) break;
    cursor.SkipSpace();
  }
  return AddTagged(cursor, types, std::move(name), std::move(arguments), calls);
}

// Reads the parameters of a call up to its end. A key is followed by `key_end`.
Arguments ReadParameters(Cursor& cursor, std::string_view begin, std::string_view key_end, std::string_view call_end) {
  Arguments arguments;
  cursor.SkipSpace();
  while (!cursor.TakeIf(call_end)) {
    TaggedArgument& argument = arguments.emplace_back();
    std::string& value = argument.text;
    if (!cursor.Take(begin) || !cursor.TakeUntil(key_end, argument.key) || !cursor.TakeUntil("</parameter>", value)) {
      break;
    }
    // A value may stand on lines of its own.
    if (value.starts_with('\n')) value.erase(0, 1);
    if (value.ends_with('\n')) value.pop_back();
    cursor.SkipSpace();
  }
  return arguments;
}

bool ReadFunction(const ToolTypes& types, Cursor& cursor, Calls& calls) {
  if (cursor.TakeIf("<tool_call>")) cursor.SkipSpace();
  std::string name;
  if (!cursor.Take("<function=") || !cursor.TakeName(name) || !cursor.Take(">")) return false;
  Arguments arguments = ReadParameters(cursor, "<parameter=", ">", "</function>");
  return AddTagged(cursor, types, std::move(name), std::move(arguments), calls);
}

bool ReadInvoke(const ToolTypes& types, Cursor& cursor, Calls& calls) {
  if (cursor.TakeIf("<minimax:tool_call>")) cursor.SkipSpace();
  std::string name;
  if (!cursor.Take("<invoke name=\"") || !cursor.TakeName(name) || !cursor.Take("\">")) return false;
  Arguments arguments = ReadParameters(cursor, "<parameter name=\"", "\">", "</invoke>");
  return AddTagged(cursor, types, std::move(name), std::move(arguments), calls);
}

bool ReadDsml(const ToolTypes& types, Cursor& cursor, Calls& calls) {
  if (cursor.TakeIf("<｜DSML｜function_calls>")) cursor.SkipSpace();
  std::string name;
  if (!cursor.Take("<｜DSML｜invoke name=\"") || !cursor.TakeName(name) || !cursor.Take("\">")) return false;
  cursor.SkipSpace();
  Arguments arguments;
  while (!cursor.TakeIf("</｜DSML｜invoke>")) {
    TaggedArgument& argument = arguments.emplace_back();
    if (!cursor.Take("<｜DSML｜parameter name=\"") || !cursor.TakeUntil("\"", argument.key)) break;
    if (cursor.TakeIf(" string=\"")) {
      std::string is_text;
      if (!cursor.TakeUntil("\"", is_text)) break;
      argument.kind = is_text == "true" ? TaggedArgument::Kind::kText : TaggedArgument::Kind::kJson;
    }
    if (!cursor.Take(">") || !cursor.TakeUntil("</｜DSML｜parameter>", argument.text)) break;
    cursor.SkipSpace();
  }
  return AddTagged(cursor, types, std::move(name), std::move(arguments), calls);
}

// Reads arguments in a notation that is not JSON.
bool ReadValues(Cursor& cursor, ValueRead (*read)(std::string_view), std::string name, Calls& calls) {
  std::string arguments;
  cursor.TakeValue(read, arguments);
  if (cursor.ok() && !IsJsonObject(arguments)) return cursor.Fail();
  if (!arguments.empty() && (cursor.ok() || cursor.is_cut_off())) {
    calls.push_back({std::move(name), std::move(arguments)});
  }
  return cursor.ok();
}

bool ReadGemma(const AnswerFormat& format, Cursor& cursor, Calls& calls) {
  cursor.Take(format.starts[0]);
  cursor.SkipSpace();
  std::string name;
  return cursor.Take("call:") && cursor.TakeName(name) && ReadValues(cursor, ReadGemmaObject, std::move(name), calls);
}

// Any answer may be such an object, so it must name a tool.
bool ReadBareJson(const AnswerFormat& format, const ToolTypes& types, Cursor& cursor, CallRead& read) {
  for (size_t i = 1; i < format.starts.size(); ++i) cursor.TakeIf(format.starts[i]);
  cursor.SkipSpace();
  std::string name;
  std::string_view key;
  const std::string_view text = cursor.rest();
  if (cursor.NextIs('{') && FindArguments(text, name, key) != text.npos) {
    return types.HasTool(name) && key == R"("parameters")" ? ReadJsonCall(cursor, read) : cursor.Fail();
  }
  std::string_view whole;
  if (!cursor.TakeJson(whole)) return false;
  const absl::StatusOr<json::value> value = ParseJson(whole, Fault::kInput);
  if (!value.ok() || !value->is_object()) return cursor.Fail();
  const json::object& object = value->get_object();
  const bool is_call = object.contains("parameters") && types.HasTool(StringOf(object, "name"));
  return (is_call && AddJsonCall(whole, read.calls)) || cursor.Fail();
}

bool ReadPython(const AnswerFormat& format, Cursor& cursor, CallRead& read) {
  cursor.Take(format.starts[0]);
  cursor.SkipSpace();
  Cursor inside = cursor;  // models may be asked for a list of JSON objects
  inside.Take("[");
  inside.SkipSpace();
  if (inside.NextIs('{')) return ReadJsonCalls(cursor, read);
  if (!cursor.Take("[")) return false;
  do {
    cursor.SkipSpace();
    std::string name;
    if (!cursor.TakeName(name) || !ReadValues(cursor, ReadPythonArguments, std::move(name), read.calls)) return false;
    cursor.SkipSpace();
  } while (cursor.TakeIf(","));
  return cursor.Take("]");
}

bool ReadBody(const AnswerFormat& format, const ToolTypes& types, Cursor& cursor, CallRead& read) {
  switch (format.form) {
    case CallForm::kJson:
      for (const std::string& start : format.starts) {
        if (cursor.TakeIf(start)) return ReadJsonCalls(cursor, read);
      }
      return cursor.Fail();
    case CallForm::kMistral: return ReadMistral(cursor, read);
    case CallForm::kDeepSeek: return ReadDeepSeek(format, cursor, read);
    case CallForm::kKimi: return ReadKimi(format, cursor, read);
    case CallForm::kSolar: return ReadSolar(format, cursor, read);
    case CallForm::kPairs: return ReadPairs(format, types, cursor, read.calls);
    case CallForm::kFunction: return ReadFunction(types, cursor, read.calls);
    case CallForm::kInvoke: return ReadInvoke(types, cursor, read.calls);
    case CallForm::kDsml: return ReadDsml(types, cursor, read.calls);
    case CallForm::kGemma: return ReadGemma(format, cursor, read.calls);
    case CallForm::kBareJson: return ReadBareJson(format, types, cursor, read);
    case CallForm::kPython: return ReadPython(format, cursor, read);
    case CallForm::kNone:
    case CallForm::kHarmony: break;
  }
  return cursor.Fail();
}

CallRead Finished(const Cursor& cursor, bool is_read, CallRead read) {
  read.num_bytes = cursor.pos();
  if (is_read && read.kind == CallRead::Kind::kNone) read.kind = CallRead::Kind::kCalls;
  if (is_read) return read;
  read.kind = cursor.is_cut_off() ? CallRead::Kind::kCutOff : CallRead::Kind::kNone;
  if (read.kind == CallRead::Kind::kNone) read.calls.clear();
  return read;
}

}  // namespace

CallRead ReadCalls(const AnswerFormat& format, const ToolTypes& types, std::string_view text) {
  Cursor cursor(text);
  CallRead read;
  const bool is_read = ReadBody(format, types, cursor, read);
  return Finished(cursor, is_read, std::move(read));
}

CallRead ReadBehindCall(CallPlace place, std::string_view text) {
  Cursor cursor(text);
  CallRead read;
  read.place.in_list = place.in_list;
  if (place.in_object) {
    JsonScanner scanner(1);
    cursor.Skip(scanner.Take(text));
    read.kind = scanner.kind() == JsonExtent::Kind::kWhole    ? CallRead::Kind::kCalls
                : scanner.kind() == JsonExtent::Kind::kCutOff ? CallRead::Kind::kCutOff
                                                              : CallRead::Kind::kNone;
    read.num_bytes = cursor.pos();
    return read;
  }
  cursor.SkipSpace();
  if (cursor.TakeIf("]")) {
    read.place = {};
    return Finished(cursor, true, std::move(read));
  }
  cursor.Take(",");
  cursor.SkipSpace();
  const bool is_read = ReadJsonCall(cursor, read);
  return Finished(cursor, is_read, std::move(read));
}

}  // namespace penstock
