#include "penstock/device/device_spec.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/device/device.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/ops/cuda_workspace.h"

namespace penstock {
namespace {

absl::Status Malformed(std::string_view text) {
  return UsageError("--device '{}': expected auto, cpu, cuda[:I[,share=S]] or emulated[:link=4GB/s,threads=1]",
                    Printable(text));
}

absl::Status ParseField(std::string_view text, std::string_view field, DeviceSpec& device) {
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

struct CudaName {
  int device_idx = 0;
  double share = 1;
};

// Parses "cuda", "cuda:1" or "cuda:1,share=0.5".
absl::StatusOr<CudaName> ParseCudaName(std::string_view text) {
  CudaName name;
  std::string_view rest = text.substr(std::string_view("cuda").size());
  if (rest.empty()) return name;
  const auto parse = [](std::string_view number, auto& value) {
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    return error == std::errc() && end == number.data() + number.size();
  };
  if (!rest.starts_with(':')) return Malformed(text);
  rest.remove_prefix(1);
  const size_t comma = rest.find(',');
  if (!parse(rest.substr(0, comma), name.device_idx) || name.device_idx < 0) return Malformed(text);
  if (comma == std::string_view::npos) return name;
  rest.remove_prefix(comma + 1);
  constexpr std::string_view kShare = "share=";
  if (!rest.starts_with(kShare) || !parse(rest.substr(kShare.size()), name.share) || !(name.share > 0) ||
      name.share > 1) {
    return Malformed(text);
  }
  return name;
}

}  // namespace

absl::StatusOr<std::optional<DeviceSpec>> ParseDevice(std::string_view text) {
  if (text == "cpu") return std::nullopt;
  if (text == "auto") {
    absl::StatusOr<DeviceSpec> gpu = FindCudaDevice(0);
    if (!gpu.ok()) return std::nullopt;
    return *std::move(gpu);
  }
  if (text.starts_with("cuda")) {
    PENSTOCK_ASSIGN_OR_RETURN(const CudaName name, ParseCudaName(text));
    const int device_idx = name.device_idx;
    absl::StatusOr<DeviceSpec> gpu = FindCudaDevice(device_idx);
    if (!gpu.ok()) return Annotate(gpu.status(), fmt::format("--device {}", text));
    gpu->share = name.share;
    return *std::move(gpu);
  }
  constexpr std::string_view kEmulated = "emulated";
  DeviceSpec device;
  if (!text.starts_with(kEmulated)) return Malformed(text);
  std::string_view fields = text.substr(kEmulated.size());
  if (fields.empty()) return device;
  if (!fields.starts_with(':')) return Malformed(text);
  for (fields.remove_prefix(1);;) {
    const size_t comma = fields.find(',');
    PENSTOCK_RETURN_IF_ERROR(ParseField(text, fields.substr(0, comma), device));
    if (comma == std::string_view::npos) return device;
    fields.remove_prefix(comma + 1);
  }
}

CudaWorkspace CudaWorkspaceOf(const ModelConfig& config, int64_t context_length, uint64_t budget_bytes) {
  constexpr uint64_t kMaxScoresBytes = 64 * kMiB, kBudgetShare = 32, kMinTablesBytes = 256 * kKiB;
  const uint64_t one_row = sizeof(float) * static_cast<uint64_t>(CudaScoresFloats(config, context_length));
  // Doubled below: one half is filled while the other is read.
  const uint64_t one_table = std::max(RowTableBytes(KvCache::PagesFor(context_length)), MinStateTableBytes(config));
  return {
      .scores_bytes = RoundUp(std::max(one_row, std::min(kMaxScoresBytes, budget_bytes / kBudgetShare)), kPageBytes),
      .tables_bytes = std::max(kMinTablesBytes, RoundUp(2 * one_table, 2 * kPageBytes))};
}

absl::Status CheckSharedMemory(const DeviceSpec& device, const ModelConfig& config) {
  const uint64_t needed = SharedBytes(config);
  if (device.shared_bytes == 0 || needed <= device.shared_bytes) return absl::OkStatus();
  return ResourceError(
      "--device {}: rows or states of this model need {} of shared memory, and {} has {}; "
      "use --device cpu",
      device.name, FormatBytes(needed), Printable(device.model), FormatBytes(device.shared_bytes));
}

uint64_t DeviceFixedBytes(const DeviceSpec& device, const ModelConfig& config, int64_t context_length,
                          uint64_t budget_bytes) {
  constexpr uint64_t kNumArenas = 8;
  const uint64_t lost_bytes = kNumArenas * kPageBytes;
  if (device.kind != DeviceKind::kCuda) return lost_bytes;
  const CudaWorkspace workspace = CudaWorkspaceOf(config, context_length, budget_bytes);
  return lost_bytes + workspace.scores_bytes + workspace.tables_bytes;
}

}  // namespace penstock
