#include "penstock/grammar/regex.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/text.h"

namespace penstock::grammar {
namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

struct Alternative;

// A look-ahead: one of its alternatives must begin there, or none must.
struct LookAhead {
  std::vector<Alternative> alternatives;
  bool is_negative = false;
};

// Expressions, one after the other, behind a look-ahead or none.
struct Piece {
  std::vector<ExprId> exprs;
  std::shared_ptr<const LookAhead> ahead = nullptr;
};

// A branch of alternatives: pieces one behind the other. With an anchor, no text may stand outside of it on that side.
struct Alternative {
  std::vector<Piece> pieces;
  bool anchored_begin = false;
  bool anchored_end = false;

  void Add(ExprId expr) {
    if (pieces.empty()) pieces.emplace_back();
    pieces.back().exprs.push_back(expr);
  }
  bool is_plain() const {
    const bool looks_ahead = std::ranges::any_of(pieces, [](const Piece& piece) { return piece.ahead != nullptr; });
    return !anchored_begin && !anchored_end && !looks_ahead;
  }
};

class RegexParser {
 public:
  // With `is_wide`, characters about which Python and ECMAScript disagree match, too.
  RegexParser(std::string_view pattern, bool is_wide, Spelling spelling, Grammar& grammar)
      : text_(pattern), is_wide_(is_wide), spelling_(spelling), grammar_(grammar) {}

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

  // An atom: an expression, the alternatives of a group, or a look-ahead.
  struct Atom {
    ExprId expr = 0;
    std::vector<Alternative> group = {};
    std::shared_ptr<const LookAhead> ahead = nullptr;
    bool is_plain() const { return ahead == nullptr && std::ranges::all_of(group, &Alternative::is_plain); }
    bool has_begin() const { return std::ranges::any_of(group, &Alternative::anchored_begin); }
  };

  absl::Status ParseAlternative(int depth, std::vector<Alternative>& all) {
    Alternative made;
    made.anchored_begin = Take("^");
    bool is_at_begin = made.anchored_begin;  // nothing but look-aheads so far
    const auto at_end = [&] { return pos_ == text_.size() || At("|") || At(")"); };
    while (!at_end()) {
      const size_t start = pos_;
      if (Take("$")) {
        if (!at_end()) return Refuse("$ is only supported at the end");
        made.anchored_end = true;
        // Python's $ also stands before a last line feed.
        if (is_wide_) made.Add(grammar_.Optional(grammar_.Set(CodeSet::One('\n'), spelling_)));
        break;
      }
      PENSTOCK_ASSIGN_OR_RETURN(Atom atom, ParseAtom(depth));
      PENSTOCK_ASSIGN_OR_RETURN(const bool is_repeated, ParseRepeat(atom.expr));
      if (atom.is_plain()) {
        is_at_begin = false;
        made.Add(atom.expr);
        continue;
      }
      // Anchors and look-aheads say something of the text's ends. So nothing may stand behind their group.
      const bool is_first = atom.ahead != nullptr ? is_at_begin : made.pieces.empty() && !made.anchored_begin;
      if (is_repeated || (atom.has_begin() && !is_first) || (atom.ahead == nullptr && !at_end())) {
        pos_ = start;
        return Refuse("anchors and look-aheads are only supported at the ends of the pattern");
      }
      if (atom.ahead == nullptr) {
        for (Piece& piece : made.pieces) piece.exprs = {grammar_.Sequence(std::move(piece.exprs))};
        for (const Alternative& branch : atom.group) all.push_back(Joined(made, branch));
        return absl::OkStatus();
      }
      constexpr size_t kMaxLookAheads = 16;
      if (made.pieces.size() > kMaxLookAheads) return Refuse("more than {} look-aheads", kMaxLookAheads);
      made.pieces.push_back({{}, std::move(atom.ahead)});
    }
    all.push_back(std::move(made));
    return absl::OkStatus();
  }

  // Returns a branch of a group at the end, with what stands before the group.
  static Alternative Joined(const Alternative& before, const Alternative& branch) {
    Alternative joined = before;
    joined.pieces.insert(joined.pieces.end(), branch.pieces.begin(), branch.pieces.end());
    joined.anchored_begin |= branch.anchored_begin;
    joined.anchored_end = branch.anchored_end;
    return joined;
  }

  ExprId SequenceOf(const Alternative& alternative) {
    std::vector<ExprId> exprs;
    for (const Piece& piece : alternative.pieces) {
      exprs.insert(exprs.end(), piece.exprs.begin(), piece.exprs.end());
    }
    return grammar_.Sequence(std::move(exprs));
  }

