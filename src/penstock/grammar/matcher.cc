#include "penstock/grammar/matcher.h"

#include <algorithm>
#include <utility>

namespace penstock::grammar {

size_t Stacks::BucketOf(const Frame& frame) const {
  uint64_t hash = static_cast<uint32_t>(frame.state) * 0x9E3779B97F4A7C15ull;
  hash = (hash ^ static_cast<uint32_t>(frame.count)) * 0xC2B2AE3D27D4EB4Full;
  hash = (hash ^ static_cast<uint32_t>(frame.parent)) * 0x9E3779B97F4A7C15ull;
  return static_cast<size_t>(hash >> 32) & (buckets_.size() - 1);
}

void Stacks::Grow() {
  constexpr size_t kFewBuckets = 64;
  buckets_.assign(std::max(kFewBuckets, 2 * buckets_.size()), -1);
  // Newer nodes come first in their lists, so Rewind() finds them there.
  for (size_t i = 0; i < nodes_.size(); ++i) {
    int32_t& bucket = buckets_[BucketOf(nodes_[i].frame)];
    nodes_[i].next = std::exchange(bucket, static_cast<int32_t>(i));
  }
}

StackId Stacks::Push(const Frame& frame) {
  if (nodes_.size() >= buckets_.size()) Grow();
  int32_t& bucket = buckets_[BucketOf(frame)];
  for (int32_t id = bucket; id >= 0; id = nodes_[id].next) {
    if (nodes_[id].frame == frame) return id;
  }
  nodes_.push_back({frame, bucket});
  return bucket = static_cast<int32_t>(nodes_.size()) - 1;
}

void Stacks::Rewind(size_t size) {
  while (nodes_.size() > size) {
    buckets_[BucketOf(nodes_.back().frame)] = nodes_.back().next;
    nodes_.pop_back();
  }
}

void Matcher::AddItem(const Item& item) {
  constexpr size_t kFewItems = 16;
  if (queue_.size() <= kFewItems) {
    if (std::ranges::find(queue_, item) != queue_.end()) return;
    if (queue_.size() == kFewItems) {
      seen_.clear();
      seen_.insert(queue_.begin(), queue_.end());
      seen_.insert(item);
    }
  } else if (!seen_.insert(item).second) {
    return;
  }
  if (queue_.size() >= kMaxGrammarThreads) {
    has_overflown_ = true;
    return;
  }
  queue_.push_back(item);
}

bool Matcher::AddReturn(StackId stack) {
  if (stack == kNoStack) return true;
  const Frame frame = stacks_.top(stack);
  AddItem({frame.state, frame.count, frame.parent});
  return false;
}

bool Matcher::CloseQueue(std::vector<Thread>& threads) {
  bool complete = false;
  for (size_t i = 0; i < queue_.size(); ++i) {
    const Item item = queue_[i];
    const Automaton::State& state = automaton_->state(item.state);
    if (state.num_edges > 0) threads.push_back({item.state, item.stack});
    if (state.accepts) complete |= AddReturn(item.stack);
    for (const StateCall& call : automaton_->calls(state)) {
      // A call at the end of a rule needs no way back.
      const bool is_last = automaton_->IsEnd(call.target);
      AddItem({call.callee, 0, is_last ? item.stack : stacks_.Push({call.target, 0, item.stack})});
    }
    if (state.repeat < 0) continue;
    const Automaton::Repeat& repeat = automaton_->repeat(state);
    if (item.count >= repeat.min) complete |= AddReturn(item.stack);
    if (reach_ >= 0 && IsFarFromLimits(repeat, item.count + 1, reach_)) {
      AddItem({repeat.loop, 0, item.stack});
    } else if (repeat.max == kUnbounded) {
      const int32_t count = std::min(item.count + 1, repeat.min);
      AddItem({repeat.callee, 0, stacks_.Push({item.state, count, item.stack})});
    } else if (item.count < repeat.max) {
      const int32_t count = item.count + 1;
      const bool is_last = count == repeat.max;
      AddItem({repeat.callee, 0, is_last ? item.stack : stacks_.Push({item.state, count, item.stack})});
    }
  }
  num_steps_ += static_cast<int64_t>(queue_.size());
  queue_.clear();
  return complete;
}

bool Matcher::Close(std::initializer_list<Item> items, std::vector<Thread>& threads) {
  for (const Item& item : items) AddItem(item);
  return CloseQueue(threads);
}

bool Matcher::Return(StackId stack, std::vector<Thread>& threads) { return AddReturn(stack) || CloseQueue(threads); }

bool Matcher::Step(std::span<const Thread> from, uint8_t byte, std::vector<Thread>& threads) {
  num_steps_ += static_cast<int64_t>(from.size());
  if (from.size() == 1) {  // by far the most frequent case
    const int32_t next = automaton_->Next(from[0].state, byte);
    if (next < 0) return false;
    if (automaton_->IsPlain(next)) {
      threads.push_back({next, from[0].stack});
      return false;
    }
    AddItem({next, 0, from[0].stack});
    return CloseQueue(threads);
  }
  for (const Thread& thread : from) {
    const int32_t next = automaton_->Next(thread.state, byte);
    if (next >= 0) AddItem({next, 0, thread.stack});
  }
  return CloseQueue(threads);
}

}  // namespace penstock::grammar
