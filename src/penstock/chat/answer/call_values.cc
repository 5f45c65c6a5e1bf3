#include "penstock/chat/answer/call_values.h"

#include <algorithm>

#include "penstock/base/json.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::string_view kGemmaQuote = "<|\"|>";

std::string Quoted(std::string_view text) {
  return std::string(json::serialize(json::value(json::string_view(text.data(), text.size()))));
}

// Returns the number that the digits before text[pos] end; `base` is 8 or 16. Takes at most `count` of them.
char32_t TakeCode(std::string_view text, size_t& pos, int base, int count) {
  char32_t code = 0;
  for (; count > 0 && pos < text.size(); --count, ++pos) {
    const char c = text[pos];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : base;
    if (digit >= base) break;
    code = code * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
  }
  return code;
}

bool IsSurrogate(char32_t code, char32_t first) { return code >= first && code < first + 0x400; }

void AppendCode(char32_t code, std::string& out) {
  constexpr char32_t kReplacement = 0xFFFD;
  const bool is_valid = code <= 0x10FFFF && !(code >= 0xD800 && code < 0xE000);
  AppendUtf8(is_valid ? code : kReplacement, out);
}

// Returns the text of a Python literal. A backslash that begins no escape stays, as in Python.
std::string Unescaped(std::string_view text) {
  constexpr std::string_view kNames = "abfnrtv\\'\"", kCodes = "\a\b\f\n\r\t\v\\'\"";
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char next = text[pos] == '\\' && pos + 1 < text.size() ? text[pos + 1] : '\0';
    const size_t name = next == '\0' ? std::string_view::npos : kNames.find(next);
    const int num_digits = next == 'x' ? 2 : next == 'u' ? 4 : next == 'U' ? 8 : 0;
    if (next == '\0') {
      out += text[pos++];
    } else if (next == '\n') {
      pos += 2;
    } else if (name != std::string_view::npos) {
      out += kCodes[name];
      pos += 2;
    } else if (num_digits > 0) {
      char32_t code = TakeCode(text, pos += 2, 16, num_digits);
      // JSON writes characters above U+FFFF as two codes.
      if (IsSurrogate(code, 0xD800) && text.substr(pos, 2) == "\\u") {
        size_t end = pos + 2;
        const char32_t low = TakeCode(text, end, 16, 4);
        if (IsSurrogate(low, 0xDC00)) {
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
          pos = end;
        }
      }
      AppendCode(code, out);
    } else if (next >= '0' && next <= '7') {
      AppendCode(TakeCode(text, ++pos, 8, 3), out);
    } else {
      out += text[pos++];
    }
  }
  return out;
}

// Reads a value from the beginning of a text. Each method returns whether it could read on; if not, kind_ says why.
class ValueReader {
 public:
  ValueReader(std::string_view text, bool is_python) : text_(text), is_python_(is_python) {}

  // `equals` stands between a key and its value.
  ValueRead Run(char open, char close, char equals) {
    ValueRead read;
    if (Take(open) && Members(close, equals, 0)) {
      read.num_bytes = pos_;
      kind_ = JsonExtent::Kind::kWhole;
    }
    read.kind = kind_;
    read.json = std::move(json_);
    return read;
  }

 private:
  bool Fail(JsonExtent::Kind kind) {
    kind_ = kind;
    return false;
  }
  std::string_view Rest() const { return text_.substr(pos_); }

  // Skips white space. Returns whether text follows.
  bool HasMore() {
    pos_ = text_.size() - WithoutLeadingSpace(Rest()).size();
    return pos_ < text_.size() || Fail(JsonExtent::Kind::kCutOff);
  }
  bool TakeIf(char c) {
    if (text_[pos_] != c) return false;
    ++pos_;
    return true;
  }
  bool Take(char c) { return HasMore() && (TakeIf(c) || Fail(JsonExtent::Kind::kBroken)); }

  // Reads what stands in brackets, behind the opening one, with `one` for each element.
  template <typename One>
  bool Elements(char close, const One& one) {
    for (bool is_first = true;; is_first = false) {
      if (!HasMore()) return false;
      if (TakeIf(close)) return true;
      if (!is_first) {
        if (!Take(',') || !HasMore()) return false;
        if (TakeIf(close)) return true;
        json_ += ", ";
      }
      if (!one()) return false;
    }
  }

