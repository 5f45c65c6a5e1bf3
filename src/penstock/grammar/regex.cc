#include "penstock/grammar/regex.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "penstock/base/text.h"

namespace penstock::grammar {
namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// A branch of alternatives. With an anchor, no text may stand outside of it on that side.
struct Alternative {
  ExprId expr = 0;
  bool anchored_begin = false;
  bool anchored_end = false;
};

class RegexParser {
 public:
  RegexParser(std::string_view pattern, Spelling spelling, Grammar& grammar)
      : text_(pattern), spelling_(spelling), grammar_(grammar) {}

  absl::StatusOr<std::vector<Alternative>> Run() {
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<Alternative> alternatives, ParseAlternatives(0));
    if (pos_ < text_.size()) return Refuse("a ) without its (");
    return alternatives;
  }

 private:
  template <typename... Args>
  absl::Status Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    return InputError("column {}: {}", pos_ + 1, fmt::format(format, std::forward<Args>(args)...));
  }
  bool At(std::string_view text) const { return text_.substr(pos_).starts_with(text); }
  bool Take(std::string_view text) {
    if (!At(text)) return false;
    pos_ += text.size();
    return true;
  }

  absl::StatusOr<std::vector<Alternative>> ParseAlternatives(int depth) {
    if (depth > kMaxGrammarDepth) return Refuse("groups are nested deeper than {}", kMaxGrammarDepth);
    std::vector<Alternative> all;
    do {
      PENSTOCK_RETURN_IF_ERROR(ParseAlternative(depth, all));
    } while (Take("|"));
    return all;
  }

  // An atom: an expression, or the alternatives of a group.
  struct Atom {
    ExprId expr = 0;
    std::vector<Alternative> group = {};
    bool has_anchors() const {
      return std::ranges::any_of(group, [](const Alternative& a) { return a.anchored_begin || a.anchored_end; });
    }
  };

  absl::Status ParseAlternative(int depth, std::vector<Alternative>& all) {
    const bool begins = Take("^");
    bool ends = false;
    std::vector<ExprId> parts;
    while (pos_ < text_.size() && !At("|") && !At(")")) {
      const size_t start = pos_;
      if (Take("$")) {
        if (pos_ < text_.size() && !At("|") && !At(")")) return Refuse("$ is only supported at the end");
        ends = true;
        break;
      }
      PENSTOCK_ASSIGN_OR_RETURN(Atom atom, ParseAtom(depth));
      PENSTOCK_ASSIGN_OR_RETURN(const bool is_repeated, ParseRepeat(atom.expr));
      if (atom.has_anchors()) {
        const bool is_all = parts.empty() && !begins && !is_repeated && (pos_ == text_.size() || At("|") || At(")"));
        if (!is_all) {
          pos_ = start;
          return Refuse("anchors are only supported at the ends of the pattern");
        }
        all.insert(all.end(), atom.group.begin(), atom.group.end());
        return absl::OkStatus();
      }
      parts.push_back(atom.expr);
    }
    all.push_back({grammar_.Sequence(std::move(parts)), begins, ends});
    return absl::OkStatus();
  }

  absl::StatusOr<Atom> ParseAtom(int depth) {
    if (At("(")) return ParseGroup(depth);
    if (At("[")) {
      PENSTOCK_ASSIGN_OR_RETURN(CodeSet set, ParseClass());
      return Atom{grammar_.Set(std::move(set), spelling_)};
    }
    if (Take(".")) return Atom{grammar_.Set(AnyButNewline(), spelling_)};
    if (At("*") || At("+") || At("?")) return Refuse("nothing to repeat before {}", text_[pos_]);
    if (At("^")) return Refuse("^ is only supported at the beginning");
    if (At("{")) {
      const size_t close = text_.find('}', pos_);
      const std::string_view inside = text_.substr(pos_ + 1, close == std::string_view::npos ? 0 : close - pos_ - 1);
      const bool is_repeat =
          !inside.empty() && std::ranges::all_of(inside, [](char c) { return IsDigit(c) || c == ','; });
      if (is_repeat) return Refuse("nothing to repeat before {{");
    }
    PENSTOCK_ASSIGN_OR_RETURN(CodeSet set, At("\\") ? ParseEscape() : ParseCharacter());
    return Atom{grammar_.Set(std::move(set), spelling_)};
  }

  absl::StatusOr<Atom> ParseGroup(int depth) {
    Take("(");
    if (Take("?")) {
      if (At("=") || At("!") || At("<=") || At("<!")) return Refuse("look-around is not supported");
      if (Take("P<") || Take("<")) {
        while (pos_ < text_.size() && (IsLetter(text_[pos_]) || IsDigit(text_[pos_]) || text_[pos_] == '_')) ++pos_;
        if (!Take(">")) return Refuse("expected > after the name of a group");
      } else if (!Take(":")) {
        return Refuse("flags and other groups with ? are not supported");
      }
    }
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<Alternative> group, ParseAlternatives(depth + 1));
    if (!Take(")")) return Refuse("a ( without its )");
    std::vector<ExprId> exprs;
    for (const Alternative& alternative : group) exprs.push_back(alternative.expr);
    return Atom{grammar_.Choice(std::move(exprs)), std::move(group)};
  }

  // Returns whether the expression is repeated.
  absl::StatusOr<bool> ParseRepeat(ExprId& expr) {
    int32_t min = 0, max = kUnbounded;
    if (Take("*")) {
      min = 0;
    } else if (Take("+")) {
      min = 1;
    } else if (Take("?")) {
      max = 1;
    } else {
      PENSTOCK_ASSIGN_OR_RETURN(const bool has_braces, ParseBraces(min, max));
      if (!has_braces) return false;
    }
    Take("?");  // lazy
    if (At("*") || At("+") || At("?")) return Refuse("a repetition of a repetition is not supported; use a group");
    expr = grammar_.Repeat(expr, min, max);
    return true;
  }

  absl::StatusOr<bool> ParseBraces(int32_t& min, int32_t& max) {
    const size_t start = pos_;
    if (!Take("{")) return false;
    const auto number = [&]() -> std::optional<int32_t> {
      int64_t value = 0;
      const size_t first = pos_;
      for (; pos_ < text_.size() && IsDigit(text_[pos_]); ++pos_) {
        value = std::min<int64_t>(value * 10 + (text_[pos_] - '0'), int64_t{kMaxGrammarRepeat} + 1);
      }
      return pos_ == first ? std::nullopt : std::optional<int32_t>(static_cast<int32_t>(value));
    };
    const std::optional<int32_t> low = number();
    const bool has_comma = Take(",");
    const std::optional<int32_t> high = number();
    if (!Take("}") || (!low.has_value() && !high.has_value())) {
      pos_ = start;  // not a repetition: a brace that stands for itself
      return false;
    }
    if (!low.has_value()) return Refuse("Python and ECMAScript read {{,n}} differently; write {{0,n}}");
    min = *low;
    max = !has_comma ? min : high.value_or(kUnbounded);
    if (min > kMaxGrammarRepeat || (max != kUnbounded && max > kMaxGrammarRepeat)) {
      return Refuse("a repetition of more than {} times", kMaxGrammarRepeat);
    }
    if (max < min) return Refuse("a repetition whose maximum is less than its minimum");
    return true;
  }

  absl::StatusOr<CodeSet> ParseCharacter() {
    const DecodedRune rune = DecodeUtf8(text_, pos_);
    if (!rune.valid) return Refuse("it is not UTF-8");
    pos_ += static_cast<size_t>(rune.num_bytes);
    return CodeSet::One(rune.code_point);
  }

  absl::StatusOr<CodeSet> ParseEscape() {
    Take("\\");
    if (pos_ == text_.size()) return Refuse("nothing after \\");
    const char c = text_[pos_];
    if (std::string_view("dDwWsS").find(c) != std::string_view::npos) {
      ++pos_;
      return NamedClass(c);
    }
    constexpr std::string_view kLetters = "nrtfv", kCodes = "\n\r\t\f\v";
    if (const size_t found = kLetters.find(c); found != std::string_view::npos) {
      ++pos_;
      return CodeSet::One(static_cast<char32_t>(kCodes[found]));
    }
    if (Take("x")) return ParseHex(2);
    if (Take("u{")) {
      const size_t close = text_.find('}', pos_);
      if (close == std::string_view::npos || close == pos_ || close - pos_ > 6) return Refuse("expected \\u{{...}}");
      PENSTOCK_ASSIGN_OR_RETURN(CodeSet set, ParseHex(close - pos_));
      Take("}");
      return set;
    }
    if (Take("u")) return ParseHex(4);
    if (c == '0' && !(pos_ + 1 < text_.size() && IsDigit(text_[pos_ + 1]))) {
      ++pos_;
      return CodeSet::One(0);
    }
    if (IsDigit(c) || c == 'k') return Refuse("back references are not supported");
    if (IsLetter(c)) return Refuse("\\{} is not supported", c);
    return ParseCharacter();
  }

  absl::StatusOr<CodeSet> ParseHex(size_t num_digits) {
    char32_t code = 0;
    for (size_t i = 0; i < num_digits; ++i, ++pos_) {
      const char c = pos_ < text_.size() ? text_[pos_] : ' ';
      const char lower = static_cast<char>(c | 0x20);
      if (!IsDigit(c) && (lower < 'a' || lower > 'f')) return Refuse("expected {} hexadecimal digits", num_digits);
      code = code * 16 + static_cast<char32_t>(IsDigit(c) ? c - '0' : lower - 'a' + 10);
    }
    CodeSet set;
    if (code <= kMaxCodePoint) set.Add(code, code);
    if (set.empty()) return Refuse("U+{:04X} is not a character", static_cast<uint32_t>(code));
    return set;
  }

  absl::StatusOr<CodeSet> ParseClass() {
    Take("[");
    const bool is_negated = Take("^");
    CodeSet set;
    if (At("]")) return Refuse("Python and ECMAScript read an empty class differently; write \\]");
    while (!Take("]")) {
      if (pos_ == text_.size()) return Refuse("a [ without its ]");
      if (At("[:")) return Refuse("classes by name are not supported");
      PENSTOCK_ASSIGN_OR_RETURN(const CodeSet low, At("\\") ? ParseEscape() : ParseCharacter());
      const bool is_range = At("-") && pos_ + 1 < text_.size() && text_[pos_ + 1] != ']';
      if (!is_range) {
        set.Add(low);
        continue;
      }
      Take("-");
      PENSTOCK_ASSIGN_OR_RETURN(const CodeSet high, At("\\") ? ParseEscape() : ParseCharacter());
      const auto is_one = [](const CodeSet& s) {
        return s.ranges().size() == 1 && s.ranges()[0].first == s.ranges()[0].last;
      };
      if (!is_one(low) || !is_one(high) || low.ranges()[0].first > high.ranges()[0].first) {
        return Refuse("a range whose ends are not two characters in order");
      }
      set.Add(low.ranges()[0].first, high.ranges()[0].first);
    }
    return is_negated ? set.Complement() : set;
  }

  std::string_view text_;
  Spelling spelling_;
  Grammar& grammar_;
  size_t pos_ = 0;
};

}  // namespace

absl::StatusOr<ExprId> ParseRegex(std::string_view pattern, RegexMatch match, Spelling spelling, Grammar& grammar) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Alternative> alternatives, RegexParser(pattern, spelling, grammar).Run());
  const ExprId anything = grammar.Repeat(grammar.Set(CodeSet::All(), spelling), 0, kUnbounded);
  std::vector<ExprId> all;
  for (const Alternative& alternative : alternatives) {
    std::vector<ExprId> parts;
    if (match == RegexMatch::kSearch && !alternative.anchored_begin) parts.push_back(anything);
    parts.push_back(alternative.expr);
    if (match == RegexMatch::kSearch && !alternative.anchored_end) parts.push_back(anything);
    all.push_back(grammar.Sequence(std::move(parts)));
  }
  return grammar.Choice(std::move(all));
}

}  // namespace penstock::grammar
