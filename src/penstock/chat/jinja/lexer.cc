#include "penstock/chat/jinja/lexer.h"

#include <utf8proc.h>
#include <charconv>
#include <optional>

#include "absl/strings/numbers.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/chat/jinja/text.h"

namespace penstock::jinja {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Returns the number of bytes of the character at `pos` if it can be part of a name, else 0. Letters of any script may
// start a name; digits and marks may follow.
size_t NameCharSize(std::string_view text, size_t pos, bool at_start) {
  if (pos >= text.size()) return 0;
  const DecodedRune rune = DecodeUtf8(text, pos);
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(rune.code_point));
  const bool is_letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
  const bool follows = (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_MC) ||
                       category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_PC;
  const bool fits = is_letter || category == UTF8PROC_CATEGORY_NL || rune.code_point == '_' || (!at_start && follows);
  return fits ? static_cast<size_t>(rune.num_bytes) : 0;
}

bool IsAsciiSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Converts line ends to \n, and drops one at the very end.
std::string NormalizeNewlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text.push_back(source[i]);
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(NormalizeNewlines(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (pos_ < text_.size()) PENSTOCK_RETURN_IF_ERROR(LexRoot());
    Emit(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  std::string_view Rest(size_t pos) const { return std::string_view(text_).substr(pos); }
  bool At(std::string_view what) const { return Rest(pos_).starts_with(what); }

  Token& Emit(TokenKind kind, std::string text = {}) {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
    return tokens_.back();
  }

  template <typename... Args>
  absl::Status Fail(fmt::format_string<Args...> format, Args&&... args) const {
    return ModelError("template line {}: {}", line_, fmt::format(format, std::forward<Args>(args)...));
  }

  void Advance(size_t end) {
    for (; pos_ < end; ++pos_) line_ += text_[pos_] == '\n';
    if (end > 0) line_starting_ = text_[end - 1] == '\n';
  }

  // Reads data up to the next tag, the tag's opening and its content.
  absl::Status LexRoot() {
    size_t tag = pos_;
    while (true) {
      tag = text_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= text_.size()) {
        Emit(TokenKind::kData, text_.substr(pos_));
        Advance(text_.size());
        return absl::OkStatus();
      }
      const char next = text_[tag + 1];
      if (next == '%' || next == '{' || next == '#') break;
      ++tag;
    }
    const char kind = text_[tag + 1];
    size_t body = tag + 2;
    char sign = 0;
    if (body < text_.size() && (text_[body] == '-' || text_[body] == '+')) sign = text_[body++];
    EmitData(tag, sign, kind == '{');
    Advance(body);
    if (kind == '#') return LexComment();
    if (kind == '{') {
      Emit(TokenKind::kVariableBegin);
      return LexTag(true);
    }
    if (std::optional<size_t> raw = MatchRaw(body); raw.has_value()) {
      Advance(*raw);
      return LexRaw();
    }
    Emit(TokenKind::kBlockBegin);
    return LexTag(false);
  }

  // Emits the text in [pos_, tag), stripped as `sign` and lstrip_blocks say.
  void EmitData(size_t tag, char sign, bool is_variable) {
    std::string_view data = Rest(pos_).substr(0, tag - pos_);
    if (sign == '-') {
      data = data.substr(0, SkipSpaceRight(data));
    } else if (sign != '+' && !is_variable) {
      const size_t newline = data.rfind('\n');
      const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line_start > 0 || line_starting_) && SkipSpaceLeft(data.substr(line_start)) == data.size() - line_start) {
        data = data.substr(0, line_start);
      }
    }
    if (!data.empty()) Emit(TokenKind::kData, std::string(data));
  }

  // Skips text after a closing tag: `-` removes white space; the end of a block or comment removes one newline.
  void EatAfterTag(size_t end, char sign, bool trim_newline) {
    if (sign == '-') {
      end += SkipSpaceLeft(Rest(end));
    } else if (trim_newline && sign != '+' && end < text_.size() && text_[end] == '\n') {
      ++end;
    }
    Advance(end);
  }

  absl::Status LexComment() {
    const size_t close = text_.find("#}", pos_);
    if (close == std::string::npos) return Fail("a comment is not closed; expected '#}}'");
    const char before = close > pos_ ? text_[close - 1] : ' ';
    EatAfterTag(close + 2, before == '-' || before == '+' ? before : 0, true);
    return absl::OkStatus();
  }

  // Matches `raw %}` at `pos` (after `{%`), and returns where the raw text starts.
  std::optional<size_t> MatchRaw(size_t pos) const {
    pos += SkipSpaceLeft(Rest(pos));
    if (!Rest(pos).starts_with("raw")) return std::nullopt;
    pos += 3;
    pos += SkipSpaceLeft(Rest(pos));
    if (Rest(pos).starts_with("-%}")) return pos + 3 + SkipSpaceLeft(Rest(pos + 3));
    if (Rest(pos).starts_with("%}")) return pos + 2;
    return std::nullopt;
  }

  absl::Status LexRaw() {
    if (pos_ == text_.size()) return absl::OkStatus();  // Jinja treats an empty comment at the end as closed
    for (size_t tag = text_.find("{%", pos_); tag != std::string::npos; tag = text_.find("{%", tag + 2)) {
      size_t pos = tag + 2;
      char open_sign = 0;
      if (pos < text_.size() && (text_[pos] == '-' || text_[pos] == '+')) open_sign = text_[pos++];
      pos += SkipSpaceLeft(Rest(pos));
      if (!Rest(pos).starts_with("endraw")) continue;
      pos += 6;
      pos += SkipSpaceLeft(Rest(pos));
      char close_sign = 0;
      if (pos < text_.size() && (text_[pos] == '-' || text_[pos] == '+')) close_sign = text_[pos++];
      if (!Rest(pos).starts_with("%}")) continue;
      EmitData(tag, open_sign, false);
      Advance(tag);
      EatAfterTag(pos + 2, close_sign, true);
      return absl::OkStatus();
    }
    return Fail("a raw block is not closed; expected '{{% endraw %}}'");
  }

  absl::Status LexTag(bool is_variable) {
    std::string brackets;  // the closing brackets that are still expected
    while (true) {
      while (pos_ < text_.size() && IsAsciiSpace(text_[pos_])) Advance(pos_ + 1);
      if (pos_ >= text_.size()) return Fail("a tag is not closed; expected '{}'", is_variable ? "}}" : "%}");
      if (brackets.empty()) {
        const std::string_view close = is_variable ? "}}" : "%}";
        const char first = text_[pos_];
        const bool has_sign = first == '-' || (first == '+' && !is_variable);
        if (Rest(pos_ + (has_sign ? 1 : 0)).starts_with(close)) {
          Emit(is_variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd);
          EatAfterTag(pos_ + (has_sign ? 3 : 2), has_sign ? first : 0, !is_variable);
          return absl::OkStatus();
        }
      }
      PENSTOCK_RETURN_IF_ERROR(LexToken(brackets));
    }
  }

  absl::Status LexToken(std::string& brackets) {
    const char c = text_[pos_];
    if (IsDigit(c)) return LexNumber();
    if (c == '\'' || c == '"') return LexString(c);
    if (const size_t first = NameCharSize(text_, pos_, true); first > 0) {
      size_t end = pos_ + first;
      while (const size_t next = NameCharSize(text_, end, false)) end += next;
      Emit(TokenKind::kName, text_.substr(pos_, end - pos_));
      Advance(end);
      return absl::OkStatus();
    }
    static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (std::string_view op : kOperators) {
      if (!At(op)) continue;
      if (op == "(") brackets.push_back(')');
      if (op == "[") brackets.push_back(']');
      if (op == "{") brackets.push_back('}');
      if (op == ")" || op == "]" || op == "}") {
        if (brackets.empty() || brackets.back() != op[0]) return Fail("unexpected '{}'", op);
        brackets.pop_back();
      }
      Emit(TokenKind::kOperator, std::string(op));
      Advance(pos_ + op.size());
      return absl::OkStatus();
    }
    return Fail("unexpected character '{}'", Printable(text_.substr(pos_, 1)));
  }

  // Reads digits from `pos`, with single underscores between them, and appends them to `out` without the underscores.
  size_t TakeDigits(size_t pos, std::string& out) const {
    while (pos < text_.size()) {
      if (IsDigit(text_[pos])) {
        out.push_back(text_[pos++]);
      } else if (text_[pos] == '_' && pos + 1 < text_.size() && IsDigit(text_[pos + 1])) {
        ++pos;
      } else {
        break;
      }
    }
    return pos;
  }

  absl::Status LexNumber() {
    if (text_[pos_] == '0' && pos_ + 1 < text_.size()) {
      const char base = static_cast<char>(text_[pos_ + 1] | 0x20);
      if (base == 'x' || base == 'o' || base == 'b') return LexBased(base == 'x' ? 16 : base == 'o' ? 8 : 2);
    }
    std::string digits;
    size_t pos = TakeDigits(pos_, digits);
    // `list.0.1` is two subscripts, not the number 0.1.
    bool is_float = false;
    if (pos_ == 0 || text_[pos_ - 1] != '.') {
      if (pos + 1 < text_.size() && text_[pos] == '.' && IsDigit(text_[pos + 1])) {
        digits.push_back('.');
        pos = TakeDigits(pos + 1, digits);
        is_float = true;
      }
      if (pos < text_.size() && (text_[pos] | 0x20) == 'e') {
        size_t exponent = pos + 1;
        std::string sign;
        if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) sign = text_[exponent++];
        if (exponent < text_.size() && IsDigit(text_[exponent])) {
          digits += "e" + sign;
          pos = TakeDigits(exponent, digits);
          is_float = true;
        }
      }
    }
    if (is_float) {
      double number = 0;
      if (!absl::SimpleAtod(digits, &number)) return Fail("'{}' is not a number", digits);
      Emit(TokenKind::kFloat).number = number;
    } else {
      int64_t integer = 0;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), integer);
      if (error != std::errc()) return Fail("the integer {} does not fit 64 bits", digits.substr(0, 40));
      Emit(TokenKind::kInteger).integer = integer;
    }
    Advance(pos);
    return absl::OkStatus();
  }

  absl::Status LexBased(int base) {
    int64_t value = 0;
    size_t pos = pos_ + 2;
    size_t num_digits = 0;
    for (; pos < text_.size(); ++pos) {
      if (text_[pos] == '_') continue;
      const int digit = HexDigit(text_[pos]);
      if (digit < 0 || digit >= base) break;
      if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) {
        return Fail("an integer does not fit 64 bits");
      }
      ++num_digits;
    }
    if (num_digits == 0) return Fail("digits are missing after '{}'", text_.substr(pos_, 2));
    Emit(TokenKind::kInteger).integer = value;
    Advance(pos);
    return absl::OkStatus();
  }

  absl::Status LexString(char quote) {
    size_t end = pos_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) return Fail("a string is not closed; expected {}", quote);
    std::string value;
    for (size_t i = pos_ + 1; i < end;) {
      if (text_[i] != '\\') {
        value.push_back(text_[i++]);
      } else {
        PENSTOCK_RETURN_IF_ERROR(LexEscape(i, end, value));
      }
    }
    Emit(TokenKind::kString, std::move(value));
    Advance(end + 1);
    return absl::OkStatus();
  }

  // Reads one escape as Python spells them; an unknown escape stays unchanged.
  absl::Status LexEscape(size_t& i, size_t end, std::string& value) const {
    const char c = text_[i + 1];
    static constexpr std::string_view kNames = "abfnrtv\\'\"";
    static constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t known = kNames.find(c); known != std::string_view::npos) {
      value.push_back(kValues[known]);
      i += 2;
      return absl::OkStatus();
    }
    i += 2;
    if (c == '\n') return absl::OkStatus();
    if (c >= '0' && c <= '7') {
      int code = c - '0';
      for (int n = 1; n < 3 && i < end && text_[i] >= '0' && text_[i] <= '7'; ++n) code = code * 8 + text_[i++] - '0';
      AppendUtf8(static_cast<char32_t>(code), value);
      return absl::OkStatus();
    }
    const int num_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 'N') return Fail("\\N escapes are not implemented");
    if (num_digits == 0) {
      value.push_back('\\');
      --i;  // the character itself is ordinary text
      value.push_back(text_[i++]);
      return absl::OkStatus();
    }
    uint64_t code = 0;
    for (int n = 0; n < num_digits; ++n, ++i) {
      const int digit = i < end ? HexDigit(text_[i]) : -1;
      if (digit < 0) return Fail("a \\{} escape needs {} hexadecimal digits", c, num_digits);
      code = code * 16 + static_cast<uint64_t>(digit);
    }
    if (code > 0x10FFFF) return Fail("a \\U escape is beyond U+10FFFF");
    const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    AppendUtf8(surrogate ? U'\uFFFD' : static_cast<char32_t>(code), value);
    return absl::OkStatus();
  }

  std::string text_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd: return "end of template";
    case TokenKind::kData: return "template text";
    case TokenKind::kVariableBegin: return "'{{'";
    case TokenKind::kVariableEnd: return "'}}'";
    case TokenKind::kBlockBegin: return "'{%'";
    case TokenKind::kBlockEnd: return "'%}'";
    case TokenKind::kString: return "a string";
    case TokenKind::kInteger:
    case TokenKind::kFloat: return "a number";
    case TokenKind::kName:
    case TokenKind::kOperator: return "'" + token.text.substr(0, 60) + "'";
  }
  return "a token";
}

}  // namespace penstock::jinja
