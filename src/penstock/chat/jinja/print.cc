#include "penstock/chat/jinja/print.h"

#include <utf8proc.h>
#include <algorithm>
#include <charconv>
#include <cmath>

namespace penstock::jinja {

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

namespace {

void AppendReprOfText(const Text& text, Text& out) {
  const Origin origin = text.AnyOrigin();
  const bool use_double = text.bytes().find('\'') != std::string::npos && text.bytes().find('"') == std::string::npos;
  const char quote = use_double ? '"' : '\'';
  out.Append(std::string_view(&quote, 1), origin);
  for (RuneReader reader(text); !reader.done();) {
    const auto [c, from] = reader.Next();
    if (c == U'\\' || c == static_cast<char32_t>(quote)) {
      out.Append("\\", from);
      out.AppendRune(c, from);
    } else if (c == '\n') {
      out.Append("\\n", from);
    } else if (c == '\r') {
      out.Append("\\r", from);
    } else if (c == '\t') {
      out.Append("\\t", from);
    } else if (IsPrintable(c)) {
      out.AppendRune(c, from);
    } else {
      const auto code = static_cast<uint32_t>(c);
      out.Append(code < 0x100     ? fmt::format("\\x{:02x}", code)
                 : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                  : fmt::format("\\U{:08x}", code),
                 from);
    }
  }
  out.Append(std::string_view(&quote, 1), origin);
}

void AppendJsonString(const Text& text, bool ensure_ascii, Text& out) {
  const Origin origin = text.AnyOrigin();
  out.Append("\"", origin);
  for (RuneReader reader(text); !reader.done();) {
    const auto [c, from] = reader.Next();
    const auto code = static_cast<uint32_t>(c);
    static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
    static constexpr std::string_view kLetters = "\"\\nrtfb";
    const size_t known = code < 0x80 ? kEscaped.find(static_cast<char>(code)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      out.Append("\\", from);
      out.Append(kLetters.substr(known, 1), from);
    } else if (code < 0x20 || (ensure_ascii && code >= 0x7F && code < 0x10000)) {
      out.Append(fmt::format("\\u{:04x}", code), from);
    } else if (ensure_ascii && code >= 0x10000) {
      out.Append(fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF)), from);
    } else {
      out.AppendRune(c, from);
    }
  }
  out.Append("\"", origin);
}

std::string_view JsonWord(const Value& value) {
  if (value.Is(Kind::kNone)) return "null";
  return value.integer() != 0 ? "true" : "false";
}

std::string JsonNumber(const Value& value) {
  if (value.Is(Kind::kInt)) return fmt::format("{}", value.integer());
  if (std::isnan(value.number())) return "NaN";
  if (std::isinf(value.number())) return value.number() < 0 ? "-Infinity" : "Infinity";
  return FloatText(value.number());
}

// Starts a new line with `level` indents if the style asks for lines.
void BreakLine(const JsonStyle& style, int level, Origin origin, Text& out) {
  if (!style.multiline) return;
  out.Append("\n", origin);
  for (int i = 0; i < level; ++i) out.Append(style.indent);
}

absl::Status AppendJsonKey(Interp& interp, const Value& key, const JsonStyle& style, Text& out) {
  if (key.Is(Kind::kString)) {
    AppendJsonString(key.text(), style.ensure_ascii, out);
    return absl::OkStatus();
  }
  if (!key.is_number() && !key.Is(Kind::kNone)) {
    return interp.Fail("a {} cannot be the key of a JSON object", key.type_name());
  }
  const bool is_word = key.Is(Kind::kNone) || key.Is(Kind::kBool);
  out.Append(fmt::format("\"{}\"", is_word ? std::string(JsonWord(key)) : JsonNumber(key)), key.origin());
  return absl::OkStatus();
}

absl::Status AppendJsonObject(Interp& interp, const Value& value, const JsonStyle& style, int level, Text& out) {
  const Origin origin = value.origin();
  std::vector<const std::pair<Value, Value>*> entries;
  for (const auto& entry : value.dict().entries) entries.push_back(&entry);
  if (style.sort_keys) {
    for (const auto* entry : entries) {
      if (!entry->first.Is(Kind::kString)) return interp.Fail("sort_keys needs keys that are strings");
    }
    PENSTOCK_RETURN_IF_ERROR(interp.Charge(static_cast<int64_t>(entries.size()) * 20));
    std::stable_sort(entries.begin(), entries.end(),
                     [](const auto* a, const auto* b) { return a->first.bytes() < b->first.bytes(); });
  }
  out.Append("{", origin);
  bool first = true;
  for (const auto* entry : entries) {
    if (!first) out.Append(style.item_separator);
    first = false;
    BreakLine(style, level + 1, origin, out);
    PENSTOCK_RETURN_IF_ERROR(AppendJsonKey(interp, entry->first, style, out));
    out.Append(style.key_separator);
    PENSTOCK_RETURN_IF_ERROR(AppendJson(interp, entry->second, style, level + 1, out));
  }
  if (!first) BreakLine(style, level, origin, out);
  out.Append("}", origin);
  return absl::OkStatus();
}

}  // namespace

std::string FloatText(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific).ptr;
  const std::string scientific(buffer, end);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));  // always a small number, because to_chars wrote it
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::fixed).ptr;
  std::string fixed(buffer, fixed_end);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

