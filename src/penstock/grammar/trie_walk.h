// Follows all tokens below some nodes of the vocabulary's trie at once.
//
// Sets of threads have numbers, and a table says to which set each byte leads: few sets occur, again and again. When
// there are many, further ones stay without a number, and each step from them is computed.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/limits.h"
#include "penstock/grammar/matcher.h"
#include "penstock/grammar/token_trie.h"

namespace penstock::grammar {

class TrieWalk {
 public:
  // The most memory that sets and their stacks take.
  static constexpr uint64_t kMaxBytes = 512 << 10;

  // No text longer than a token is followed, so the matcher may take a count that is far from its limits for a loop.
  TrieWalk(Matcher& matcher, const TokenTrie& trie) : matcher_(matcher), trie_(trie), nodes_(trie.nodes()) {
    matcher_.SetReach(static_cast<int32_t>(trie.longest_token()) + 1);
  }

  // Visits each node from `first` to `end` behind whose bytes a thread is left or the text is complete. The last
  // argument of a visit is how many nodes below it are the same and get no visits of their own.
  template <typename Visit>
  void Run(uint32_t first, uint32_t end, std::span<const Thread> start, const Visit& visit) {
    Begin(end, start);
    for (uint32_t i = first; i < end && matcher_.num_steps() <= kMaxMaskSteps;) {
      while (levels_.back().end <= i) Leave();
      const TokenTrie::Node node = nodes_[i];
      const size_t first_thread = threads_.size(), num_stacks = matcher_.stacks().size();
      const Behind behind = Step(static_cast<uint8_t>(node.byte));
      if (!behind.lives && !behind.complete) {
        RewindTo(num_stacks);
        i += 1 + node.num_below;
        continue;
      }
      const bool is_alike = node.num_below > 0 && IsAlike(i, behind);
      visit(i, node, behind.complete, is_alike ? node.num_below : 0);
      if (behind.lives && node.num_below > 0 && !is_alike) {
        levels_.push_back({i + 1 + node.num_below, behind.set, first_thread, num_stacks});
        ++i;
      } else {
        threads_.resize(first_thread);
        RewindTo(num_stacks);
        i += 1 + node.num_below;
      }
    }
    while (!levels_.empty()) Leave();
  }

 private:
  static constexpr size_t kMaxSets = 256, kMaxThreads = 32, kMaxStacks = 8192;
  static constexpr int16_t kUnknown = -1, kDead = -2;

  struct Set {
    Set(std::span<const Thread> of, bool is_complete) : threads(of.begin(), of.end()), complete(is_complete) {
      next.fill(kUnknown);
    }
    std::vector<Thread> threads;
    bool complete;                          // the text matches as it is
    std::optional<ByteClasses> loops = {};  // bytes that lead back to the set, once they are known
    std::array<int16_t, 256> next;          // the number of a set, kUnknown or kDead
  };
  struct Level {
    uint32_t end = 0;         // of the nodes below
    Set* set = nullptr;       // nullptr: it has no number, and its threads are in threads_, up to the next level's
    size_t first_thread = 0;  // in threads_
    size_t num_stacks = 0;    // before the level
  };
  struct Behind {
    Set* set = nullptr;
    bool lives = false, complete = false;
  };

  void Begin(uint32_t end, std::span<const Thread> start) {
    threads_.clear();
    levels_.assign(1, {.end = end, .num_stacks = matcher_.stacks().size()});
    if (last_start_ == nullptr || !std::ranges::equal(last_start_->threads, start)) last_start_ = SetOf(start, false);
    levels_[0].set = last_start_;
    if (last_start_ == nullptr) threads_.assign(start.begin(), start.end());
  }

  void Leave() {
    threads_.resize(levels_.back().first_thread);
    RewindTo(levels_.back().num_stacks);
    levels_.pop_back();
  }

  // Forgets stacks that came later, but for those of sets.
  void RewindTo(size_t num_stacks) { matcher_.stacks().Rewind(std::max(num_stacks, num_kept_stacks_)); }

