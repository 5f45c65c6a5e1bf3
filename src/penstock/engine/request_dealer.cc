#include "penstock/engine/request_dealer.h"

#include <algorithm>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {

RequestDealer::Ranks RequestDealer::HomesOf(uint64_t page_hash) const {
  Ranks ranks = 0;
  for (const Homes* homes : {&young_, &old_}) {
    if (const auto found = homes->find(page_hash); found != homes->end()) ranks |= found->second;
  }
  return ranks;
}

std::vector<int64_t> RequestDealer::SharedTokens(std::span<const uint64_t> page_hashes) const {
  std::vector<int64_t> shared(loads_.size());
  Ranks left = ~Ranks{0};
  for (size_t i = 0; i < page_hashes.size() && left != 0; ++i) {
    left &= HomesOf(page_hashes[i]);
    for (int rank = 0; rank < std::ssize(loads_); ++rank) {
      if ((left & BitOf(rank)) != 0) shared[rank] = static_cast<int64_t>(i + 1) * kKvPageTokens;
    }
  }
  return shared;
}

void RequestDealer::AddHome(uint64_t page_hash, int rank) {
  // A table that is 7/8 full. While it grows, it exists twice.
  constexpr size_t kMaxHomes = (1 << 15) / 8 * 7;
  static_assert(3 * (1 << 15) * (sizeof(Homes::value_type) + 1) <= kMaxBytes);
  if (young_.size() >= kMaxHomes) {
    old_ = std::move(young_);
    young_.clear();
  }
  young_[page_hash] |= BitOf(rank);
}

std::optional<int> RequestDealer::Deal(RequestId id, const Request& request, std::span<const uint64_t> page_hashes) {
  const std::vector<int64_t> shared = SharedTokens(page_hashes);
  const auto rows_at = [&](int rank) {
    return std::ssize(request.prompt_ids) - shared[rank] + request.sampling.max_tokens;
  };
  const auto has_place = [&](int rank) { return loads_[rank].num_requests < places_of_rank_; };
  // Returns the rank where the work ends soonest, of those that fit; -1 if none does.
  const auto best_of = [&](const auto& fits) {
    int best = -1;
    for (int rank = 0; rank < std::ssize(loads_); ++rank) {
      if (!fits(rank)) continue;
      if (best < 0 || loads_[rank].num_rows + rows_at(rank) < loads_[best].num_rows + rows_at(best)) best = rank;
    }
    return best;
  };
  const int best = best_of(has_place);
  const int wanted = best_of([](int) { return true; });
  if (best < 0 || shared[wanted] > shared[best]) return std::nullopt;
  Load& load = loads_[best];
  ++load.num_requests;
  load.num_rows += rows_at(best);
  for (const uint64_t hash : page_hashes) AddHome(hash, best);
  const bool is_new = active_.emplace(id, Active{best, rows_at(best)}).second;
  PENSTOCK_CHECK(is_new);
  return best;
}

void RequestDealer::Finish(RequestId id) {
  const auto found = active_.find(id);
  PENSTOCK_CHECK(found != active_.end());
  Load& load = loads_[found->second.rank];
  --load.num_requests;
  load.num_rows -= found->second.num_rows;
  active_.erase(found);
}

}  // namespace penstock
