// Feeds bytes as the JSON of a Hardware. Accepted input must be the same when it is written and read again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "penstock/base/status.h"
#include "penstock/hardware/hardware.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto value = penstock::ParseJson(text, penstock::Fault::kInput);
  if (!value.ok()) return 0;
  const auto hardware = penstock::ParseHardware(*value);
  if (!hardware.ok()) {
    if (penstock::FaultOf(hardware.status()) != penstock::Fault::kInput) std::abort();
    return 0;
  }
  const penstock::json::value written = penstock::ToJson(*hardware);
  const auto again = penstock::ParseHardware(written);
  if (!again.ok() || penstock::ToJson(*again) != written.get_object()) std::abort();
  for (const penstock::Processor& processor : hardware->processors) {
    for (const penstock::GemmRates& rates : processor.gemm) {
      if (!(rates.Seconds(10, 1) >= 0)) std::abort();
    }
  }
  for (const penstock::Link& link : hardware->links) {
    if (!(link.Seconds(4096) >= 0)) std::abort();
  }
  return 0;
}
