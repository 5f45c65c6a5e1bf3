#include "penstock/grammar/grammar.h"

#include <algorithm>

#include "penstock/base/text.h"

namespace penstock::grammar {
namespace {

constexpr int64_t kMaxSize = kMaxGrammarStates;
constexpr int64_t kSetSize = 8;

int64_t Product(int64_t a, int64_t b) { return a > 0 && b > kMaxSize / a ? kMaxSize : a * b; }

// Computes GrammarFacts, all of which are least fixed points: repeats until nothing changes.
class FactFinder {
 public:
  explicit FactFinder(const Grammar& grammar) : grammar_(grammar) {
    const auto num_exprs = static_cast<size_t>(grammar.num_exprs()), num_rules = static_cast<size_t>(grammar.num_rules());
    facts_.expr_matches.resize(num_exprs);
    facts_.expr_is_empty.resize(num_exprs);
    facts_.expr_size.resize(num_exprs);
    facts_.rule_matches.resize(num_rules);
    facts_.rule_is_empty.resize(num_rules);
    facts_.rule_size.resize(num_rules);
    facts_.rule_recurs.resize(num_rules);
  }

  absl::StatusOr<GrammarFacts> Run(Work& work) {
    PENSTOCK_RETURN_IF_ERROR(FindRecursion(work));
    // A part has a smaller id than its whole, so one pass suffices but for rules.
    bool changes = true;
    while (changes) {
      PENSTOCK_RETURN_IF_ERROR(work.Spend(grammar_.num_exprs() + grammar_.num_rules()));
      changes = false;
      for (ExprId id = 0; id < grammar_.num_exprs(); ++id) changes |= Update(id);
      for (RuleId id = 0; id < grammar_.num_rules(); ++id) {
        const ExprId expr = grammar_.rule(id).expr;
        changes |= Set(facts_.rule_matches, id, facts_.expr_matches[expr]);
        changes |= Set(facts_.rule_is_empty, id, facts_.expr_is_empty[expr]);
        const int64_t size = IsCalled(id) ? 2 : facts_.expr_size[expr] + 2;
        if (size > facts_.rule_size[id]) {
          facts_.rule_size[id] = size;
          changes = true;
        }
      }
    }
    return std::move(facts_);
  }

 private:
  bool IsCalled(RuleId id) const { return facts_.rule_recurs[id] || grammar_.rule(id).is_shared; }

  static bool Set(std::vector<bool>& values, int32_t id, bool value) {
    if (!value || values[id]) return false;
    values[id] = true;
    return true;
  }

  bool Update(ExprId id) {
    const Expr& expr = grammar_.expr(id);
    bool changes = Set(facts_.expr_matches, id, Matches(expr));
    changes |= Set(facts_.expr_is_empty, id, IsEmpty(expr));
    const int64_t size = std::min(Size(expr), kMaxSize);
    if (size > facts_.expr_size[id]) {
      facts_.expr_size[id] = size;
      changes = true;
    }
    return changes;
  }

  bool Matches(const Expr& expr) const {
    const auto matches = [&](ExprId part) { return facts_.expr_matches[part]; };
    switch (expr.kind) {
      case Expr::Kind::kNever: return false;
      case Expr::Kind::kText: return true;
      case Expr::Kind::kSet: return !expr.set.empty();
      case Expr::Kind::kSequence: return std::ranges::all_of(expr.parts, matches);
      case Expr::Kind::kChoice: return std::ranges::any_of(expr.parts, matches);
      case Expr::Kind::kRepeat: return expr.min == 0 || matches(expr.parts[0]);
      case Expr::Kind::kRule: return facts_.rule_matches[expr.rule];
      case Expr::Kind::kMembers: {
        const auto lacks = [&](const Member& member) { return member.is_required && !matches(member.expr); };
        if (std::ranges::any_of(expr.members, lacks)) return false;
        const auto may_be = [&](const Member& member) { return matches(member.expr); };
        return matches(expr.parts[1]) || std::ranges::count_if(expr.members, may_be) >= expr.min;
      }
      case Expr::Kind::kDfa: return !expr.dfa.states.empty();
    }
    return false;
  }

  bool IsEmpty(const Expr& expr) const {
    const auto is_empty = [&](ExprId part) { return facts_.expr_is_empty[part]; };
    switch (expr.kind) {
      case Expr::Kind::kNever: return false;
      case Expr::Kind::kText: return expr.text.empty();
      case Expr::Kind::kSet: return false;
      case Expr::Kind::kSequence: return std::ranges::all_of(expr.parts, is_empty);
      case Expr::Kind::kChoice: return std::ranges::any_of(expr.parts, is_empty);
      case Expr::Kind::kRepeat: return expr.min == 0 || is_empty(expr.parts[0]);
      case Expr::Kind::kRule: return facts_.rule_is_empty[expr.rule];
      case Expr::Kind::kMembers:
        return expr.min == 0 && std::ranges::none_of(expr.members, &Member::is_required);
      case Expr::Kind::kDfa: return !expr.dfa.states.empty() && expr.dfa.states[0].accepts;
    }
    return false;
  }