  absl::StatusOr<Atom> ParseAtom(int depth) {
    if (At("(")) return ParseGroup(depth);
    if (At("[")) {
      PENSTOCK_ASSIGN_OR_RETURN(CodeSet set, ParseClass());
      return Atom{grammar_.Set(std::move(set), spelling_)};
    }
    if (Take(".")) {
      return Atom{grammar_.Set(is_wide_ ? CodeSet::One('\n').Complement() : AnyButNewline(), spelling_)};
    }
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
      if (At("=") || At("!")) return ParseLookAhead(depth);
      if (At("<=") || At("<!")) return Refuse("look-behind is not supported");
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
    for (const Alternative& alternative : group) exprs.push_back(SequenceOf(alternative));
    return Atom{grammar_.Choice(std::move(exprs)), std::move(group)};
  }

  absl::StatusOr<Atom> ParseLookAhead(int depth) {
    LookAhead ahead;
    ahead.is_negative = text_[pos_++] == '!';
    is_wide_ ^= ahead.is_negative;
    PENSTOCK_ASSIGN_OR_RETURN(ahead.alternatives, ParseAlternatives(depth + 1));
    is_wide_ ^= ahead.is_negative;
    if (!Take(")")) return Refuse("a ( without its )");
    return Atom{.group = ahead.alternatives, .ahead = std::make_shared<const LookAhead>(std::move(ahead))};
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
      return is_wide_ ? NamedClass(static_cast<char>(c ^ 0x20)).Complement() : NamedClass(c);
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
    is_wide_ ^= is_negated;  // what is taken away may be too much, but not too little
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
    is_wide_ ^= is_negated;
    return is_negated ? set.Complement() : set;
  }

  std::string_view text_;
  bool is_wide_;
  Spelling spelling_;
  Grammar& grammar_;
  size_t pos_ = 0;
};

// Makes one expression of the alternatives of a pattern.
class RegexJoiner {
 public:
  RegexJoiner(Spelling spelling, Grammar& grammar, Work& work) : spelling_(spelling), grammar_(grammar), work_(work) {}

  absl::StatusOr<ExprId> Join(const std::vector<Alternative>& alternatives, bool is_open_begin, bool is_open_end) {
    std::vector<ExprId> all;
    for (const Alternative& alternative : alternatives) {
      ExprId expr = is_open_end && !alternative.anchored_end ? Anything() : grammar_.Empty();
      for (size_t i = alternative.pieces.size(); i-- > 0;) {
        const Piece& piece = alternative.pieces[i];
        std::vector<ExprId> exprs = piece.exprs;
        exprs.push_back(expr);
        expr = grammar_.Sequence(std::move(exprs));
        if (piece.ahead == nullptr) continue;
        PENSTOCK_ASSIGN_OR_RETURN(expr, Restricted(expr, *piece.ahead));
      }
      if (is_open_begin && !alternative.anchored_begin) expr = grammar_.Sequence({Anything(), expr});
      all.push_back(expr);
    }
    return grammar_.Choice(std::move(all));
  }

  // Returns the texts that the expression does not match.
  absl::StatusOr<ExprId> Others(ExprId expr) {
    PENSTOCK_ASSIGN_OR_RETURN(const Dfa dfa, CodePointDfa(grammar_, expr, work_));
    return grammar_.Accepted(Complement(dfa), spelling_);
  }

 private:
  ExprId Anything() { return grammar_.Repeat(grammar_.Set(CodeSet::All(), spelling_), 0, kUnbounded); }

  // Returns the texts of the expression that the look-ahead allows. `expr` goes on to the end of the text.
  absl::StatusOr<ExprId> Restricted(ExprId expr, const LookAhead& ahead) {
    PENSTOCK_ASSIGN_OR_RETURN(const ExprId begins, Join(ahead.alternatives, false, true));
    PENSTOCK_ASSIGN_OR_RETURN(Dfa allowed, CodePointDfa(grammar_, begins, work_));
    if (ahead.is_negative) allowed = Complement(allowed);
    PENSTOCK_ASSIGN_OR_RETURN(const Dfa all, CodePointDfa(grammar_, expr, work_));
    PENSTOCK_ASSIGN_OR_RETURN(Dfa both, Intersect(all, allowed, kMaxPatternStates, work_));
    return grammar_.Accepted(std::move(both), spelling_);
  }

  Spelling spelling_;
  Grammar& grammar_;
  Work& work_;
};

}  // namespace

absl::StatusOr<ExprId> ParseRegex(std::string_view pattern, RegexMatch match, Spelling spelling, Grammar& grammar,
                                  Work& work) {
  const bool is_absent = match == RegexMatch::kAbsent;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Alternative> alternatives,
                            RegexParser(pattern, is_absent, spelling, grammar).Run());
  RegexJoiner joiner(spelling, grammar, work);
  const bool is_open = match != RegexMatch::kWhole;
  PENSTOCK_ASSIGN_OR_RETURN(const ExprId expr, joiner.Join(alternatives, is_open, is_open));
  return is_absent ? joiner.Others(expr) : expr;
}

}  // namespace penstock::grammar
