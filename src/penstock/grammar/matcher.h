// Follows a text through an automaton, byte by byte, in all ways in which it may match.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "penstock/grammar/automaton.h"

namespace penstock::grammar {

using StackId = int32_t;
inline constexpr StackId kNoStack = -1;  // nothing has been called

// A call that has not ended: where it goes on (`state`), and for a state that repeats how often it has called.
struct Frame {
  int32_t state = 0;
  int32_t count = 0;
  StackId parent = kNoStack;
  bool operator==(const Frame&) const = default;
};

// Stacks of calls, which share their lower parts. Equal stacks have one id.
class Stacks {
 public:
  StackId Push(const Frame& frame);
  const Frame& top(StackId stack) const { return nodes_[stack].frame; }
  size_t size() const { return nodes_.size(); }
  // Forgets all stacks that were added since there were `size`.
  void Rewind(size_t size);

 private:
  struct Node {
    Frame frame;
    int32_t next = -1;  // in the list of its bucket
  };
  size_t BucketOf(const Frame& frame) const;
  void Grow();

  std::vector<Node> nodes_;
  std::vector<int32_t> buckets_;  // a power of two, or none
};

// One way in which a text may match: a state with edges, and the calls around it.
struct Thread {
  int32_t state = 0;
  StackId stack = kNoStack;
  bool operator==(const Thread&) const = default;
};

// All ways in which a text may match so far.
struct Position {
  std::vector<Thread> threads;
  bool complete = false;  // the text matches as it is
};

class Matcher {
 public:
  explicit Matcher(const Automaton& automaton) : automaton_(&automaton) {}

  const Automaton& automaton() const { return *automaton_; }
  Stacks& stacks() { return stacks_; }
  const Stacks& stacks() const { return stacks_; }

  // Appends the threads at the beginning of a state, in the calls of `stack`. Returns whether the outermost call ends.
  bool Enter(int32_t state, StackId stack, std::vector<Thread>& threads) { return Close({{state, 0, stack}}, threads); }
  // The same behind the end of the innermost call.
  bool Return(StackId stack, std::vector<Thread>& threads);
  // Appends the threads behind a byte. Returns whether the text is complete behind it.
  bool Step(std::span<const Thread> from, uint8_t byte, std::vector<Thread>& threads);

  // From now on texts of at most so many bytes follow: where they cannot reach the limit of a count, the rule that
  // loops without counting stands for it. Then most bytes lead to a stack that is there already.
  void SetReach(int32_t num_bytes) { reach_ = num_bytes; }
  // Whether a repetition may end behind its call number `count`, and texts within the reach do not end it.
  static bool IsFarFromLimits(const Automaton::Repeat& repeat, int32_t count, int32_t reach) {
    return count >= repeat.min && (repeat.max == kUnbounded || repeat.max - count > reach);
  }

  // Returns how many threads have been followed, as a measure of work.
  int64_t num_steps() const { return num_steps_; }
  void ResetSteps() { num_steps_ = 0; }
  // Takes the stacks of another matcher.
  void ReplaceStacks(Matcher& other) { std::swap(stacks_, other.stacks_); }
  // There are more than kMaxGrammarThreads ways to match a text: some were dropped.
  bool has_overflown() const { return has_overflown_; }

 private:
  struct Item {
    int32_t state = 0;
    int32_t count = 0;
    StackId stack = kNoStack;
    template <typename H>
    friend H AbslHashValue(H hash, const Item& item) {
      return H::combine(std::move(hash), item.state, item.count, item.stack);
    }
    bool operator==(const Item&) const = default;
  };
  bool Close(std::initializer_list<Item> items, std::vector<Thread>& threads);
  bool CloseQueue(std::vector<Thread>& threads);
  // Adds what is behind the end of the innermost call. Returns whether it was the outermost one.
  bool AddReturn(StackId stack);
  void AddItem(const Item& item);

  const Automaton* automaton_;
  Stacks stacks_;
  std::vector<Item> queue_;
  absl::flat_hash_set<Item> seen_;  // of many items
  int32_t reach_ = -1;              // -1: any text may follow
  int64_t num_steps_ = 0;
  bool has_overflown_ = false;
};

}  // namespace penstock::grammar
