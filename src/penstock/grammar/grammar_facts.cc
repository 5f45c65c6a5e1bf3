#include <algorithm>
#include <utility>

#include "penstock/grammar/grammar.h"

namespace penstock::grammar {
namespace {

constexpr int64_t kMaxSize = kMaxGrammarStates;
constexpr int64_t kSetSize = 8;

int64_t Product(int64_t a, int64_t b) { return a > 0 && b > kMaxSize / a ? kMaxSize : a * b; }

// Computes GrammarFacts, all of which are least fixed points: repeats until nothing changes.
class FactFinder {
 public:
  explicit FactFinder(const Grammar& grammar) : grammar_(grammar) {
    const auto num_exprs = static_cast<size_t>(grammar.num_exprs()),
               num_rules = static_cast<size_t>(grammar.num_rules());
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
      case Expr::Kind::kMembers: return expr.min == 0 && std::ranges::none_of(expr.members, &Member::is_required);
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

}  // namespace

absl::StatusOr<GrammarFacts> FactsOf(const Grammar& grammar, Work& work) { return FactFinder(grammar).Run(work); }

}  // namespace penstock::grammar
