// Feeds bytes as penstock-mirror.json. Accepted input must be consistent, and the same when it is written and read
// again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "penstock/base/status.h"
#include "penstock/checkpoint/mirror.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = penstock::ParseMirrorIndex({reinterpret_cast<const char*>(data), size});
  if (!index.ok()) {
    Require(penstock::FaultOf(index.status()) == penstock::Fault::kModel);
    return 0;
  }
  for (const auto& [name, extents] : *index) {
    uint64_t end = 0;
    for (const penstock::FileExtent& extent : extents) {
      Require(extent.offset_bytes % 4096 == 0 && extent.size_bytes > 0 && extent.offset_bytes >= end);
      end = extent.offset_bytes + extent.size_bytes;
    }
  }
  const std::string text = penstock::SerializeMirrorIndex(*index);
  const auto again = penstock::ParseMirrorIndex(text);
  Require(again.ok() && penstock::SerializeMirrorIndex(*again) == text);
  return 0;
}
