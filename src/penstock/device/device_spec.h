// What --device names.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/model/model_config.h"

namespace penstock {

// kEmulated: by threads of this machine, with memory of its own and links of a given rate. kDescribed: of a machine
// that is only simulated.
enum class DeviceKind : uint8_t { kEmulated, kCuda, kDescribed };

struct DeviceSpec {
  DeviceKind kind = DeviceKind::kEmulated;
  std::string name = "emulated";
  std::string model = {};         // of a GPU, as its maker calls it
  double link_bytes_per_s = 4e9;  // each direction; of a GPU a guess until it is measured
  int num_threads = 1;            // of the emulated device
  // Of a GPU:
  int device_idx = 0;       // as CUDA numbers them
  uint64_t free_bytes = 0;  // of its memory
  uint64_t total_bytes = 0;
  int num_processors = 0;  // multiprocessors
  double share = 1;        // of these, that products of matrices may use
};

// "cpu": nothing; "emulated", "emulated:link=4GB/s,threads=1"; "cuda", "cuda:1", "cuda:1,share=0.5"; "auto": a GPU
// where there is one. kUsage for what is not understood, kResources for what this machine or this build has not.
absl::StatusOr<std::optional<DeviceSpec>> ParseDevice(std::string_view text);

// What a CUDA device needs besides weights, activations, KV entries and experts: scores of attention, and tables of
// pages on their way (their page-locked copies are as large, in DRAM).
struct CudaWorkspace {
  uint64_t scores_bytes = 0;
  uint64_t tables_bytes = 0;
};
CudaWorkspace CudaWorkspaceOf(const ModelConfig& config, int64_t context_length, uint64_t budget_bytes);

// Of a device's memory: this, and what is lost to whole pages.
uint64_t DeviceFixedBytes(const DeviceSpec& device, const ModelConfig& config, int64_t context_length,
                          uint64_t budget_bytes);

}  // namespace penstock
