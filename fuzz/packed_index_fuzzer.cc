// Feeds bytes as penstock.json. Accepted input must be consistent, and the same when it is written and read again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "penstock/base/status.h"
#include "penstock/checkpoint/packed_index.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = penstock::ParsePackedIndex({reinterpret_cast<const char*>(data), size});
  if (!index.ok()) {
    Require(penstock::FaultOf(index.status()) == penstock::Fault::kModel);
    return 0;
  }
  uint64_t end = 0;
  for (const penstock::TensorInfo& tensor : index->tensors) {
    Require(tensor.extent.offset_bytes >= end && tensor.extent.offset_bytes % 64 == 0 && tensor.xxh3.has_value());
    end = tensor.extent.offset_bytes + tensor.extent.size_bytes;
    Require(end <= index->weights_bytes && tensor.extent.size_bytes > 0);
  }
  const std::string text = penstock::SerializePackedIndex(*index);
  const auto again = penstock::ParsePackedIndex(text);
  Require(again.ok() && penstock::SerializePackedIndex(*again) == text);
  return 0;
}
