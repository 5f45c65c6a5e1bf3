// Converts the arguments of a rendering from JSON to values with an origin.
#include <algorithm>

#include "penstock/base/text.h"
#include "penstock/chat/jinja/frame.h"
#include "penstock/chat/jinja/interp.h"

namespace penstock::jinja {
namespace {

std::string_view View(const json::string_view& text) { return {text.data(), text.size()}; }

Value TextValue(std::string_view text, Origin origin) {
  return Value::String(IsUtf8(text) ? Text(text, origin) : Text(ReplaceInvalidUtf8(text), origin));
}

// Roles are a closed set, so templates that build a special token around one ("<|" + role + "|>") work.
bool IsFixedRole(std::string_view role) {
  static constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool", "developer"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

}  // namespace

// NOLINTNEXTLINE(misc-no-recursion): at most max_depth deep.
Result Interp::Convert(const json::value& value, Origin origin, int depth) {
  if (depth > limits_.max_depth) return Fail("an argument nests deeper than {} levels", limits_.max_depth);
  switch (value.kind()) {
    case json::kind::null: return Value::None(origin);
    case json::kind::bool_: return Value::Bool(value.get_bool(), origin);
    case json::kind::int64: return Value::Int(value.get_int64(), origin);
    case json::kind::uint64:
      if (value.get_uint64() > static_cast<uint64_t>(INT64_MAX)) {
        return Fail("the number {} in an argument does not fit a signed 64-bit integer", value.get_uint64());
      }
      return Value::Int(static_cast<int64_t>(value.get_uint64()), origin);
    case json::kind::double_: return Value::Float(value.get_double(), origin);
    case json::kind::string: return TextValue(View(value.get_string()), origin);
    case json::kind::array: {
      std::vector<Value> items;
      items.reserve(value.get_array().size());
      for (const json::value& item : value.get_array()) {
        PENSTOCK_ASSIGN_OR_RETURN(Value converted, Convert(item, origin, depth + 1));
        items.push_back(std::move(converted));
      }
      return MakeList(std::move(items), origin);
    }
    case json::kind::object: {
      std::vector<std::pair<Value, Value>> entries;
      entries.reserve(value.get_object().size());
      for (const auto& [key, item] : value.get_object()) {
        PENSTOCK_ASSIGN_OR_RETURN(Value converted, Convert(item, origin, depth + 1));
        entries.emplace_back(TextValue(View(key), origin), std::move(converted));
      }
      return MakeDict(std::move(entries), origin);
    }
  }
  return Fail("an argument has an unknown kind");
}

Result Interp::ConvertMessages(const json::value& value) {
  if (!value.is_array()) return Convert(value, Origin::kMessage, 0);
  std::vector<Value> messages;
  for (const json::value& message : value.get_array()) {
    PENSTOCK_ASSIGN_OR_RETURN(Value converted, Convert(message, Origin::kMessage, 1));
    const json::object* object = message.if_object();
    const json::value* role = object == nullptr ? nullptr : object->if_contains("role");
    if (role != nullptr && role->is_string() && IsFixedRole(View(role->get_string()))) {
      std::vector<std::pair<Value, Value>> entries = converted.dict().entries;
      for (auto& [key, item] : entries) {
        if (key.bytes() == "role") item = Value::String(View(role->get_string()));
      }
      PENSTOCK_ASSIGN_OR_RETURN(converted, MakeDict(std::move(entries), Origin::kMessage));
    }
    messages.push_back(std::move(converted));
  }
  return MakeList(std::move(messages), Origin::kMessage);
}

absl::StatusOr<Text> Interp::Render(const Body& body, const json::object& trusted, const json::object& untrusted) {
  Scope globals(nullptr);
  globals.Capture();  // the scope outlives everything here
  for (const auto& [key, value] : untrusted) {
    PENSTOCK_ASSIGN_OR_RETURN(Value converted,
                              View(key) == "messages" ? ConvertMessages(value) : Convert(value, Origin::kMessage, 0));
    globals.Set(View(key), std::move(converted));
  }
  for (const auto& [key, value] : trusted) {
    PENSTOCK_ASSIGN_OR_RETURN(Value converted, Convert(value, Origin::kTemplate, 0));
    if (View(key) == "current_time" && converted.Is(Kind::kString)) current_time_ = converted.bytes();
    globals.Set(View(key), std::move(converted));
  }
  // Only the template's own work counts; the size of the arguments is limited where they enter.
  steps_ = 0;
  Text out;
  const ScopeHolder top(*this, &globals);
  top_ = &*top;
  PENSTOCK_ASSIGN_OR_RETURN(const Flow flow, Exec(body, *top, out));
  (void)flow;
  return out;
}

}  // namespace penstock::jinja
