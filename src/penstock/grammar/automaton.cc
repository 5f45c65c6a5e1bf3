#include "penstock/grammar/automaton.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "penstock/base/text.h"

namespace penstock::grammar {

// Up to this size, rules and repetitions are copied into the rule that uses them.
constexpr int64_t kMaxCopiedRule = 64;
constexpr int64_t kMaxCopiedRepeat = 2048;
constexpr int32_t kMaxTracks = 256;

class AutomatonBuilder {
 public:
  AutomatonBuilder(const Grammar& grammar, GrammarFacts facts, Work& work)
      : grammar_(grammar), facts_(std::move(facts)), work_(work) {}

  absl::StatusOr<Automaton> Run() {
    if (!facts_.rule_matches[grammar_.root()]) return InputError("no text matches it");
    UnitOf({.rule = grammar_.root()});
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      unit_start_.push_back(static_cast<int32_t>(automaton_.states_.size()));
      PENSTOCK_RETURN_IF_ERROR(units_[unit].max == 0 ? AddRule(units_[unit]) : AddRepeat(units_[unit]));
    }
    for (StateCall& call : automaton_.calls_) call.callee = unit_start_[call.callee];
    for (Automaton::Repeat& repeat : automaton_.repeats_) {
      repeat.callee = unit_start_[repeat.callee];
      repeat.loop = unit_start_[repeat.loop];
    }
    automaton_.start_ = unit_start_[0];
    PENSTOCK_RETURN_IF_ERROR(CheckLeftRecursion());
    automaton_.states_.shrink_to_fit();
    automaton_.edges_.shrink_to_fit();
    automaton_.calls_.shrink_to_fit();
    return std::move(automaton_);
  }

 private:
  // The target of a call: a rule, or an expression (if rule < 0). With `max`, it is repeated. With `skips_empty` it
  // does not match the empty text.
  struct Unit {
    RuleId rule = -1;
    ExprId expr = -1;
    int32_t min = 0;
    int32_t max = 0;
    bool skips_empty = false;
    bool loops = false;  // matches `expr` once or more often
    auto operator<=>(const Unit&) const = default;
  };

  int32_t UnitOf(const Unit& unit) {
    const auto [found, is_new] = unit_ids_.try_emplace(unit, static_cast<int32_t>(units_.size()));
    if (is_new) units_.push_back(unit);
    return found->second;
  }

  absl::Status CheckSize() const {
    if (std::ssize(automaton_.states_) <= kMaxGrammarStates) return absl::OkStatus();
    return InputError("it has more than {} states; make it simpler", kMaxGrammarStates);
  }

  absl::Status AddRepeat(Unit unit) {
    const bool may_be_empty = facts_.expr_is_empty[unit.expr];
    const int32_t callee = UnitOf({.expr = unit.expr, .skips_empty = may_be_empty});
    automaton_.states_.push_back({.repeat = static_cast<int32_t>(automaton_.repeats_.size())});
    const int32_t loop = UnitOf({.expr = unit.expr, .loops = true});
    automaton_.repeats_.push_back({callee, may_be_empty ? 0 : unit.min, unit.max, loop});
    return CheckSize();
  }

  absl::Status AddRule(Unit unit) {
    Nfa nfa(work_);
    nfa_ = &nfa;
    const int32_t start = nfa.AddState(), accept = nfa.AddState();
    PENSTOCK_RETURN_IF_ERROR(Build(unit.rule >= 0 ? grammar_.rule(unit.rule).expr : unit.expr, start, accept));
    if (unit.loops) nfa.AddEmpty(accept, start);
    PENSTOCK_ASSIGN_OR_RETURN(Dfa dfa, Determinise(nfa, start, accept, kMaxGrammarStates, work_));
    const auto first = static_cast<int32_t>(automaton_.states_.size());
    if (unit.skips_empty) {
      for (const Call& call : dfa.states[0].calls) {
        const Unit& callee = units_[call.rule];
        if (callee.rule < 0 || facts_.rule_is_empty[callee.rule]) {
          return InputError("it repeats a rule many times that may match nothing; let the rule match something");
        }
      }
      // The first state may also be reached later, where the rule may end.
      Dfa::State start_state = dfa.states[0];
      start_state.accepts = false;
      AddState(start_state, first + 1);
      for (const Dfa::State& state : dfa.states) AddState(state, first + 1);
    } else {
      for (const Dfa::State& state : dfa.states) AddState(state, first);
    }
    return CheckSize();
  }

