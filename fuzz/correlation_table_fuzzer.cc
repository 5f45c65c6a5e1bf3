// Feeds bytes as a correlation table, unchanged and with a corrected checksum, for a model of each path length. An
// accepted table must be the same when it is written again, and must answer queries and take updates.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <xxhash.h>

#include "penstock/base/status.h"
#include "penstock/routing/correlation_table.h"

namespace {

constexpr int64_t kMaxPaths = 100;

void Require(bool holds) {
  if (!holds) std::abort();
}

void Check(std::string_view bytes, const penstock::CorrelationShape& shape) {
  auto table = penstock::CorrelationTable::Parse(bytes, "fuzz", shape, kMaxPaths);
  if (!table.ok()) {
    Require(penstock::FaultOf(table.status()) == penstock::Fault::kInput);
    return;
  }
  Require(table->shape() == shape && table->num_paths() <= kMaxPaths);
  Require(table->Serialize() == bytes);
  const std::vector<int32_t> chosen = {0, 3, 2, 1};
  for (int64_t layer_idx = 0; layer_idx < shape.num_layers; ++layer_idx) {
    const penstock::RoutingHistory history{.num_rows = 2, .choices = {chosen, chosen, chosen}};
    double sum = 0;
    for (const double tendency : table->Tendency(layer_idx, history)) {
      Require(tendency >= 0);
      sum += tendency;
    }
    Require(sum <= 2 + 1e-9);
    Require(table->Hottest(layer_idx, history, 2).size() == 2);
    table->Update(layer_idx, history, chosen);
  }
  const std::string updated = table->Serialize();
  Require(penstock::CorrelationTable::Parse(updated, "fuzz", shape, kMaxPaths).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  std::string sealed = bytes;
  if (size >= 8) {
    const uint64_t checksum = XXH3_64bits(sealed.data(), size - 8);
    std::memcpy(sealed.data() + size - 8, &checksum, sizeof(checksum));
  }
  for (int64_t path_length = 0; path_length <= penstock::kMaxPathLength; ++path_length) {
    const penstock::CorrelationShape shape{
        .num_layers = 4, .num_experts = 5, .num_topk = 2, .path_length = path_length, .model = "fuzz"};
    Check(bytes, shape);
    Check(sealed, shape);
  }
  return 0;
}
