// Formats `pattern % arguments` and `pattern.format(arguments)`. Inserted text keeps its origin.
#include <algorithm>
#include <cmath>

#include "penstock/base/text.h"
#include "penstock/chat/jinja/print.h"

namespace penstock::jinja {
namespace {

struct Spec {
  char align = 0;  // '<', '>', '^' or 0 for the default of the type
  std::string fill = " ";
  bool plus = false;
  bool blank = false;
  bool zero = false;
  bool alternate = false;
  bool comma = false;
  int width = 0;
  int precision = -1;
  char type = 0;
};

constexpr int kMaxWidth = 10'000;

// Reads a capped number at `pos`, and moves `pos` behind it.
int TakeNumber(std::string_view text, size_t& pos) {
  int number = 0;
  for (; pos < text.size() && text[pos] >= '0' && text[pos] <= '9'; ++pos) {
    number = std::min(number * 10 + (text[pos] - '0'), kMaxWidth + 1);
  }
  return number;
}

std::string GroupDigits(const std::string& number) {
  const size_t start = number.find_first_of("0123456789");
  size_t end = number.find_first_not_of("0123456789", start);
  if (end == std::string::npos) end = number.size();
  std::string grouped = number;
  for (size_t at = end; at > start + 3;) grouped.insert(at -= 3, ",");
  return grouped;
}

// Formats a number in the style of `spec.type`; returns "" if the type does not fit.
std::string FormatNumber(const Value& value, const Spec& spec) {
  const char type = spec.type;
  std::string digits;
  if (type == 'f' || type == 'F' || type == 'e' || type == 'E' || type == 'g' || type == 'G') {
    const int precision = spec.precision < 0 ? 6 : spec.precision;
    const double number = value.number();
    switch (type) {
      case 'f':
      case 'F': digits = fmt::format("{:.{}f}", number, precision); break;
      case 'e': digits = fmt::format("{:.{}e}", number, precision); break;
      case 'E': digits = fmt::format("{:.{}E}", number, precision); break;
      case 'g': digits = fmt::format("{:.{}g}", number, precision); break;
      default: digits = fmt::format("{:.{}G}", number, precision); break;
    }
  } else if (value.Is(Kind::kFloat) && type == 0) {
    digits = FloatText(value.number());
  } else if (value.Is(Kind::kFloat)) {
    return "";
  } else {
    const int64_t number = value.integer();
    switch (type) {
      case 'x': digits = fmt::format("{:x}", number); break;
      case 'X': digits = fmt::format("{:X}", number); break;
      case 'o': digits = fmt::format("{:o}", number); break;
      case 'b': digits = fmt::format("{:b}", number); break;
      default: digits = fmt::format("{}", number); break;
    }
    if (spec.alternate && type != 'd') digits.insert(digits[0] == '-' ? 1 : 0, std::string("0") + type);
  }
  if (spec.comma) digits = GroupDigits(digits);
  if (digits[0] != '-' && spec.plus) digits.insert(0, "+");
  if (digits[0] != '-' && !spec.plus && spec.blank) digits.insert(0, " ");
  return digits;
}

// Pads `text` to the width; pads with zeros after the sign if the spec says so.
Text Pad(Text text, const Spec& spec, char default_align, bool is_number, Origin origin) {
  const int64_t pad = spec.width - NumRunes(text.bytes());
  if (pad <= 0) return text;
  if (is_number && spec.zero && spec.align == 0) {
    const size_t sign = text.bytes().find_first_of("+- ") == 0 ? 1 : 0;
    Text out = text.Sub(0, sign);
    out.Append(std::string(pad, '0'), origin);
    out.Append(text, sign, text.size());
    return out;
  }
  const char align = spec.align != 0 ? spec.align : default_align;
  const int64_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
  Text out;
  for (int64_t i = 0; i < left; ++i) out.Append(spec.fill, origin);
  out.Append(text);
  for (int64_t i = left; i < pad; ++i) out.Append(spec.fill, origin);
  return out;
}

absl::StatusOr<Text> FormatOne(Interp& interp, const Value& value, const Spec& spec, char default_align,
                               Origin origin) {
  if (spec.width > kMaxWidth || spec.precision > kMaxWidth) {
    return interp.Fail("a width or precision is more than {}", kMaxWidth);
  }
  static constexpr std::string_view kNumberTypes = "diufFeEgGxXob";
  if (kNumberTypes.find(spec.type) != std::string_view::npos || (spec.type == 0 && value.Is(Kind::kFloat))) {
    if (value.Is(Kind::kUndefined)) return interp.UndefinedError(value);
    if (!value.is_number()) return interp.Fail("a {} cannot be formatted as a number", value.type_name());
    if (spec.precision > 300) return interp.Fail("a precision of {} is too large", spec.precision);
    const std::string digits = FormatNumber(value, spec);
    if (digits.empty()) return interp.Fail("a float cannot be formatted as an integer");
    return Pad(Text(digits, Mixed(origin, value.origin())), spec, '>', true, origin);
  }
  Text text;
  if (spec.type == 'r') {
    PENSTOCK_RETURN_IF_ERROR(interp.AppendRepr(value, text));
  } else {
    PENSTOCK_RETURN_IF_ERROR(interp.AppendStr(value, text));
  }
  if (spec.precision >= 0) text = text.Sub(0, RuneOffset(text.bytes(), spec.precision));
  return Pad(std::move(text), spec, default_align, false, origin);
}

// The arguments of `%`: a tuple's items in turn, a dict's items by name, or a single value.
struct PercentArgs {
  const Value& arguments;
  size_t next = 0;

