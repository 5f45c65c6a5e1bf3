// Chooses the rank for each request of a job on several ranks.
//
// A request goes where its work ends soonest: to the rank with the least work left, counting what the request itself
// adds there. A rank that has computed the beginning of the prompt need not compute it again, so it has less to add.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "penstock/engine.h"

namespace penstock {

class RequestDealer {
 public:
  RequestDealer(int num_ranks, int64_t places_of_rank) : places_of_rank_(places_of_rank), loads_(num_ranks) {}

  // Returns the rank that gets the request, and counts it there. Nothing if all places are taken, or if the request
  // should wait for a rank that knows its beginning. `page_hashes` are PageHashes() of its prompt; none if ranks do not
  // share KV entries.
  std::optional<int> Deal(RequestId id, const Request& request, std::span<const uint64_t> page_hashes);
  // Says that a request has finished. REQUIRES: it was dealt.
  void Finish(RequestId id);
  // Returns the requests that were dealt and have not finished.
  int64_t num_active() const { return std::ssize(active_); }
  // Whether all places are taken.
  bool is_full() const { return num_active() == std::ssize(loads_) * places_of_rank_; }

  // Maximum bytes of the tables of prompts.
  static constexpr uint64_t kMaxBytes = 2 << 20;

 private:
  struct Active {
    int rank = 0;
    int64_t num_rows = 0;  // that the request adds to the work of its rank
  };
  struct Load {
    int64_t num_requests = 0;
    int64_t num_rows = 0;
  };
  using Ranks = uint64_t;  // bit r: rank r, or one that differs by a multiple of 64
  using Homes = absl::flat_hash_map<uint64_t, Ranks>;

  // Returns the number of tokens at the prompt's beginning that each rank has computed lately.
  std::vector<int64_t> SharedTokens(std::span<const uint64_t> page_hashes) const;
  static Ranks BitOf(int rank) { return Ranks{1} << (rank % 64); }
  // Returns the ranks that got this beginning of a prompt.
  Ranks HomesOf(uint64_t page_hash) const;
  void AddHome(uint64_t page_hash, int rank);

  int64_t places_of_rank_;
  std::vector<Load> loads_;  // [num_ranks]
  absl::flat_hash_map<RequestId, Active> active_;
  // The ranks that got each beginning of a prompt. When `young_` is full, it becomes `old_`.
  Homes young_, old_;
};

}  // namespace penstock
