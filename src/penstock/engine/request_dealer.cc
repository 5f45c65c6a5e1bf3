#include "penstock/engine/request_dealer.h"

#include <algorithm>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/memory/prefix_cache.h"

namespace penstock {

RequestDealer::RequestDealer(int num_ranks, int64_t places_of_rank, bool shares_prefixes)
    : places_of_rank_(places_of_rank), shares_prefixes_(shares_prefixes), loads_(num_ranks) {}

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
  constexpr size_t kMaxHomes = kMaxBytes / 2 / (2 * sizeof(Homes::value_type) + 2);
  if (young_.size() >= kMaxHomes) {
    old_ = std::move(young_);
    young_.clear();
  }
  young_[page_hash] |= BitOf(rank);
}

std::optional<int> RequestDealer::Deal(RequestId id, const Request& request) {
  const std::vector<uint64_t> hashes = shares_prefixes_ ? PageHashes(request.prompt_ids) : std::vector<uint64_t>();
  const std::vector<int64_t> shared = SharedTokens(hashes);
  const auto rows_at = [&](int rank) {
    return std::ssize(request.prompt_ids) - shared[rank] + request.sampling.max_tokens;
  };
  int best = 0;
  for (int rank = 1; rank < std::ssize(loads_); ++rank) {
    if (loads_[rank].num_rows + rows_at(rank) < loads_[best].num_rows + rows_at(best)) best = rank;
  }
  Load& load = loads_[best];
  if (load.num_requests >= places_of_rank_) return std::nullopt;
  ++load.num_requests;
  load.num_rows += rows_at(best);
  for (const uint64_t hash : hashes) AddHome(hash, best);
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
