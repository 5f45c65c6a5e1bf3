#include "penstock/grammar/finite_automaton.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "penstock/grammar/code_set.h"

namespace penstock::grammar {
namespace {

// A set of states of an Nfa: sorted.
using StateSet = std::vector<int32_t>;

class SubsetConstruction {
 public:
  SubsetConstruction(const Nfa& nfa, int32_t accept, size_t max_states, Work& work)
      : nfa_(nfa), accept_(accept), max_states_(max_states), work_(work), mark_(static_cast<size_t>(nfa.size()), 0) {
    HoldForNow(nfa.size() * static_cast<int64_t>(sizeof(mark_[0])));
  }
  ~SubsetConstruction() { work_.Release(num_bytes_); }
  SubsetConstruction(const SubsetConstruction&) = delete;
  SubsetConstruction& operator=(const SubsetConstruction&) = delete;

  absl::StatusOr<Dfa> Run(int32_t start) {
    PENSTOCK_RETURN_IF_ERROR(IdOf({start}).status());
    for (size_t id = 0; id < sets_.size(); ++id) PENSTOCK_RETURN_IF_ERROR(Expand(static_cast<int32_t>(id)));
    return std::move(dfa_);
  }

 private:
  void HoldForNow(int64_t num_bytes) {
    num_bytes_ += num_bytes;
    work_.Hold(num_bytes);
  }

  // Adds all states that are reached without a symbol.
  absl::Status Close(StateSet& set) {
    ++stamp_;
    for (const int32_t state : set) mark_[state] = stamp_;
    for (size_t i = 0; i < set.size(); ++i) {
      for (const int32_t next : nfa_.state(set[i]).empty) {
        if (std::exchange(mark_[next], stamp_) != stamp_) set.push_back(next);
      }
    }
    std::ranges::sort(set);
    return work_.Spend(static_cast<int64_t>(set.size()));
  }

  absl::StatusOr<int32_t> IdOf(StateSet set) {
    std::ranges::sort(set);
    set.erase(std::unique(set.begin(), set.end()), set.end());
    PENSTOCK_RETURN_IF_ERROR(Close(set));
    const auto [found, is_new] = ids_.try_emplace(std::move(set), static_cast<int32_t>(sets_.size()));
    if (is_new) {
      if (sets_.size() >= max_states_) return InputError("it has more than {} states; make it simpler", max_states_);
      constexpr int64_t kSetBytes = 96;  // with its place in the map
      HoldForNow(kSetBytes + static_cast<int64_t>(found->first.size() * sizeof(int32_t)));
      work_.Hold(sizeof(Dfa::State));
      dfa_.states.emplace_back();
      dfa_.states.back().accepts = std::ranges::binary_search(found->first, accept_);
      sets_.push_back(&found->first);
    }
    return found->second;
  }

  absl::Status Expand(int32_t id) {
    std::vector<Edge> edges;
    std::map<int32_t, StateSet> targets_of_rule;
    for (const int32_t state : *sets_[id]) {
      const Nfa::State& from = nfa_.state(state);
      edges.insert(edges.end(), from.edges.begin(), from.edges.end());
      for (const Call& call : from.calls) targets_of_rule[call.rule].push_back(call.target);
    }
    for (auto& [rule, targets] : targets_of_rule) {
      PENSTOCK_ASSIGN_OR_RETURN(const int32_t target, IdOf(std::move(targets)));
      dfa_.states[id].calls.push_back({rule, target});
    }
    return AddEdges(id, edges);
  }

  // Cuts the symbols where an edge begins or ends, and joins neighbours with the same target.
  absl::Status AddEdges(int32_t id, const std::vector<Edge>& edges) {
    std::vector<uint32_t> cuts;
    for (const Edge& edge : edges) {
      cuts.push_back(edge.first);
      cuts.push_back(edge.last + 1);
    }
    std::ranges::sort(cuts);
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<StateSet> targets(cuts.size());
    for (const Edge& edge : edges) {
      const auto first = std::ranges::lower_bound(cuts, edge.first) - cuts.begin();
      int64_t part = first;
      for (; cuts[part] <= edge.last; ++part) targets[part].push_back(edge.target);
      PENSTOCK_RETURN_IF_ERROR(work_.Spend(part - first + 1));
    }
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      if (targets[i].empty()) continue;
      PENSTOCK_ASSIGN_OR_RETURN(const int32_t target, IdOf(std::move(targets[i])));
      std::vector<Edge>& all = dfa_.states[id].edges;
      if (!all.empty() && all.back().target == target && all.back().last + 1 == cuts[i]) {
        all.back().last = cuts[i + 1] - 1;
      } else {
        work_.Hold(sizeof(Edge));
        all.push_back({cuts[i], cuts[i + 1] - 1, target});
      }
    }
    return absl::OkStatus();
  }

