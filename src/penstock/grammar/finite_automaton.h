// Finite automata over bytes or code points whose edges may also call rules. Thompson's construction builds an Nfa;
// Determinise() turns it into a Dfa.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"

namespace penstock::grammar {

// Counts the steps of a compilation, so that no text takes long: the limit is a number of steps and not a time.
class Work {
 public:
  explicit Work(int64_t max_steps = kMaxGrammarSteps) : num_left_(max_steps) {}
  absl::Status Spend(int64_t num_steps) {
    num_left_ -= num_steps;
    return num_left_ >= 0 ? absl::OkStatus() : InputError("it takes too much work to compile; make it simpler");
  }

 private:
  int64_t num_left_;
};

// A symbol from `first` to `last` leads to `target`.
struct Edge {
  uint32_t first = 0;
  uint32_t last = 0;
  int32_t target = 0;
};

// A text of the rule leads to `target`.
struct Call {
  int32_t rule = 0;
  int32_t target = 0;
};

class Nfa {
 public:
  int32_t AddState() {
    states_.emplace_back();
    return static_cast<int32_t>(states_.size()) - 1;
  }
  void AddEdge(int32_t from, uint32_t first, uint32_t last, int32_t to) {
    states_[from].edges.push_back({first, last, to});
  }
  void AddEmpty(int32_t from, int32_t to) { states_[from].empty.push_back(to); }
  void AddCall(int32_t from, int32_t rule, int32_t to) { states_[from].calls.push_back({rule, to}); }
  int64_t size() const { return static_cast<int64_t>(states_.size()); }

  struct State {
    std::vector<Edge> edges;
    std::vector<Call> calls;
    std::vector<int32_t> empty;
  };
  const State& state(int32_t idx) const { return states_[idx]; }

 private:
  std::vector<State> states_;
};

// State 0 is the first one. A symbol leads to at most one state, and so does a rule.
struct Dfa {
  struct State {
    std::vector<Edge> edges;  // sorted
    std::vector<Call> calls;
    bool accepts = false;
  };
  std::vector<State> states;
};

// kInput when the automaton has more than `max_states`.
absl::StatusOr<Dfa> Determinise(const Nfa& nfa, int32_t start, int32_t accept, size_t max_states, Work& work);

// Returns what both accept, without states from which nothing is accepted. REQUIRES: no calls. An automaton that
// accepts nothing has no states.
absl::StatusOr<Dfa> Intersect(const Dfa& a, const Dfa& b, size_t max_states, Work& work);
// Returns the texts over symbols up to `max_symbol` that the automaton does not accept. REQUIRES: no calls.
Dfa Complement(const Dfa& dfa, uint32_t max_symbol);
// Removes the states from which nothing is accepted, or that cannot be reached.
Dfa Trim(const Dfa& dfa);

}  // namespace penstock::grammar
