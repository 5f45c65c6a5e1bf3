#include "routing.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "penstock/base/status.h"

namespace penstock::python {

absl::StatusOr<RoutingTable> ReadRouting(const std::string& path) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<RoutingTraceReader> reader, RoutingTraceReader::Open(path));
  RoutingTable table{.header = reader->header(), .sequence_ids = {}, .positions = {}, .experts = {}};
  const int64_t num_topk = table.header.num_topk;
  const int64_t row_size = table.header.num_layers * num_topk;
  int64_t step_idx = -1;
  std::map<std::pair<uint32_t, uint32_t>, int64_t> rows;  // of this step: where the row of a sequence and position is
  for (RoutingTraceRecord record;;) {
    PENSTOCK_ASSIGN_OR_RETURN(const RoutingTraceEvent event, reader->Next(record));
    if (event != RoutingTraceEvent::kRecord) return table;
    if (record.step_idx != step_idx) rows.clear();
    step_idx = record.step_idx;
    for (int64_t i = 0; i < record.num_rows(); ++i) {
      const std::pair key(record.sequence_ids[i], record.positions[i]);
      const auto [row, is_new] = rows.try_emplace(key, std::ssize(table.positions));
      if (is_new) {
        table.sequence_ids.push_back(key.first);
        table.positions.push_back(key.second);
        table.experts.resize(table.experts.size() + row_size, -1);
      }
      std::copy_n(record.topk_idx.begin() + i * num_topk, num_topk,
                  table.experts.begin() + row->second * row_size + record.layer_idx * num_topk);
    }
  }
}

}  // namespace penstock::python
