// Filters that return text. Each keeps the origin of every character.
#include <algorithm>

#include "penstock/base/text.h"
#include "penstock/chat/jinja/builtins.h"
#include "penstock/chat/jinja/print.h"

namespace penstock::jinja {
namespace {

Result FilterUpper(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  Text upper;
  for (RuneReader reader(text); !reader.done();) {
    const auto [c, origin] = reader.Next();
    AppendUpper(c, origin, upper);
  }
  return interp.MakeString(std::move(upper));
}

Result FilterLower(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  return interp.MakeString(ToLower(text));
}

Result Capitalize(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  Text result;
  for (RuneReader reader(text); !reader.done();) {
    const bool first = reader.pos() == 0;
    const auto [c, origin] = reader.Next();
    first ? AppendTitle(c, origin, result) : AppendLower(c, origin, result);
  }
  return interp.MakeString(std::move(result));
}

// In Jinja's title case, a word starts after white space and after - ( { [ <.
Result Title(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  Text result;
  bool starts = true;
  for (RuneReader reader(text); !reader.done();) {
    const auto [c, origin] = reader.Next();
    starts ? AppendUpper(c, origin, result) : AppendLower(c, origin, result);
    starts = IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  }
  return interp.MakeString(std::move(result));
}

Result Trim(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  const Text* characters = nullptr;
  if (args.Has(1) && !args[1].Is(Kind::kNone)) {
    PENSTOCK_ASSIGN_OR_RETURN(characters, TextArg(interp, args, 1));
  }
  return interp.MakeString(Trimmed(text, characters, true, true));
}

Result Replace(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  PENSTOCK_ASSIGN_OR_RETURN(const Text from, interp.ToText(args[1]));
  PENSTOCK_ASSIGN_OR_RETURN(const Text to, interp.ToText(args[2]));
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t count, IntOr(interp, args, 3, -1));
  PENSTOCK_ASSIGN_OR_RETURN(Text result, Replaced(interp, text, from, to, count));
  return Value::String(std::move(result));
}

Result ToString(Interp& interp, Bound& args) {
  if (args[0].Is(Kind::kString)) return args[0];
  PENSTOCK_ASSIGN_OR_RETURN(Text text, interp.ToText(args[0]));
  return interp.MakeString(std::move(text));
}

Result MakeMarkup(Interp& interp, Text text) {
  PENSTOCK_RETURN_IF_ERROR(interp.CheckText(text));
  return Value::Markup(std::move(text));
}

Result Safe(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(Text text, interp.ToText(args[0]));
  return MakeMarkup(interp, std::move(text));
}

Result ForceEscape(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  return MakeMarkup(interp, Escaped(text));
}

Result Escape(Interp& interp, Bound& args) { return args[0].is_markup() ? args[0] : ForceEscape(interp, args); }

Result Indent(Interp& interp, Bound& args) {
  if (args[0].Is(Kind::kUndefined)) return interp.UndefinedError(args[0]);
  if (!args[0].Is(Kind::kString)) return interp.Fail("indent needs a str, found {}", args[0].type_name());
  PENSTOCK_ASSIGN_OR_RETURN(Text text, interp.ToText(args[0]));
  Text indent;
  if (args.Has(1) && args[1].Is(Kind::kString)) {
    indent = args[1].text();
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t width, IntOr(interp, args, 1, 4));
    if (width > interp.max_text_bytes()) return interp.Fail("an indent of {} is too wide", width);
    indent.Append(std::string(std::max<int64_t>(width, 0), ' '), Origin::kTemplate);
  }
  const bool first = TruthOr(args, 2, false);
  const bool blank = TruthOr(args, 3, false);
  text.Append("\n", Origin::kTemplate);  // so that a newline at the end of the text is kept
  Text out;
  if (first) out.Append(indent);
  const std::vector<LineRange> lines = SplitLines(text.bytes());
  for (size_t i = 0; i < lines.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(interp.Charge(2 + static_cast<int64_t>(indent.size() / 32)));
    if (static_cast<int64_t>(out.size()) > interp.max_text_bytes()) return interp.CheckText(out);
    if (i > 0) out.Append("\n", Origin::kTemplate);
    if (i > 0 && (blank || lines[i].end > lines[i].begin)) out.Append(indent);
    out.Append(text, lines[i].begin, lines[i].end);
  }
  return interp.MakeString(std::move(out));
}

Result Truncate(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t length, IntOr(interp, args, 1, 255));
  const bool kill_words = TruthOr(args, 2, false);
  Text end("...", Origin::kTemplate);
  if (args.Has(3)) {
    PENSTOCK_ASSIGN_OR_RETURN(end, interp.ToText(args[3]));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t leeway, IntOr(interp, args, 4, 5));
  const int64_t end_length = NumRunes(end.bytes());
  if (length < end_length) return interp.Fail("truncate: the length {} is less than that of its end text", length);
  if (leeway < 0) return interp.Fail("the leeway of truncate is negative");
  if (!args[0].Is(Kind::kString)) {
    // Python compares the length first, so it returns a short value of any type unchanged.
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t size, interp.Length(args[0]));
    if (size - leeway <= length) return args[0];
    return interp.Fail("truncate needs a str, found {}", args[0].type_name());
  }
  // Subtracting avoids an overflow: length and leeway may both be near the largest integer.
  if (NumRunes(text.bytes()) - leeway <= length) return interp.MakeString(text);
  const size_t cut = RuneOffset(text.bytes(), length - end_length);
  Text result = text.Sub(0, cut);
  if (!kill_words) {
    const size_t blank = result.bytes().rfind(' ');
    if (blank != std::string::npos) result = result.Sub(0, blank);
  }
  result.Append(end);
  return interp.MakeString(std::move(result));
}