  bool Members(char close, char equals, int depth) {
    json_ += '{';
    const auto member = [&] {
      if (!Key(equals) || !Take(equals)) return false;
      json_ += ": ";
      return Value(depth + 1);
    };
    if (!Elements(close, member)) return false;
    json_ += '}';
    return true;
  }

  bool List(char close, int depth) {
    json_ += '[';
    if (!Elements(close, [&] { return Value(depth + 1); })) return false;
    json_ += ']';
    return true;
  }

  bool Value(int depth) {
    if (depth > kMaxDepth) return Fail(JsonExtent::Kind::kBroken);
    if (!HasMore()) return false;
    if (TakeIf('{')) return Members('}', ':', depth);
    if (TakeIf('[')) return List(']', depth);
    if (is_python_ && TakeIf('(')) return List(')', depth);
    return BeginsText() ? Text() : Word();
  }

  // Reads a key in quotes, or a name. In Python, only arguments have names.
  bool Key(char equals) {
    const bool must_be_text = is_python_ && equals == ':';
    if (must_be_text || BeginsText()) return BeginsText() ? Text() : Fail(JsonExtent::Kind::kBroken);
    const size_t size = Rest().find_first_of("{}[](),:=\"'<>|\n");
    if (size == std::string_view::npos) return Fail(JsonExtent::Kind::kCutOff);
    const std::string_view name = WithoutTrailingSpace(Rest().substr(0, size));
    if (name.empty()) return Fail(JsonExtent::Kind::kBroken);
    json_ += Quoted(name);
    pos_ += size;
    return true;
  }

  bool BeginsText() const { return text_[pos_] == '"' || text_[pos_] == (is_python_ ? '\'' : '<'); }

  bool Text() {
    if (!is_python_ && text_[pos_] == '<') {
      if (!Rest().starts_with(kGemmaQuote)) {
        return Fail(kGemmaQuote.starts_with(Rest()) ? JsonExtent::Kind::kCutOff : JsonExtent::Kind::kBroken);
      }
      const size_t begin = pos_ + kGemmaQuote.size(), end = text_.find(kGemmaQuote, begin);
      if (end == std::string_view::npos) return Fail(JsonExtent::Kind::kCutOff);
      json_ += Quoted(text_.substr(begin, end - begin));
      pos_ = end + kGemmaQuote.size();
      return true;
    }
    const std::string quote(Rest().starts_with(std::string(3, text_[pos_])) && is_python_ ? size_t{3} : size_t{1},
                            text_[pos_]);
    const size_t begin = pos_ + quote.size();
    size_t end = begin;
    while (end < text_.size() && !text_.substr(end).starts_with(quote)) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) return Fail(JsonExtent::Kind::kCutOff);
    const std::string_view inside = text_.substr(begin, end - begin);
    json_ += is_python_ ? Quoted(Unescaped(inside)) : std::string(text_.substr(pos_, end + 1 - pos_));
    pos_ = end + quote.size();
    return true;
  }

  // Reads a number, true, false or null.
  bool Word() {
    const size_t size = std::min(Rest().find_first_of(",]}) \t\r\n"), Rest().size());
    const std::string_view word = Rest().substr(0, size);
    pos_ += size;
    if (pos_ == text_.size()) return Fail(JsonExtent::Kind::kCutOff);
    if (word == "true" || word == "True") {
      json_ += "true";
    } else if (word == "false" || word == "False") {
      json_ += "false";
    } else if (word == "null" || word == "None") {
      json_ += "null";
    } else {
      const absl::StatusOr<json::value> number = ParseJson(word, Fault::kInput);
      if (!number.ok() || !number->is_number()) return Fail(JsonExtent::Kind::kBroken);
      json_ += word;
    }
    return true;
  }

  std::string_view text_;
  size_t pos_ = 0;
  bool is_python_;
  JsonExtent::Kind kind_ = JsonExtent::Kind::kBroken;
  std::string json_;
};

}  // namespace

ValueRead ReadGemmaObject(std::string_view text) { return ValueReader(text, false).Run('{', '}', ':'); }

ValueRead ReadPythonArguments(std::string_view text) { return ValueReader(text, true).Run('(', ')', '='); }

}  // namespace penstock
