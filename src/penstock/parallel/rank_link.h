// Measures the network between ranks.
#pragma once

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"
#include "penstock/parallel/communicator.h"

namespace penstock {

// Returns the slowest link between neighbours: each rank sends to the next one and receives from the one before it, all
// at once. The latency is that of an empty message. All ranks must call it together, and get the same link. It takes
// some milliseconds on a fast network, and up to a second at 0.1 Gbit/s.
absl::StatusOr<Link> MeasureRankLink(Communicator& communicator);

}  // namespace penstock