  int64_t Size(const Expr& expr) const {
    const auto sum = [&] {
      int64_t size = 2;
      for (const ExprId part : expr.parts) size += facts_.expr_size[part];
      return size;
    };
    switch (expr.kind) {
      case Expr::Kind::kNever: return 0;
      case Expr::Kind::kText: return std::ssize(expr.text) + 1;
      case Expr::Kind::kSet: return expr.set.ranges().back().last < 0x80 ? 1 : kSetSize;
      case Expr::Kind::kSequence:
      case Expr::Kind::kChoice: return sum();
      case Expr::Kind::kRepeat: {
        const int64_t count = std::max(1, expr.max == kUnbounded ? expr.min + 1 : expr.max);
        return Product(facts_.expr_size[expr.parts[0]] + 1, count);
      }
      case Expr::Kind::kRule: return facts_.rule_size[expr.rule];
      case Expr::Kind::kMembers: {
        int64_t size = sum();
        for (const Member& member : expr.members) size += facts_.expr_size[member.expr] + 2;
        return size;
      }
      case Expr::Kind::kDfa: return Product(std::ssize(expr.dfa.states), kSetSize);
    }
    return 0;
  }

  // Sets rules aside that refer only to rules set aside, until none is left. The others lie on a cycle or lead to one.
  absl::Status FindRecursion(Work& work) {
    std::vector<std::vector<RuleId>> callers(facts_.rule_recurs.size());
    std::vector<size_t> num_refs(callers.size());
    std::vector<RuleId> queue;
    for (RuleId id = 0; id < grammar_.num_rules(); ++id) {
      std::vector<RuleId> refs;
      PENSTOCK_RETURN_IF_ERROR(CollectRefs(grammar_.rule(id).expr, refs, work));
      for (const RuleId ref : refs) callers[ref].push_back(id);
      num_refs[id] = refs.size();
      if (refs.empty()) queue.push_back(id);
    }
    facts_.rule_recurs.assign(callers.size(), true);
    for (size_t i = 0; i < queue.size(); ++i) {
      facts_.rule_recurs[queue[i]] = false;
      for (const RuleId caller : callers[queue[i]]) {
        if (--num_refs[caller] == 0) queue.push_back(caller);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CollectRefs(ExprId root, std::vector<RuleId>& refs, Work& work) const {
    std::vector<ExprId> queue = {root};
    while (!queue.empty()) {
      const Expr& expr = grammar_.expr(queue.back());
      queue.pop_back();
      PENSTOCK_RETURN_IF_ERROR(work.Spend(1));
      if (expr.kind == Expr::Kind::kRule) refs.push_back(expr.rule);
      queue.insert(queue.end(), expr.parts.begin(), expr.parts.end());
      for (const Member& member : expr.members) queue.push_back(member.expr);
    }
    std::ranges::sort(refs);
    refs.erase(std::unique(refs.begin(), refs.end()), refs.end());
    return absl::OkStatus();
  }

  const Grammar& grammar_;
  GrammarFacts facts_;
};

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

// Adds an escape for a character that must have one.
void AddEscape(Nfa& nfa, int32_t from, int32_t to, char32_t code) {
  constexpr std::string_view kPlain = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  const int32_t begun = AddText(nfa, from, "\\");
  if (const size_t found = kPlain.find(static_cast<char>(code)); found != std::string_view::npos) {
    nfa.AddEdge(begun, static_cast<uint8_t>(kLetters[found]), static_cast<uint8_t>(kLetters[found]), to);
    return;
  }
  const int32_t high = AddText(nfa, begun, code < 0x10 ? "u000" : "u001");
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

RuleId Grammar::AddRule(std::string name, bool is_shared) {
  rules_.push_back({.name = std::move(name), .is_shared = is_shared});
  return static_cast<RuleId>(rules_.size()) - 1;
}

ExprId Grammar::Named(std::string name, ExprId expr, bool is_shared) {
  const RuleId rule = AddRule(std::move(name), is_shared);
  Define(rule, expr);
  return Ref(rule);
}

absl::StatusOr<GrammarFacts> FactsOf(const Grammar& grammar, Work& work) { return FactFinder(grammar).Run(work); }

void AddSpelled(Nfa& nfa, int32_t from, int32_t to, const CodeSet& set, Spelling spelling) {
  static const CodeSet kEscaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  if (spelling == Spelling::kJson) {
    const CodeSet escaped = set.Intersect(kEscaped);
    for (const CodeRange& range : escaped.ranges()) {
      for (char32_t code = range.first; code <= range.last; ++code) AddEscape(nfa, from, to, code);
    }
  }
  const CodeSet plain = spelling == Spelling::kJson ? set.Minus(kEscaped) : set;
  for (const CodeRange& range : plain.ranges()) AddUtf8(nfa, from, to, range.first, range.last);
}

}  // namespace penstock::grammar
