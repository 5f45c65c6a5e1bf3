// Finite automata over bytes or code points whose edges may also call rules. Thompson's construction builds an Nfa;
// Determinise() turns it into a Dfa.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"

namespace penstock::grammar {

// Counts the steps of a compilation and the memory of its automata, so that no text takes long or much. The limit is a
// number of steps and not a time.
class Work {
 public:
  explicit Work(int64_t max_steps = kMaxGrammarSteps) : num_left_(max_steps) {}
  absl::Status Spend(int64_t num_steps) {
    num_left_ -= num_steps;
    if (num_left_ < 0) return InputError("it takes too much work to compile; make it simpler");
    return num_bytes_ <= kMaxCompileBytes ? absl::OkStatus()
                                          : InputError("it takes too much memory to compile; make it simpler");
  }
  // Counts memory. The next Spend() fails if it is too much.
  void Hold(int64_t num_bytes) {
    num_bytes_ += num_bytes;
    peak_bytes_ = std::max(peak_bytes_, num_bytes_);
  }
  void Release(int64_t num_bytes) { num_bytes_ -= num_bytes; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  int64_t num_left_;
  int64_t num_bytes_ = 0, peak_bytes_ = 0;
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
  // Its memory counts as work, which must outlive it.
  explicit Nfa(Work& work) : work_(work) {}
  ~Nfa() { work_.Release(num_bytes_); }
  Nfa(const Nfa&) = delete;
  Nfa& operator=(const Nfa&) = delete;

  int32_t AddState() {
    Hold(sizeof(State));
    states_.emplace_back();
    return static_cast<int32_t>(states_.size()) - 1;
  }
  void AddEdge(int32_t from, uint32_t first, uint32_t last, int32_t to) {
    Hold(states_[from].edges.empty() ? kMinBlockBytes : sizeof(Edge));
    states_[from].edges.push_back({first, last, to});
  }
  void AddEmpty(int32_t from, int32_t to) {
    Hold(states_[from].empty.empty() ? kMinBlockBytes : sizeof(int32_t));
    states_[from].empty.push_back(to);
  }
  void AddCall(int32_t from, int32_t rule, int32_t to) {
    Hold(states_[from].calls.empty() ? kMinBlockBytes : sizeof(Call));
    states_[from].calls.push_back({rule, to});
  }
  int64_t size() const { return static_cast<int64_t>(states_.size()); }

  struct State {
    std::vector<Edge> edges;
    std::vector<Call> calls;
    std::vector<int32_t> empty;
  };
  const State& state(int32_t idx) const { return states_[idx]; }

 private:
  static constexpr size_t kMinBlockBytes = 32;  // that an allocation takes
  void Hold(size_t num_bytes) {
    num_bytes_ += static_cast<int64_t>(num_bytes);
    work_.Hold(static_cast<int64_t>(num_bytes));
  }

  Work& work_;
  std::deque<State> states_;  // its memory grows in small steps
  int64_t num_bytes_ = 0;
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

// kInput when the automaton has more than `max_states`. The memory of the Dfa stays counted.
absl::StatusOr<Dfa> Determinise(const Nfa& nfa, int32_t start, int32_t accept, size_t max_states, Work& work);

// Returns what both accept, without states from which nothing is accepted. REQUIRES: no calls. An automaton that
// accepts nothing has no states.
absl::StatusOr<Dfa> Intersect(const Dfa& a, const Dfa& b, size_t max_states, Work& work);
// Returns the texts of code points that the automaton does not accept. REQUIRES: no calls.
Dfa Complement(const Dfa& dfa);
// Removes the states from which nothing is accepted, or that cannot be reached.
Dfa Trim(const Dfa& dfa);

}  // namespace penstock::grammar