absl::StatusOr<Text> Interp::ToText(const Value& value) {
  if (value.Is(Kind::kString)) return value.text();
  Text text;
  PENSTOCK_RETURN_IF_ERROR(AppendStr(value, text));
  return text;
}

absl::Status Interp::AppendStr(const Value& value, Text& out) {
  if (value.Is(Kind::kUndefined)) return absl::OkStatus();
  if (!value.Is(Kind::kString)) return AppendRepr(value, out);
  out.Append(value.text());
  if (static_cast<int64_t>(out.size()) > limits_.max_output_bytes) return CheckText(out);
  return Charge(1 + static_cast<int64_t>(value.text().size() / 32 + value.text().runs().size() / 2));
}

// NOLINTNEXTLINE(misc-no-recursion): values are at most max_depth deep.
absl::Status Interp::AppendRepr(const Value& value, Text& out) {
  PENSTOCK_RETURN_IF_ERROR(Charge(1));
  if (static_cast<int64_t>(out.size()) > limits_.max_output_bytes) return CheckText(out);
  const Origin origin = value.Is(Kind::kString) ? Origin::kTemplate : value.origin();
  switch (value.kind()) {
    case Kind::kUndefined: out.Append("Undefined", origin); break;
    case Kind::kNone: out.Append("None", origin); break;
    case Kind::kBool: out.Append(value.integer() != 0 ? "True" : "False", origin); break;
    case Kind::kInt: out.Append(fmt::format("{}", value.integer()), origin); break;
    case Kind::kFloat: out.Append(FloatText(value.number()), origin); break;
    case Kind::kString:
      PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(value.text().size() / 8)));
      AppendReprOfText(value.text(), out);
      break;
    case Kind::kList: {
      const List& list = value.list();
      if (list.type == ListType::kRange) {
        const std::string step = list.step == 1 ? "" : fmt::format(", {}", list.step);
        out.Append(fmt::format("range({}, {}{})", list.start, list.stop, step), origin);
        break;
      }
      const bool is_tuple = value.is_tuple();
      if (!value.is_plain_list()) out.Append(fmt::format("{}(", value.type_name()), origin);
      out.Append(is_tuple ? "(" : "[", origin);
      for (size_t i = 0; i < list.items.size(); ++i) {
        if (i > 0) out.Append(", ", origin);
        PENSTOCK_RETURN_IF_ERROR(AppendRepr(list.items[i], out));
      }
      if (is_tuple && list.items.size() == 1) out.Append(",", origin);
      out.Append(is_tuple ? ")" : value.is_plain_list() ? "]" : "])", origin);
      break;
    }
    case Kind::kDict: {
      out.Append("{", origin);
      bool first = true;
      for (const auto& [key, item] : value.dict().entries) {
        if (!first) out.Append(", ", origin);
        first = false;
        PENSTOCK_RETURN_IF_ERROR(AppendRepr(key, out));
        out.Append(": ", origin);
        PENSTOCK_RETURN_IF_ERROR(AppendRepr(item, out));
      }
      out.Append("}", origin);
      break;
    }
    case Kind::kIterator: return Fail("a generator cannot be printed; use the filter 'list'");
    case Kind::kCallable: return Fail("a function cannot be printed");
    case Kind::kObject: return Fail("a namespace, cycler or joiner cannot be printed");
    case Kind::kLoop: return Fail("the loop itself cannot be printed");
  }
  return absl::OkStatus();
}

// NOLINTNEXTLINE(misc-no-recursion): values are at most max_depth deep.
absl::Status AppendJson(Interp& interp, const Value& value, const JsonStyle& style, int level, Text& out) {
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(2 + (style.multiline ? level : 0)));
  if (static_cast<int64_t>(out.size()) > interp.max_text_bytes()) return interp.CheckText(out);
  switch (value.kind()) {
    case Kind::kString:
      PENSTOCK_RETURN_IF_ERROR(interp.Charge(static_cast<int64_t>(value.text().size() / 8)));
      AppendJsonString(value.text(), style.ensure_ascii, out);
      return absl::OkStatus();
    case Kind::kNone:
    case Kind::kBool: out.Append(JsonWord(value), value.origin()); return absl::OkStatus();
    case Kind::kInt:
    case Kind::kFloat: out.Append(JsonNumber(value), value.origin()); return absl::OkStatus();
    case Kind::kList: {
      if (!value.is_plain_list()) return interp.Fail("a {} cannot be written as JSON", value.type_name());
      const std::vector<Value>& items = value.list().items;
      out.Append("[", value.origin());
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out.Append(style.item_separator);
        BreakLine(style, level + 1, value.origin(), out);
        PENSTOCK_RETURN_IF_ERROR(AppendJson(interp, items[i], style, level + 1, out));
      }
      if (!items.empty()) BreakLine(style, level, value.origin(), out);
      out.Append("]", value.origin());
      return absl::OkStatus();
    }
    case Kind::kIterator: {
      PENSTOCK_ASSIGN_OR_RETURN(const Value list, interp.RestOf(value));
      return AppendJson(interp, list, style, level, out);
    }
    case Kind::kDict: return AppendJsonObject(interp, value, style, level, out);
    case Kind::kUndefined: return interp.UndefinedError(value);
    default: return interp.Fail("a {} cannot be written as JSON", value.type_name());
  }
}

}  // namespace penstock::jinja