  // Returns the set of these threads, or nullptr if there is no room for it.
  Set* SetOf(std::span<const Thread> threads, bool complete) {
    if (threads.size() > kMaxThreads) return nullptr;
    key_.assign(1, complete ? 1 : 0);
    for (const Thread& thread : threads) key_.insert(key_.end(), {thread.state, thread.stack});
    if (const auto found = numbers_.find(key_); found != numbers_.end()) return &sets_[found->second];
    if (sets_.size() == kMaxSets || matcher_.stacks().size() > kMaxStacks) return nullptr;
    numbers_.emplace(key_, static_cast<int16_t>(sets_.size()));
    num_kept_stacks_ = matcher_.stacks().size();
    return &sets_.emplace_back(threads, complete);
  }

  // Follows a byte from the last level. Threads of a set without a number are appended to threads_.
  Behind Step(uint8_t byte) {
    const Level& level = levels_.back();
    if (level.set != nullptr) {
      const int16_t known = level.set->next[byte];
      if (known == kDead) return {};
      if (known >= 0) return Known(sets_[known]);
      from_ = level.set->threads;
    } else {
      from_.assign(threads_.begin() + static_cast<int64_t>(level.first_thread), threads_.end());
    }
    const size_t first_thread = threads_.size();
    const bool complete = matcher_.Step(from_, byte, threads_);
    const bool lives = threads_.size() > first_thread;
    int16_t number = kDead;
    if (lives || complete) {
      Set* const set = SetOf(std::span(threads_).subspan(first_thread), complete);
      if (set == nullptr) return {.lives = lives, .complete = complete};
      number = numbers_.find(key_)->second;
    }
    threads_.resize(first_thread);
    if (level.set != nullptr) level.set->next[byte] = number;
    return number == kDead ? Behind() : Known(sets_[number]);
  }

  static Behind Known(Set& set) { return {&set, !set.threads.empty(), set.complete}; }

  // Whether all bytes below the node lead from the set back to it.
  bool IsAlike(uint32_t node, const Behind& behind) {
    constexpr uint32_t kFewNodes = 64;
    constexpr size_t kFewThreads = 4;
    if (behind.set == nullptr || behind.set->threads.empty()) return false;
    Set& set = *behind.set;
    if (!set.loops.has_value()) {
      const bool is_single = set.threads.size() == 1;
      if (!is_single && (set.threads.size() > kFewThreads || nodes_[node].num_below < kFewNodes)) return false;
      set.loops = LoopsOf(set);
    }
    return (trie_.classes_below(node) & ~*set.loops) == 0;
  }

  // Returns the classes of bytes that lead from the set back to it: one thread follows them and brings the others back.
  ByteClasses LoopsOf(const Set& set) {
    for (const Thread& thread : set.threads) {
      ByteClasses loops = matcher_.automaton().LoopClasses(thread.state);
      for (const Thread& other : set.threads) {
        if (other.state != thread.state || other.stack != thread.stack) loops &= ~EdgeClasses(other.state);
      }
      uint8_t byte = 0;
      while (byte < 0x80 && (ClassOf(byte) & loops) == 0) ++byte;
      if (byte == 0x80) continue;
      const size_t num_threads = threads_.size(), num_stacks = matcher_.stacks().size();
      const bool complete = matcher_.Step({&thread, 1}, byte, threads_);
      const bool is_same =
          complete == set.complete && std::ranges::equal(std::span(threads_).subspan(num_threads), set.threads);
      threads_.resize(num_threads);
      RewindTo(num_stacks);
      if (is_same) return loops;
    }
    return 0;
  }

  // Returns the classes of the bytes that lead on from a state.
  ByteClasses EdgeClasses(int32_t state) const {
    ByteClasses classes = 0;
    const Automaton& automaton = matcher_.automaton();
    for (const ByteEdge& edge : automaton.edges(automaton.state(state))) {
      for (int byte = edge.first; byte <= edge.last; ++byte) {
        classes |= byte < 0x80 ? ClassOf(static_cast<uint8_t>(byte)) : kWideClass | kOtherClass;
      }
    }
    return classes;
  }

  Matcher& matcher_;
  const TokenTrie& trie_;
  std::span<const TokenTrie::Node> nodes_;
  std::deque<Set> sets_;
  absl::flat_hash_map<std::vector<int32_t>, int16_t> numbers_;  // by whether it is complete, and its threads
  std::vector<int32_t> key_;
  size_t num_kept_stacks_ = 0;
  Set* last_start_ = nullptr;
  std::vector<Thread> threads_, from_;
  std::vector<Level> levels_;
};

}  // namespace penstock::grammar
