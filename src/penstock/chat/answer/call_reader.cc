#include "penstock/chat/answer/call_reader.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "penstock/base/json.h"
#include "penstock/base/text.h"
#include "penstock/chat/answer/json_pieces.h"

namespace penstock {
namespace {

// Reads a text from its beginning. Each method returns whether it could read on. If not, all further ones fail, too,
// and is_cut_off() says whether the reason was only that the text ends.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool ok() const { return state_ == State::kOk; }
  bool is_cut_off() const { return state_ == State::kCutOff; }
  size_t pos() const { return pos_; }
  bool NextIs(char c) { return HasMore() && text_[pos_] == c; }

  // Takes the mark, which must come next.
  bool Take(std::string_view mark) { return TakeIf(mark) || Fail(); }

  // Takes the mark if it comes next. A text that ends inside of it is cut off.
  bool TakeIf(std::string_view mark) {
    if (!ok()) return false;
    const std::string_view rest = text_.substr(pos_);
    if (rest.starts_with(mark)) {
      pos_ += mark.size();
      return true;
    }
    if (mark.starts_with(rest)) state_ = State::kCutOff;
    return false;
  }

  void SkipSpace() { pos_ = text_.size() - WithoutLeadingSpace(text_.substr(pos_)).size(); }

  // Takes a name, which ends before another character.
  bool TakeName(std::string& name) {
    const size_t begin = pos_;
    while (ok() && pos_ < text_.size() && IsNameCharacter(text_[pos_])) ++pos_;
    if (!HasMore()) return false;
    name = text_.substr(begin, pos_ - begin);
    return !name.empty() || Fail();
  }

  // Takes all text up to the mark, and the mark.
  bool TakeUntil(std::string_view mark, std::string& out) {
    if (!ok()) return false;
    const size_t end = text_.find(mark, pos_);
    if (end == std::string_view::npos) {
      state_ = State::kCutOff;
      return false;
    }
    out = text_.substr(pos_, end - pos_);
    pos_ = end + mark.size();
    return true;
  }

  // Takes a JSON object or list, behind white space.
  bool TakeJson(std::string_view& out) {
    SkipSpace();
    if (!HasMore()) return false;
    if (text_[pos_] != '{' && text_[pos_] != '[') return Fail();
    const JsonExtent extent = FindJsonEnd(text_.substr(pos_));
    if (extent.kind == JsonExtent::Kind::kBroken) return Fail();
    if (extent.kind == JsonExtent::Kind::kCutOff) {
      state_ = State::kCutOff;
      return false;
    }
    out = text_.substr(pos_, extent.num_bytes);
    pos_ += extent.num_bytes;
    return true;
  }

  // Makes the text no call. Returns false.
  bool Fail() {
    if (ok()) state_ = State::kFailed;
    return false;
  }

 private:
  enum class State : uint8_t { kOk, kCutOff, kFailed };

  static bool IsNameCharacter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.:/$").find(c) != std::string_view::npos;
  }
  bool HasMore() {
    if (ok() && pos_ == text_.size()) state_ = State::kCutOff;
    return ok();
  }

  std::string_view text_;
  size_t pos_ = 0;
  State state_ = State::kOk;
};

using Calls = std::vector<ToolCall>;
using Arguments = std::vector<std::pair<std::string, std::string>>;

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

bool ReadPairs(const ToolTypes& types, Cursor& cursor, Calls& calls) {
  if (cursor.TakeIf("<tool_calls>")) cursor.SkipSpace();
  std::string name;
  if (!cursor.Take("<tool_call>")) return false;
  cursor.SkipSpace();
  if (!cursor.TakeName(name)) return false;
  cursor.SkipSpace();
  if (cursor.TakeIf("<tool_sep>")) cursor.SkipSpace();
  Arguments arguments;
  while (!cursor.TakeIf("</tool_call>")) {
    auto& [key, value] = arguments.emplace_back();
    if (!cursor.Take("<arg_key>") || !cursor.TakeUntil("</arg_key>", key)) return false;
    cursor.SkipSpace();
    if (!cursor.Take("<arg_value>") || !cursor.TakeUntil("</arg_value>", value)) return false;
    cursor.SkipSpace();
  }
  return AddTagged(types, std::move(name), arguments, calls);
}

// Reads the parameters of a call up to its end. A key is followed by `key_end`.
bool ReadParameters(Cursor& cursor, std::string_view begin, std::string_view key_end, std::string_view call_end,
                    Arguments& arguments) {
  cursor.SkipSpace();
  while (!cursor.TakeIf(call_end)) {
    auto& [key, value] = arguments.emplace_back();
    if (!cursor.Take(begin) || !cursor.TakeUntil(key_end, key) || !cursor.TakeUntil("</parameter>", value)) {
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
    case CallForm::kPairs: return ReadPairs(types, cursor, calls);
    case CallForm::kFunction: return ReadFunction(types, cursor, calls);
    case CallForm::kInvoke: return ReadInvoke(types, cursor, calls);
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
