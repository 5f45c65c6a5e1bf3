#include "penstock/engine/waiting_list.h"

#include <algorithm>
#include <utility>

namespace penstock {

void WaitingList::Add(std::unique_ptr<Sequence> sequence) { Insert(std::move(sequence), /*is_first=*/false); }

void WaitingList::AddPaused(std::unique_ptr<Sequence> sequence) { Insert(std::move(sequence), /*is_first=*/true); }

void WaitingList::Insert(std::unique_ptr<Sequence> sequence, bool is_first) {
  num_tokens_ += sequence->num_prompt_tokens();
  const int priority = sequence->priority();
  const auto place = std::ranges::find_if(sequences_, [&](const auto& other) {
    return other->priority() < priority || (is_first && other->priority() == priority);
  });
  sequences_.insert(place, std::move(sequence));
}

size_t WaitingList::Choose(absl::FunctionRef<int64_t(const Sequence&)> num_shared) const {
  // A request is passed over only this often, so all get their turn.
  constexpr int64_t kMaxPassedOver = 64;
  constexpr size_t kNumCompared = 64;
  if (num_passed_over_ >= kMaxPassedOver || sequences_.size() == 1) return 0;
  size_t best = 0;
  int64_t most = 0;
  for (size_t i = 0; i < std::min(sequences_.size(), kNumCompared); ++i) {
    if (sequences_[i]->priority() < sequences_[0]->priority()) break;
    const int64_t shared = num_shared(*sequences_[i]);
    if (shared > most) {
      best = i;
      most = shared;
    }
  }
  return best;
}

std::unique_ptr<Sequence> WaitingList::Take(size_t index) {
  std::unique_ptr<Sequence> sequence = std::move(sequences_[index]);
  sequences_.erase(sequences_.begin() + static_cast<int64_t>(index));
  num_tokens_ -= sequence->num_prompt_tokens();
  num_passed_over_ = index == 0 ? 0 : num_passed_over_ + 1;
  return sequence;
}

bool WaitingList::Remove(RequestId id) {
  const auto found = std::ranges::find_if(sequences_, [&](const auto& sequence) { return sequence->id() == id; });
  if (found == sequences_.end()) return false;
  num_tokens_ -= (*found)->num_prompt_tokens();
  sequences_.erase(found);
  return true;
}

std::vector<RequestId> WaitingList::Clear() {
  std::vector<RequestId> ids;
  for (const auto& sequence : sequences_) ids.push_back(sequence->id());
  sequences_.clear();
  num_tokens_ = 0;
  return ids;
}

}  // namespace penstock
