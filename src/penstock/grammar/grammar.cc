#include "penstock/grammar/grammar.h"

#include "penstock/base/text.h"

namespace penstock::grammar {
namespace {

// Adds the paths that spell the code points from `first` to `last` in UTF-8. Cuts the range until each byte after the
// first differing one takes all its values.
void AddUtf8(Nfa& nfa, int32_t from, int32_t to, char32_t first, char32_t last) {
  constexpr char32_t kLengthEnds[] = {0x7F, 0x7FF, 0xFFFF};
  for (const char32_t end : kLengthEnds) {
    if (first <= end && last > end) {
      AddUtf8(nfa, from, to, first, end);
      return AddUtf8(nfa, from, to, end + 1, last);
    }
  }
  constexpr int kBitsPerByte = 6;
  for (int num_bytes = 1; last > 0x7F && num_bytes < 4; ++num_bytes) {
    const char32_t mask = (char32_t{1} << (kBitsPerByte * num_bytes)) - 1;
    if ((first & ~mask) == (last & ~mask)) break;
    if ((first & mask) != 0) {
      AddUtf8(nfa, from, to, first, first | mask);
      return AddUtf8(nfa, from, to, (first | mask) + 1, last);
    }
    if ((last & mask) != mask) {
      AddUtf8(nfa, from, to, first, (last & ~mask) - 1);
      return AddUtf8(nfa, from, to, last & ~mask, last);
    }
  }
  std::string low, high;
  AppendUtf8(first, low);
  AppendUtf8(last, high);
  int32_t state = from;
  for (size_t i = 0; i < low.size(); ++i) {
    const int32_t next = i + 1 == low.size() ? to : nfa.AddState();
    nfa.AddEdge(state, static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i]), next);
    state = next;
  }
}

int32_t AddText(Nfa& nfa, int32_t from, std::string_view text) {
  for (const char c : text) {
    const int32_t next = nfa.AddState();
    nfa.AddEdge(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), next);
    from = next;
  }
  return from;
}

// Adds an escape for a character that has one.
void AddEscape(Nfa& nfa, int32_t from, int32_t to, char32_t code) {
  constexpr std::string_view kPlain = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  const int32_t begun = AddText(nfa, from, "\\");
  if (const size_t found = kPlain.find(static_cast<char>(code)); found != std::string_view::npos) {
    nfa.AddEdge(begun, static_cast<uint8_t>(kLetters[found]), static_cast<uint8_t>(kLetters[found]), to);
    return;
  }
  const int32_t high = AddText(nfa, begun, code == '<' ? "u003" : code < 0x10 ? "u000" : "u001");
  const char32_t low = code % 0x10;
  if (low < 10) {
    nfa.AddEdge(high, '0' + low, '0' + low, to);
  } else {
    nfa.AddEdge(high, 'a' + low - 10, 'a' + low - 10, to);
    nfa.AddEdge(high, 'A' + low - 10, 'A' + low - 10, to);
  }
}

}  // namespace

ExprId Grammar::Set(CodeSet set, Spelling spelling) {
  if (set.empty()) return Never();
  return Add({.kind = Expr::Kind::kSet, .spelling = spelling, .set = std::move(set)});
}

ExprId Grammar::Sequence(std::vector<ExprId> parts) {
  if (parts.size() == 1) return parts[0];
  return Add({.kind = Expr::Kind::kSequence, .parts = std::move(parts)});
}

ExprId Grammar::Choice(std::vector<ExprId> parts) {
  if (parts.size() == 1) return parts[0];
  return Add({.kind = Expr::Kind::kChoice, .parts = std::move(parts)});
}

ExprId Grammar::Repeat(ExprId part, int32_t min, int32_t max) {
  if (min == 1 && max == 1) return part;
  if (max == 0) return Empty();
  return Add({.kind = Expr::Kind::kRepeat, .min = min, .max = max, .parts = {part}});
}

ExprId Grammar::Members(std::vector<Member> members, ExprId separator, ExprId other, int32_t min, int32_t max) {
  return Add({.kind = Expr::Kind::kMembers,
              .min = min,
              .max = max,
              .parts = {separator, other},
              .members = std::move(members)});
}

ExprId Grammar::Accepted(Dfa dfa, Spelling spelling) {
  return Add({.kind = Expr::Kind::kDfa, .spelling = spelling, .dfa = std::move(dfa)});
}

ExprId Grammar::Include(const Grammar& other) {
  const auto first_expr = static_cast<ExprId>(exprs_.size());
  const auto first_rule = static_cast<RuleId>(rules_.size());
  for (Expr expr : other.exprs_) {
    for (ExprId& part : expr.parts) part += first_expr;
    for (Member& member : expr.members) member.expr += first_expr;
    expr.rule += first_rule;
    exprs_.push_back(std::move(expr));
  }
  for (Rule rule : other.rules_) {
    rule.expr += first_expr;
    rules_.push_back(std::move(rule));
  }
  return Ref(other.root_ + first_rule);
}

RuleId Grammar::AddRule(std::string name, bool is_shared) {
  rules_.push_back({.name = std::move(name), .is_shared = is_shared});
  return static_cast<RuleId>(rules_.size()) - 1;
}

ExprId Grammar::Named(std::string name, ExprId expr, bool is_shared) {
  const RuleId rule = AddRule(std::move(name), is_shared);
  Define(rule, expr);
  return Ref(rule);
}

void AddSpelled(Nfa& nfa, int32_t from, int32_t to, const CodeSet& set, Spelling spelling) {
  static const CodeSet kEscaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  static const CodeSet kEscapedInTags = {{0, 0x1F}, {'"', '"'}, {'<', '<'}, {'\\', '\\'}};
  const CodeSet& all_escaped = spelling == Spelling::kTaggedJson ? kEscapedInTags : kEscaped;
  if (spelling != Spelling::kUtf8) {
    const CodeSet escaped = set.Intersect(all_escaped);
    for (const CodeRange& range : escaped.ranges()) {
      for (char32_t code = range.first; code <= range.last; ++code) AddEscape(nfa, from, to, code);
    }
  }
  const CodeSet plain = spelling == Spelling::kUtf8 ? set : set.Minus(all_escaped);
  for (const CodeRange& range : plain.ranges()) AddUtf8(nfa, from, to, range.first, range.last);
}

}  // namespace penstock::grammar