  void AddState(const Dfa::State& state, int32_t first) {
    automaton_.states_.push_back({.first_edge = static_cast<uint32_t>(automaton_.edges_.size()),
                                  .first_call = static_cast<uint32_t>(automaton_.calls_.size()),
                                  .num_edges = static_cast<uint16_t>(state.edges.size()),
                                  .num_calls = static_cast<uint16_t>(state.calls.size()),
                                  .accepts = state.accepts});
    for (const Edge& edge : state.edges) {
      automaton_.edges_.push_back(
          {static_cast<uint8_t>(edge.first), static_cast<uint8_t>(edge.last), first + edge.target});
    }
    for (const Call& call : state.calls) automaton_.calls_.push_back({call.rule, first + call.target});
  }

  // Adds the paths from `from` to `to` that an expression matches.
  absl::Status Build(ExprId id, int32_t from, int32_t to) {
    const Expr& expr = grammar_.expr(id);
    PENSTOCK_RETURN_IF_ERROR(work_.Spend(1));
    if (!facts_.expr_matches[id]) return absl::OkStatus();
    switch (expr.kind) {
      case Expr::Kind::kNever: break;
      case Expr::Kind::kText: return BuildText(expr.text, from, to);
      case Expr::Kind::kSet: AddSpelled(*nfa_, from, to, expr.set, expr.spelling); break;
      case Expr::Kind::kSequence: return BuildSequence(expr, from, to);
      case Expr::Kind::kChoice:
        for (const ExprId part : expr.parts) PENSTOCK_RETURN_IF_ERROR(Build(part, from, to));
        break;
      case Expr::Kind::kRepeat: return BuildRepeat(expr, from, to);
      case Expr::Kind::kRule: return BuildRef(expr.rule, from, to);
      case Expr::Kind::kMembers: return BuildMembers(expr, from, to);
      case Expr::Kind::kDfa: return BuildDfa(expr, from, to);
    }
    return absl::OkStatus();
  }

