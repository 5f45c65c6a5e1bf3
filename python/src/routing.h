// A recorded routing as arrays.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/routing/routing_trace.h"

namespace penstock::python {

struct RoutingTable {
  RoutingTraceHeader header;
  std::vector<uint32_t> sequence_ids;  // [num_rows]
  std::vector<uint32_t> positions;     // [num_rows]
  std::vector<int32_t> experts;        // [num_rows, num_layers, num_topk]; -1 where a layer did not compute the row
};

// Reads a whole file of EngineOptions::routing_path. Rows are in the order in which they were computed. A file that was
// cut short gives the rows before the cut.
absl::StatusOr<RoutingTable> ReadRouting(const std::string& path);

}  // namespace penstock::python
