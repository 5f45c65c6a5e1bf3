#include "penstock/engine/device_spec.h"

#include <charconv>
#include <string>

#include "penstock/base/bytes.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

absl::Status Malformed(std::string_view text) {
  return UsageError("--device '{}': expected auto, cpu or emulated[:link=4GB/s,threads=1]", Printable(text));
}

absl::Status ParseField(std::string_view text, std::string_view field, EmulatedDevice& device) {
  if (field.starts_with("link=")) {
    const absl::StatusOr<double> rate = ParseRate(field.substr(5));
    if (!rate.ok()) return Annotate(rate.status(), "--device: link");
    device.link_bytes_per_s = *rate;
    return absl::OkStatus();
  }
  if (field.starts_with("threads=")) {
    const std::string_view number = field.substr(8);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), device.num_threads);
    if (error == std::errc() && end == number.data() + number.size() && device.num_threads >= 1 &&
        device.num_threads <= kMaxThreads) {
      return absl::OkStatus();
    }
  }
  return Malformed(text);
}

}  // namespace

absl::StatusOr<std::optional<EmulatedDevice>> ParseDevice(std::string_view text) {
  if (text == "auto" || text == "cpu") return std::nullopt;
  if (text.starts_with("cuda")) {
    return ResourceError("--device {}: this build has no GPU support; use --device cpu", Printable(text));
  }
  EmulatedDevice device;
  if (!text.starts_with(kEmulatedDevice)) return Malformed(text);
  std::string_view fields = text.substr(kEmulatedDevice.size());
  if (fields.empty()) return device;
  if (!fields.starts_with(':')) return Malformed(text);
  for (fields.remove_prefix(1);;) {
    const size_t comma = fields.find(',');
    PENSTOCK_RETURN_IF_ERROR(ParseField(text, fields.substr(0, comma), device));
    if (comma == std::string_view::npos) return device;
    fields.remove_prefix(comma + 1);
  }
}

}  // namespace penstock