  absl::Status BuildText(std::string_view text, int32_t from, int32_t to) {
    for (const char c : text) {
      const int32_t next = nfa_->AddState();
      nfa_->AddEdge(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), next);
      from = next;
      PENSTOCK_RETURN_IF_ERROR(work_.Spend(1));
    }
    nfa_->AddEmpty(from, to);
    return absl::OkStatus();
  }

  absl::Status BuildSequence(const Expr& expr, int32_t from, int32_t to) {
    for (const ExprId part : expr.parts) {
      const int32_t next = nfa_->AddState();
      PENSTOCK_RETURN_IF_ERROR(Build(part, from, next));
      from = next;
    }
    nfa_->AddEmpty(from, to);
    return absl::OkStatus();
  }

  absl::Status BuildRepeat(const Expr& expr, int32_t from, int32_t to) {
    const ExprId part = expr.parts[0];
    if (!facts_.expr_matches[part]) {
      nfa_->AddEmpty(from, to);
      return absl::OkStatus();
    }
    const bool is_open = expr.max == kUnbounded;
    const int32_t num_copies = is_open ? expr.min : expr.max;
    if (num_copies > 1 && facts_.expr_size[part] + 1 > kMaxCopiedRepeat / num_copies) {
      nfa_->AddCall(from, UnitOf({.expr = part, .min = expr.min, .max = expr.max}), to);
      return absl::OkStatus();
    }
    for (int32_t i = 0; i < num_copies; ++i) {
      if (i >= expr.min) nfa_->AddEmpty(from, to);
      const int32_t next = nfa_->AddState();
      PENSTOCK_RETURN_IF_ERROR(Build(part, from, next));
      from = next;
    }
    if (is_open) {
      const int32_t loop = nfa_->AddState();
      nfa_->AddEmpty(from, loop);
      PENSTOCK_RETURN_IF_ERROR(Build(part, loop, loop));
      from = loop;
    }
    nfa_->AddEmpty(from, to);
    return absl::OkStatus();
  }

  absl::Status BuildRef(RuleId rule, int32_t from, int32_t to) {
    const bool is_copied =
        !facts_.rule_recurs[rule] && !grammar_.rule(rule).is_shared && facts_.rule_size[rule] <= kMaxCopiedRule;
    if (is_copied) return Build(grammar_.rule(rule).expr, from, to);
    nfa_->AddCall(from, UnitOf({.rule = rule}), to);
    return absl::OkStatus();
  }

  // Track i: i members have been written. The last track stands for more, too, if there is no limit.
  absl::Status BuildMembers(const Expr& expr, int32_t from, int32_t to) {
    const auto num_members = static_cast<int32_t>(expr.members.size());
    const bool is_open = expr.max == kUnbounded;
    const int32_t num_tracks = 1 + (is_open ? std::max(expr.min, 1) : expr.max);
    if (num_tracks > kMaxTracks) return InputError("it counts the members of an object beyond {}", kMaxTracks - 1);
    std::vector<int32_t> tracks(static_cast<size_t>(num_tracks));
    for (int32_t& state : tracks) state = nfa_->AddState();
    nfa_->AddEmpty(from, tracks[0]);
    for (int32_t i = 0; i <= num_members; ++i) {
      std::vector<int32_t> next = tracks;
      if (i < num_members) {
        for (int32_t track = 0; track < num_tracks; ++track) {
          next[track] = nfa_->AddState();
          if (!expr.members[i].is_required) nfa_->AddEmpty(tracks[track], next[track]);
        }
      }
      const ExprId part = i < num_members ? expr.members[i].expr : expr.parts[1];
      if (facts_.expr_matches[part]) {
        PENSTOCK_RETURN_IF_ERROR(BuildMember(part, expr.parts[0], tracks, next, is_open));
      }
      tracks = std::move(next);
    }
    for (int32_t track = expr.min; track < num_tracks; ++track) nfa_->AddEmpty(tracks[track], to);
    return absl::OkStatus();
  }

  // Adds the paths from each track to the next one, `separator` first unless the member is the first one.
  absl::Status BuildMember(ExprId part, ExprId separator, const std::vector<int32_t>& tracks,
                           const std::vector<int32_t>& next, bool is_open) {
    int32_t begin = -1;
    for (size_t track = 0; track < tracks.size(); ++track) {
      const bool is_last = track + 1 == tracks.size();
      if (is_last && !is_open) break;
      // The last two tracks lead to the same one, and so they share the member.
      const bool shares = is_last && begin >= 0;
      if (!shares) begin = nfa_->AddState();
      if (track == 0) {
        nfa_->AddEmpty(tracks[track], begin);
      } else {
        PENSTOCK_RETURN_IF_ERROR(Build(separator, tracks[track], begin));
      }
      if (!shares) PENSTOCK_RETURN_IF_ERROR(Build(part, begin, next[std::min(track + 1, tracks.size() - 1)]));
    }
    return absl::OkStatus();
  }

  absl::Status BuildDfa(const Expr& expr, int32_t from, int32_t to) {
    std::vector<int32_t> states;
    for (size_t i = 0; i < expr.dfa.states.size(); ++i) states.push_back(nfa_->AddState());
    nfa_->AddEmpty(from, states[0]);
    for (size_t i = 0; i < states.size(); ++i) {
      std::map<int32_t, CodeSet> set_of_target;
      for (const Edge& edge : expr.dfa.states[i].edges) set_of_target[edge.target].Add(edge.first, edge.last);
      for (const auto& [target, set] : set_of_target) AddSpelled(*nfa_, states[i], states[target], set, expr.spelling);
      if (expr.dfa.states[i].accepts) nfa_->AddEmpty(states[i], to);
      PENSTOCK_RETURN_IF_ERROR(work_.Spend(std::ssize(expr.dfa.states[i].edges)));
    }
    return absl::OkStatus();
  }

  // Whether nothing need be written between the call of a unit and its end.
  bool MayBeEmpty(int32_t unit) const {
    const Unit& called = units_[unit];
    if (called.max != 0) return called.min == 0 || facts_.expr_is_empty[called.expr];
    return called.rule >= 0 ? facts_.rule_is_empty[called.rule]
                            : !called.skips_empty && facts_.expr_is_empty[called.expr];
  }

  // Follows the calls that are made before the first byte. A cycle of them would never end.
  absl::Status CheckLeftRecursion() {
    std::map<int32_t, int32_t> unit_of_start;
    for (size_t i = 0; i < units_.size(); ++i) unit_of_start[unit_start_[i]] = static_cast<int32_t>(i);
    std::vector<std::vector<int32_t>> first_calls(units_.size());
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      std::vector<int32_t> queue = {unit_start_[unit]};
      std::vector<int32_t> seen = queue;
      while (!queue.empty()) {
        const Automaton::State& state = automaton_.state(queue.back());
        queue.pop_back();
        PENSTOCK_RETURN_IF_ERROR(work_.Spend(state.num_calls + 1));
        if (state.repeat >= 0) first_calls[unit].push_back(unit_of_start[automaton_.repeat(state).callee]);
        for (const StateCall& call : automaton_.calls(state)) {
          const int32_t callee = unit_of_start[call.callee];
          first_calls[unit].push_back(callee);
          if (!MayBeEmpty(callee) || std::ranges::find(seen, call.target) != seen.end()) continue;
          seen.push_back(call.target);
          queue.push_back(call.target);
        }
      }
    }
    return CheckNoCycle(first_calls);
  }

  absl::Status CheckNoCycle(const std::vector<std::vector<int32_t>>& first_calls) {
    std::vector<int32_t> num_callers(first_calls.size(), 0);
    for (const auto& callees : first_calls) {
      for (const int32_t callee : callees) ++num_callers[callee];
    }
    std::vector<int32_t> queue;
    for (size_t i = 0; i < first_calls.size(); ++i) {
      if (num_callers[i] == 0) queue.push_back(static_cast<int32_t>(i));
    }
    size_t num_done = 0;
    for (; num_done < queue.size(); ++num_done) {
      for (const int32_t callee : first_calls[queue[num_done]]) {
        if (--num_callers[callee] == 0) queue.push_back(callee);
      }
    }
    if (num_done == first_calls.size()) return absl::OkStatus();
    for (size_t i = 0; i < first_calls.size(); ++i) {
      if (num_callers[i] == 0 || units_[i].rule < 0) continue;
      return InputError("{} refers to itself before it has matched anything (left recursion)",
                        Excerpt(grammar_.rule(units_[i].rule).name));
    }
    return InputError("a rule refers to itself before it has matched anything (left recursion)");
  }

  const Grammar& grammar_;
  GrammarFacts facts_;
  Work& work_;
  Nfa* nfa_ = nullptr;
  std::vector<Unit> units_;
  std::map<Unit, int32_t> unit_ids_;
  std::vector<int32_t> unit_start_;
  Automaton automaton_;
};