  const Nfa& nfa_;
  int32_t accept_;
  size_t max_states_;
  Work& work_;
  std::vector<uint32_t> mark_;
  uint32_t stamp_ = 0;
  absl::node_hash_map<StateSet, int32_t> ids_;
  std::vector<const StateSet*> sets_;
  Dfa dfa_;
  int64_t num_bytes_ = 0;  // that are held until the construction ends
};

}  // namespace

absl::StatusOr<Dfa> Determinise(const Nfa& nfa, int32_t start, int32_t accept, size_t max_states, Work& work) {
  return SubsetConstruction(nfa, accept, max_states, work).Run(start);
}

absl::StatusOr<Dfa> Intersect(const Dfa& a, const Dfa& b, size_t max_states, Work& work) {
  Dfa both;
  if (a.states.empty() || b.states.empty()) return both;
  absl::flat_hash_map<std::pair<int32_t, int32_t>, int32_t> ids;
  std::vector<std::pair<int32_t, int32_t>> pairs;
  const auto id_of = [&](std::pair<int32_t, int32_t> pair) {
    const auto [found, is_new] = ids.try_emplace(pair, static_cast<int32_t>(pairs.size()));
    if (is_new) pairs.push_back(pair);
    return found->second;
  };
  id_of({0, 0});
  for (size_t id = 0; id < pairs.size(); ++id) {
    if (id >= max_states) return InputError("it has more than {} states; make it simpler", max_states);
    const Dfa::State &from_a = a.states[pairs[id].first], &from_b = b.states[pairs[id].second];
    Dfa::State state{.edges = {}, .calls = {}, .accepts = from_a.accepts && from_b.accepts};
    for (auto x = from_a.edges.begin(), y = from_b.edges.begin(); x != from_a.edges.end() && y != from_b.edges.end();) {
      const uint32_t first = std::max(x->first, y->first), last = std::min(x->last, y->last);
      if (first <= last) state.edges.push_back({first, last, id_of({x->target, y->target})});
      x->last < y->last ? ++x : ++y;
    }
    work.Hold(static_cast<int64_t>(sizeof(state) + state.edges.size() * sizeof(Edge)));
    PENSTOCK_RETURN_IF_ERROR(work.Spend(static_cast<int64_t>(from_a.edges.size() + from_b.edges.size() + 1)));
    both.states.push_back(std::move(state));
  }
  return Trim(both);
}

Dfa Complement(const Dfa& dfa) {
  Dfa other = dfa;
  const auto rest = static_cast<int32_t>(other.states.size());
  other.states.emplace_back();
  for (Dfa::State& state : other.states) {
    state.accepts = !state.accepts;
    std::vector<Edge> edges;
    uint32_t next = 0;
    // An edge of surrogates alone could not be taken. It would make a state live from which nothing is accepted.
    const auto add_rest = [&](uint32_t end) {
      CodeSet gap;
      if (end > next) gap.Add(next, end - 1);
      for (const CodeRange& range : gap.ranges()) edges.push_back({range.first, range.last, rest});
    };
    for (const Edge& edge : state.edges) {
      add_rest(edge.first);
      edges.push_back(edge);
      next = edge.last + 1;
    }
    add_rest(kMaxCodePoint + 1);
    state.edges = std::move(edges);
  }
  return other;
}

Dfa Trim(const Dfa& dfa) {
  const size_t num_states = dfa.states.size();
  std::vector<std::vector<int32_t>> sources(num_states);
  for (size_t i = 0; i < num_states; ++i) {
    for (const Edge& edge : dfa.states[i].edges) sources[edge.target].push_back(static_cast<int32_t>(i));
  }
  std::vector<bool> lives(num_states, false);
  std::vector<int32_t> queue;
  for (size_t i = 0; i < num_states; ++i) {
    if (!dfa.states[i].accepts) continue;
    lives[i] = true;
    queue.push_back(static_cast<int32_t>(i));
  }
  while (!queue.empty()) {
    const int32_t state = queue.back();
    queue.pop_back();
    for (const int32_t source : sources[state]) {
      if (lives[source]) continue;
      lives[source] = true;
      queue.push_back(source);
    }
  }
  Dfa trimmed;
  if (num_states == 0 || !lives[0]) return trimmed;
  std::vector<int32_t> new_id(num_states, -1), order = {0};
  new_id[0] = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const Dfa::State& from = dfa.states[order[i]];
    Dfa::State state{.edges = {}, .calls = from.calls, .accepts = from.accepts};
    for (const Edge& edge : from.edges) {
      if (!lives[edge.target]) continue;
      if (new_id[edge.target] < 0) {
        new_id[edge.target] = static_cast<int32_t>(order.size());
        order.push_back(edge.target);
      }
      state.edges.push_back({edge.first, edge.last, new_id[edge.target]});
    }
    trimmed.states.push_back(std::move(state));
  }
  return trimmed;
}

}  // namespace penstock::grammar
