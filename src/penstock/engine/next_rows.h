// The rows of later passes whose tokens are known already, for predictors that work ahead.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "penstock/engine/sequence.h"
#include "penstock/ops/operations.h"
#include "penstock/schedule/pass_rows.h"

namespace penstock {

// The requests of an engine before a pass.
struct KnownRequests {
  std::span<const std::unique_ptr<Sequence>> running;
  std::span<const SequenceRows> chosen;  // rows of `running` in the pass
  const std::deque<std::unique_ptr<Sequence>>& waiting;
  size_t num_places = 0;  // of the batch
  // Whether other requests have computed a request's beginning, so that its first row is a later one.
  absl::FunctionRef<bool(const Sequence& sequence)> shares_prefix;
};

// Returns the next rows of each running request, then those of as many waiting ones as there are places. There are no
// more rows than a pass can have.
std::vector<NextRows> NextRowsOf(const KnownRequests& requests, const PassLimits& limits);

}  // namespace penstock