namespace {

// Whether all characters beyond ASCII lead from a state back to it.
bool LoopsOverWide(const Automaton& automaton, int32_t idx) {
  // The bytes of UTF-8: ranges of first bytes, and of the second ones; all further ones are any continuation.
  struct Lead {
    uint8_t first, last, second_first, second_last;
    int num_bytes;
  };
  constexpr Lead kLeads[] = {{0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3},
                             {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
                             {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
  // Returns the one state to which all bytes of a range lead, or -1.
  const auto next = [&](int32_t from, int first, int last) -> int32_t {
    const int32_t target = from < 0 ? -1 : automaton.Next(from, static_cast<uint8_t>(first));
    for (int byte = first + 1; byte <= last && target >= 0; ++byte) {
      if (automaton.Next(from, static_cast<uint8_t>(byte)) != target) return -1;
    }
    return target < 0 || !(target == idx || automaton.IsPlain(target)) ? -1 : target;
  };
  for (const Lead& lead : kLeads) {
    for (int byte = lead.first; byte <= lead.last; ++byte) {
      int32_t state = next(idx, byte, byte);
      state = next(state, lead.second_first, lead.second_last);
      for (int i = 2; i < lead.num_bytes; ++i) state = next(state, 0x80, 0xBF);
      if (state != idx) return false;
    }
  }
  return true;
}

}  // namespace

ByteClasses Automaton::LoopClasses(int32_t idx) const {
  ByteClasses loops = LoopsOverWide(*this, idx) ? kWideClass : 0, leaves = 0;
  for (uint8_t byte = 0; byte < 0x80; ++byte) (Next(idx, byte) == idx ? loops : leaves) |= ClassOf(byte);
  return loops & ~leaves;
}

absl::StatusOr<Automaton> Compile(const Grammar& grammar, Work& work) {
  PENSTOCK_ASSIGN_OR_RETURN(GrammarFacts facts, FactsOf(grammar, work));
  return AutomatonBuilder(grammar, std::move(facts), work).Run();
}

}  // namespace penstock::grammar