Result Center(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t width, IntOr(interp, args, 1, 80));
  if (width > interp.max_text_bytes()) return interp.Fail("a width of {} is too wide", width);
  const int64_t pad = std::max<int64_t>(std::max<int64_t>(width, 0) - NumRunes(text.bytes()), 0);
  const int64_t left = pad / 2 + (pad & width & 1);
  Text out(std::string(left, ' '), Origin::kTemplate);
  out.Append(text);
  out.Append(std::string(pad - left, ' '), Origin::kTemplate);
  return interp.MakeString(std::move(out));
}

Result WordCount(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  PENSTOCK_RETURN_IF_ERROR(interp.CheckText(text));
  int64_t count = 0;
  bool in_word = false;
  for (RuneReader reader(text); !reader.done();) {
    const bool is_word = IsWordRune(reader.Next().first);
    count += is_word && !in_word;
    in_word = is_word;
  }
  return Value::Int(count);
}

Result Format(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text pattern, interp.ToText(args[0]));
  if (!args.rest.named.empty() && !args.rest.positional.empty()) {
    return interp.Fail("format takes positional or named arguments, not both");
  }
  if (!args.rest.named.empty()) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [name, value] : args.rest.named) entries.emplace_back(Value::String(name), std::move(value));
    PENSTOCK_ASSIGN_OR_RETURN(const Value dict, interp.MakeDict(std::move(entries)));
    return FormatPercent(interp, pattern, dict);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Value tuple, interp.MakeTuple(std::move(args.rest.positional)));
  return FormatPercent(interp, pattern, tuple);
}

absl::StatusOr<JsonStyle> ReadJsonStyle(Interp& interp, Bound& args) {
  JsonStyle style;
  style.ensure_ascii = TruthOr(args, 1, false);
  style.sort_keys = TruthOr(args, 4, false);
  style.multiline = args.Has(2) && !args[2].Is(Kind::kNone);
  if (style.multiline && args[2].Is(Kind::kString)) {
    style.indent = args[2].text();
  } else if (style.multiline) {
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t width, IntOr(interp, args, 2, 0));
    if (width > 1000) return interp.Fail("an indent of {} is too wide", width);
    style.indent.Append(std::string(std::max<int64_t>(width, 0), ' '), Origin::kTemplate);
  }
  if (style.indent.size() > 1000) return interp.Fail("an indent of {} bytes is too wide", style.indent.size());
  style.item_separator.Append(style.multiline ? "," : ", ", Origin::kTemplate);
  style.key_separator.Append(": ", Origin::kTemplate);
  if (args.Has(3) && !args[3].Is(Kind::kNone)) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Value> parts, interp.Iterate(args[3]));
    if (parts.size() != 2 || !parts[0].Is(Kind::kString) || !parts[1].Is(Kind::kString)) {
      return interp.Fail("the separators of tojson must be two strings");
    }
    style.item_separator = parts[0].text();
    style.key_separator = parts[1].text();
    if (style.item_separator.size() + style.key_separator.size() > 1000) {
      return interp.Fail("the separators of tojson are too long");
    }
  }
  return style;
}

Result ToJson(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(JsonStyle style, ReadJsonStyle(interp, args));
  // Separators stand inside the value. If a message shaped the value, they count as the message's text.
  if (args[0].origin() == Origin::kMessage) {
    for (Text* part : {&style.item_separator, &style.key_separator, &style.indent}) {
      *part = Text(part->bytes(), Origin::kMessage);
    }
  }
  Text out;
  PENSTOCK_RETURN_IF_ERROR(AppendJson(interp, args[0], style, 0, out));
  return interp.MakeString(std::move(out));
}

constexpr Builtin kTextFilters[] = {
    {"upper", "s", 1, FilterUpper},
    {"lower", "s", 1, FilterLower},
    {"capitalize", "s", 1, Capitalize},
    {"title", "s", 1, Title},
    {"trim", "value chars", 1, Trim},
    {"replace", "s old new count", 3, Replace},
    {"string", "object", 1, ToString},
    {"safe", "value", 1, Safe},
    {"escape", "s", 1, Escape},
    {"e", "s", 1, Escape},
    {"forceescape", "value", 1, ForceEscape},
    {"indent", "s width first blank", 1, Indent},
    {"truncate", "s length killwords end leeway", 1, Truncate},
    {"center", "value width", 1, Center},
    {"wordcount", "s", 1, WordCount},
    {"format", "value *", 1, Format},
    {"tojson", "x ensure_ascii indent separators sort_keys", 1, ToJson},
};

}  // namespace

std::span<const Builtin> TextFilters() { return kTextFilters; }

}  // namespace penstock::jinja
