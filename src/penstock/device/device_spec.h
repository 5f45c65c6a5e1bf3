// The devices that --device can name.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/model/model_config.h"

namespace penstock {

// kEmulated: threads of this machine, with memory of their own and links of a given rate. kDescribed: a device of a
// machine that is only simulated.
enum class DeviceKind : uint8_t { kEmulated, kCuda, kDescribed };

struct DeviceSpec {
  DeviceKind kind = DeviceKind::kEmulated;
  std::string name = "emulated";
  std::string model = {};         // a GPU's name, as its maker calls it
  double link_bytes_per_s = 4e9;  // in each direction; for a GPU, a guess until it is measured
  int num_threads = 1;            // threads of the emulated device
  // Only for a GPU:
  int device_idx = 0;       // CUDA's number of the device
  uint64_t free_bytes = 0;  // free bytes of its memory
  uint64_t total_bytes = 0;
  int num_processors = 0;     // multiprocessors
  double share = 1;           // share of the multiprocessors that matrix products may use
  uint64_t shared_bytes = 0;  // shared memory of a block; 0: unknown
};

// Parses the value of --device. Returns nothing for "cpu", and for "auto" without a GPU. The other values are
// "emulated", "emulated:link=4GB/s,threads=1", "cuda", "cuda:1" and "cuda:1,share=0.5". Returns kUsage when the value
// is malformed, and kResources when this machine or this build lacks the device.
absl::StatusOr<std::optional<DeviceSpec>> ParseDevice(std::string_view text);

// Memory that a CUDA device needs besides weights, activations, KV entries and experts: attention's scores, and tables
// of pages and states on their way. The tables' page-locked copies take as much DRAM.
struct CudaWorkspace {
  uint64_t scores_bytes = 0;
  uint64_t tables_bytes = 0;
};
CudaWorkspace CudaWorkspaceOf(const ModelConfig& config, int64_t context_length, uint64_t budget_bytes);

// Returns kResources if rows or states of the model do not fit into a GPU's shared memory.
absl::Status CheckSharedMemory(const DeviceSpec& device, const ModelConfig& config);

// Returns the bytes of a device's memory that this workspace takes, or that rounding to whole pages wastes.
uint64_t DeviceFixedBytes(const DeviceSpec& device, const ModelConfig& config, int64_t context_length,
                          uint64_t budget_bytes);

}  // namespace penstock
