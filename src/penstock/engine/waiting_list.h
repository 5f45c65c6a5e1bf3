// The requests that wait for a place in the batch. The highest priority goes first. Among equals, the request goes
// first whose beginning is computed for the most tokens.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "penstock/engine/sequence.h"

namespace penstock {

class WaitingList {
 public:
  // Adds a sequence behind those of its priority, or before them if it had a place.
  void Add(std::unique_ptr<Sequence> sequence);
  void AddPaused(std::unique_ptr<Sequence> sequence);
  // Returns the index of the sequence that comes next, of which `num_shared` returns the tokens that are computed
  // already. REQUIRES: !empty().
  size_t Choose(absl::FunctionRef<int64_t(const Sequence&)> num_shared) const;
  Sequence& operator[](size_t index) { return *sequences_[index]; }
  std::unique_ptr<Sequence> Take(size_t index);
  // Returns false if the request does not wait.
  bool Remove(RequestId id);
  // Removes all, and returns their ids.
  std::vector<RequestId> Clear();

  bool empty() const { return sequences_.empty(); }
  int64_t size() const { return std::ssize(sequences_); }
  int64_t num_tokens() const { return num_tokens_; }  // of their prompts
  const std::deque<std::unique_ptr<Sequence>>& sequences() const { return sequences_; }

 private:
  void Insert(std::unique_ptr<Sequence> sequence, bool is_first);

  std::deque<std::unique_ptr<Sequence>> sequences_;
  int64_t num_tokens_ = 0;
  int64_t num_passed_over_ = 0;  // how often the first one has been passed over
};

}  // namespace penstock
