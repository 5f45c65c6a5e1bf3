// Feeds bytes as a routing trace, unchanged and with corrected checksums. Accepted input must be within the bounds of
// its header, and the same when it is written again.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include <xxhash.h>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/routing/routing_trace.h"

namespace {

constexpr size_t kNumbersBytes = penstock::kRoutingTraceMagic.size() + 20;

void Require(bool holds) {
  if (!holds) std::abort();
}

uint32_t FieldAt(const std::string& bytes, size_t pos) {
  uint32_t field;
  std::memcpy(&field, bytes.data() + pos, sizeof(field));
  return field;
}

// Corrects the checksums; walks the bytes as the reader would, as far as they go.
std::string Sealed(std::string bytes) {
  uint64_t checksum = 0;
  size_t begin = 0;
  const auto seal = [&](size_t num_bytes) {
    if (bytes.size() < 8 || num_bytes > bytes.size() - 8 || begin > bytes.size() - 8 - num_bytes) return false;
    checksum = XXH3_64bits_withSeed(bytes.data() + begin, num_bytes, checksum);
    std::memcpy(bytes.data() + begin + num_bytes, &checksum, sizeof(checksum));
    begin += num_bytes + 8;
    return true;
  };
  const bool has_tokens = bytes.starts_with(penstock::kTokenTraceMagic);
  const size_t fixed_bytes = kNumbersBytes + (has_tokens ? 4 + penstock::kTraceFingerprintBytes : 0) + 4;
  if (bytes.size() < fixed_bytes) return bytes;
  const auto field = [&](size_t from_end) { return static_cast<uint64_t>(FieldAt(bytes, kNumbersBytes - from_end)); };
  const uint64_t num_layers = field(20), num_topk = field(12), num_ranked = field(8), num_ahead = field(4);
  if (num_topk > static_cast<uint64_t>(penstock::kMaxTopk) ||
      num_ranked > static_cast<uint64_t>(penstock::kMaxExperts) || num_ahead > penstock::kMaxAhead) {
    return bytes;
  }
  if (!seal(fixed_bytes + FieldAt(bytes, fixed_bytes - 4))) return bytes;
  std::optional<uint64_t> last_step_idx;
  while (seal(16)) {
    const uint64_t step_idx = FieldAt(bytes, begin - 24) + (uint64_t{FieldAt(bytes, begin - 20)} << 32);
    const uint64_t layer_idx = FieldAt(bytes, begin - 16), num_rows = FieldAt(bytes, begin - 12);
    if (layer_idx >= num_layers) break;
    const uint64_t ahead = std::min(num_ahead, num_layers - 1 - layer_idx);
    const uint64_t num_numbers = has_tokens && step_idx != last_step_idx ? 3 : 2;
    last_step_idx = step_idx;
    if (!seal(num_rows * (4 * num_numbers + 6 * num_ranked + 2 * num_topk * (1 + ahead)))) break;
  }
  return bytes;
}

void Check(std::string_view bytes) {
  const auto reader = penstock::RoutingTraceReader::OfBytes(bytes, "fuzz");
  if (!reader.ok()) {
    Require(penstock::FaultOf(reader.status()) == penstock::Fault::kInput);
    return;
  }
  const penstock::RoutingTraceHeader& header = (*reader)->header();
  penstock::RoutingTraceEncoder encoder;
  std::string again;
  Require(encoder.Header(header, again).ok());
  penstock::RoutingTraceRecord record;
  for (;;) {
    const auto event = (*reader)->Next(record);
    if (!event.ok()) {
      Require(penstock::FaultOf(event.status()) == penstock::Fault::kInput);
      break;
    }
    if (*event == penstock::RoutingTraceEvent::kCut) {
      Require(!(*reader)->cut().empty());
      break;
    }
    if (*event == penstock::RoutingTraceEvent::kEnd) {
      encoder.End(again);
      Require(again == bytes);
      break;
    }
    encoder.Record(record.View(), again);  // checks every bound
  }
  Require(bytes.substr(0, again.size()) == again);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  Check(bytes);
  Check(Sealed(bytes));
  return 0;
}
