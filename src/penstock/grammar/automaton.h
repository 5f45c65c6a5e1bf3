// The automaton of a grammar: a finite automaton of bytes for each rule, whose edges may call other rules.
//
// Calls make it a pushdown automaton. A rule that is repeated so often that copies would take too much memory is called
// from a state that counts. Each state can be left, and some text leads from it to the end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/grammar/byte_classes.h"
#include "penstock/grammar/grammar.h"

namespace penstock::grammar {

struct ByteEdge {
  uint8_t first = 0;
  uint8_t last = 0;
  int32_t target = 0;
};

// Calls the rule that begins at `callee`, and goes on at `target` after it.
struct StateCall {
  int32_t callee = 0;
  int32_t target = 0;
};

class Automaton {
 public:
  struct State {
    uint32_t first_edge = 0;
    uint32_t first_call = 0;
    uint16_t num_edges = 0;
    uint16_t num_calls = 0;
    bool accepts = false;
    int32_t repeat = -1;  // index of a Repeat: the state counts the calls of its rule, and has no edges
  };
  struct Repeat {
    int32_t callee = 0;
    int32_t min = 0;
    int32_t max = 0;   // perhaps kUnbounded
    int32_t loop = 0;  // begins a rule that repeats without counting: once or more often
  };

  int32_t start() const { return start_; }
  const State& state(int32_t idx) const { return states_[idx]; }
  int64_t num_states() const { return static_cast<int64_t>(states_.size()); }
  std::span<const ByteEdge> edges(const State& state) const {
    return {edges_.data() + state.first_edge, state.num_edges};
  }
  std::span<const StateCall> calls(const State& state) const {
    return {calls_.data() + state.first_call, state.num_calls};
  }
  const Repeat& repeat(const State& state) const { return repeats_[state.repeat]; }

  // Returns the state behind a byte, or -1.
  int32_t Next(int32_t idx, uint8_t byte) const {
    const State& from = states_[idx];
    for (const ByteEdge& edge : edges(from)) {
      if (byte <= edge.last) return byte >= edge.first ? edge.target : -1;
    }
    return -1;
  }
  // Whether the state has edges and nothing else, so that a thread simply stays on it. With `may_accept`, the rule may
  // also end in it.
  bool IsPlain(int32_t idx, bool may_accept = false) const {
    const State& state = states_[idx];
    return state.num_edges > 0 && (may_accept || !state.accepts) && state.num_calls == 0;
  }
  // Returns the classes of bytes that lead from the state back to it, if they are all that follows.
  ByteClasses LoopClasses(int32_t idx) const;
  // Whether a rule ends in the state, and cannot go on.
  bool IsEnd(int32_t idx) const {
    const State& state = states_[idx];
    return state.accepts && state.num_edges == 0 && state.num_calls == 0;
  }

  uint64_t memory_bytes() const {
    return states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(ByteEdge) +
           calls_.capacity() * sizeof(StateCall) + repeats_.capacity() * sizeof(Repeat);
  }

 private:
  friend class AutomatonBuilder;

  std::vector<State> states_;
  std::vector<ByteEdge> edges_;  // of each state: sorted
  std::vector<StateCall> calls_;
  std::vector<Repeat> repeats_;
  int32_t start_ = 0;
};

// kInput when the grammar matches nothing, calls a rule before any byte of the same rule (left recursion), or exceeds
// kMaxGrammarStates.
absl::StatusOr<Automaton> Compile(const Grammar& grammar, Work& work);

}  // namespace penstock::grammar