  absl::StatusOr<Value> Next(Interp& interp) {
    const bool is_tuple = arguments.Is(Kind::kList) && arguments.is_tuple();
    const size_t size = is_tuple ? arguments.list().items.size() : 1;
    if (next >= size) return interp.Fail("a format has more conversions than arguments");
    ++next;
    return is_tuple ? arguments.list().items[next - 1] : arguments;
  }

  absl::StatusOr<Value> Named(Interp& interp, std::string_view name) {
    if (!arguments.Is(Kind::kDict)) return interp.Fail("a format with names needs a dict");
    next = 1;
    const Value* value = arguments.dict().FindText(name);
    if (value == nullptr) return interp.Fail("a format names '{}', which is not given", name);
    return *value;
  }

  bool AllUsed() const {
    if (arguments.Is(Kind::kDict)) return true;
    return next >= (arguments.Is(Kind::kList) && arguments.is_tuple() ? arguments.list().items.size() : 1);
  }
};

void ReadPercentFlags(std::string_view bytes, size_t& pos, Spec& spec) {
  for (; pos < bytes.size(); ++pos) {
    switch (bytes[pos]) {
      case '-': spec.align = '<'; continue;
      case '+': spec.plus = true; continue;
      case ' ': spec.blank = true; continue;
      case '0': spec.zero = true; continue;
      case '#': spec.alternate = true; continue;
      default: return;
    }
  }
}

}  // namespace

Result FormatPercent(Interp& interp, const Text& pattern, const Value& arguments) {
  const std::string& bytes = pattern.bytes();
  const Origin origin = pattern.AnyOrigin();
  PENSTOCK_RETURN_IF_ERROR(interp.CheckText(pattern));
  PercentArgs args{arguments};
  Text out;
  size_t pos = 0;
  while (true) {
    const size_t percent = std::min(bytes.find('%', pos), bytes.size());
    out.Append(pattern, pos, percent);
    if (percent == bytes.size()) break;
    pos = percent + 1;
    PENSTOCK_RETURN_IF_ERROR(interp.Charge(4));
    Spec spec;
    Value value;
    bool has_value = false;
    if (pos < bytes.size() && bytes[pos] == '(') {
      const size_t close = bytes.find(')', pos);
      if (close == std::string::npos) return interp.Fail("a format's name is not closed");
      PENSTOCK_ASSIGN_OR_RETURN(value, args.Named(interp, std::string_view(bytes).substr(pos + 1, close - pos - 1)));
      has_value = true;
      pos = close + 1;
    }
    ReadPercentFlags(bytes, pos, spec);
    spec.width = TakeNumber(bytes, pos);
    if (pos < bytes.size() && bytes[pos] == '.') spec.precision = TakeNumber(bytes, ++pos);
    if (pos >= bytes.size()) return interp.Fail("a format ends inside of a conversion");
    spec.type = bytes[pos++];
    if (spec.type == '%') {
      out.Append("%", origin);
      continue;
    }
    if (std::string_view("srdiufFeEgGxXo").find(spec.type) == std::string_view::npos) {
      return interp.Fail("a format has an unknown conversion");
    }
    if (!has_value) {
      PENSTOCK_ASSIGN_OR_RETURN(value, args.Next(interp));
    }
    if ((spec.type == 'd' || spec.type == 'i' || spec.type == 'u') && value.Is(Kind::kFloat)) {
      if (!std::isfinite(value.number())) return interp.Fail("{} is no integer", FloatText(value.number()));
      value = Value::Float(std::trunc(value.number()), value.origin());
      spec.type = 'f';
      spec.precision = 0;
    }
    PENSTOCK_ASSIGN_OR_RETURN(const Text part, FormatOne(interp, value, spec, '>', origin));
    out.Append(part);
    if (static_cast<int64_t>(out.size()) > interp.max_text_bytes()) break;
  }
  if (!args.AllUsed() && static_cast<int64_t>(out.size()) <= interp.max_text_bytes()) {
    return interp.Fail("not all arguments of a format are used");
  }
  return interp.MakeString(std::move(out));
}

namespace {

// Evaluates `name.attribute[item]` in a replacement field.
Result FieldValue(Interp& interp, std::string_view field, const Args& args, size_t& next_idx) {
  const size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string_view first = field.substr(0, end);
  Value value;
  const bool is_index = first.find_first_not_of("0123456789") == first.npos;
  if (is_index) {
    size_t digits = 0;
    const size_t i = first.empty() ? next_idx++ : static_cast<size_t>(TakeNumber(first, digits));
    if (i >= args.positional.size()) return interp.Fail("a format has more fields than arguments");
    value = args.positional[i];
  } else {
    PENSTOCK_RETURN_IF_ERROR(interp.Charge(static_cast<int64_t>(args.named.size() / 4)));
    const auto named =
        std::find_if(args.named.begin(), args.named.end(), [first](const auto& arg) { return arg.first == first; });
    if (named == args.named.end()) return interp.Fail("a format names '{}', which is not given", first);
    value = named->second;
  }
  std::string_view rest = field.substr(end);
  while (!rest.empty()) {
    PENSTOCK_RETURN_IF_ERROR(interp.Charge(1));
    if (rest[0] == '.') {
      const size_t stop = std::min(rest.find_first_of(".[", 1), rest.size());
      PENSTOCK_ASSIGN_OR_RETURN(value, interp.GetAttr(value, rest.substr(1, stop - 1)));
      rest.remove_prefix(stop);
    } else {
      const size_t close = rest.find(']');
      if (close == rest.npos) return interp.Fail("a format's '[' is not closed");
      const std::string_view key = rest.substr(1, close - 1);
      size_t digits = 0;
      const bool is_number = !key.empty() && key.size() < 5 && key.find_first_not_of("0123456789") == key.npos;
      PENSTOCK_ASSIGN_OR_RETURN(
          value, interp.GetItem(value, is_number ? Value::Int(TakeNumber(key, digits)) : Value::String(key)));
      rest.remove_prefix(close + 1);
    }
  }
  return value;
}

absl::StatusOr<Spec> ReadBraceSpec(Interp& interp, std::string_view text) {
  Spec spec;
  size_t pos = 0;
  bool has_fill = false;
  if (!text.empty()) {
    const size_t fill_bytes = DecodeUtf8(text, 0).num_bytes;
    const auto is_align = [text](size_t at) {
      return at < text.size() && (text[at] == '<' || text[at] == '>' || text[at] == '^');
    };
    if (is_align(fill_bytes)) {
      spec.fill = text.substr(0, fill_bytes);
      spec.align = text[fill_bytes];
      pos = fill_bytes + 1;
      has_fill = true;
    } else if (is_align(0)) {
      spec.align = text[0];
      pos = 1;
    }
  }
  for (; pos < text.size() && (text[pos] == '+' || text[pos] == ' ' || text[pos] == '#' || text[pos] == '0'); ++pos) {
    spec.plus |= text[pos] == '+';
    spec.blank |= text[pos] == ' ';
    spec.alternate |= text[pos] == '#';
    spec.zero |= text[pos] == '0';
  }
  if (spec.zero && !has_fill) spec.fill = "0";
  spec.width = TakeNumber(text, pos);
  if (pos < text.size() && text[pos] == ',') {
    spec.comma = true;
    ++pos;
  }
  if (pos < text.size() && text[pos] == '.') spec.precision = TakeNumber(text, ++pos);
  if (pos < text.size()) spec.type = text[pos++];
  const bool known = spec.type == 0 || std::string_view("sdfFeEgGxXob").find(spec.type) != std::string_view::npos;
  if (pos != text.size() || !known) {
    return interp.Fail("the format '{}' is not implemented", Printable(text));
  }
  return spec;
}

}  // namespace

Result FormatBraces(Interp& interp, const Text& pattern, const Args& args) {
  const std::string_view bytes = pattern.bytes();
  const Origin origin = pattern.AnyOrigin();
  PENSTOCK_RETURN_IF_ERROR(interp.CheckText(pattern));
  Text out;
  size_t next_idx = 0;
  for (size_t pos = 0; pos < bytes.size();) {
    const size_t brace = std::min(bytes.find_first_of("{}", pos), bytes.size());
    out.Append(pattern, pos, brace);
    if (brace == bytes.size()) break;
    PENSTOCK_RETURN_IF_ERROR(interp.Charge(4));
    if (static_cast<int64_t>(out.size()) > interp.max_text_bytes()) return interp.CheckText(out);
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.Append(pattern, brace, brace + 1);
      pos = brace + 2;
      continue;
    }
    const size_t close = bytes.find_first_of("{}", brace + 1);
    if (bytes[brace] == '}' || close == bytes.npos || bytes[close] == '{') {
      return interp.Fail("a brace in a format has no partner");
    }
    std::string_view field = bytes.substr(brace + 1, close - brace - 1);
    pos = close + 1;
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string_view spec_text = field.substr(std::min(colon + 1, field.size()));
    field = field.substr(0, colon);
    const size_t bang = std::min(field.find('!'), field.size());
    const std::string_view conversion = field.substr(bang);
    PENSTOCK_ASSIGN_OR_RETURN(Value value, FieldValue(interp, field.substr(0, bang), args, next_idx));
    PENSTOCK_ASSIGN_OR_RETURN(Spec spec, ReadBraceSpec(interp, spec_text));
    if (conversion == "!r" || conversion == "!s") {
      Text text;
      PENSTOCK_RETURN_IF_ERROR(conversion == "!r" ? interp.AppendRepr(value, text) : interp.AppendStr(value, text));
      value = Value::String(std::move(text));
    } else if (!conversion.empty()) {
      return interp.Fail("a format's conversion must be !r or !s");
    }
    const bool number_align = value.is_number() && !value.Is(Kind::kBool);
    if (number_align && spec.type == 0 && value.Is(Kind::kFloat) && spec.precision >= 0) {
      return interp.Fail("a precision of a float needs a type, such as 'f'");
    }
    if (!spec_text.empty() && !value.Is(Kind::kString) && !value.is_number()) {
      return interp.Fail("a {} cannot be formatted as '{}'", value.type_name(), Printable(spec_text));
    }
    if (value.Is(Kind::kString) && (spec.plus || spec.blank || spec.alternate || spec.comma)) {
      return interp.Fail("a str cannot be formatted as '{}'", Printable(spec_text));
    }
    if (spec.type == 's' && value.is_number()) return interp.Fail("a {} has no format 's'", value.type_name());
    if (value.Is(Kind::kBool) && !spec_text.empty()) value = Value::Int(value.integer(), value.origin());
    if (value.Is(Kind::kInt) && spec.type == 0) spec.type = 'd';
    PENSTOCK_ASSIGN_OR_RETURN(const Text part, FormatOne(interp, value, spec, number_align ? '>' : '<', origin));
    out.Append(part);
  }
  return interp.MakeString(std::move(out));
}

}  // namespace penstock::jinja
