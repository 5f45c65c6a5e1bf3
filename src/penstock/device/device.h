// A device that computes layers, as the executor needs it: memory of its own, the links to it, lanes, and what computes
// there.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/device/device_spec.h"
#include "penstock/engine.h"
#include "penstock/hardware/hardware.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/copier.h"
#include "penstock/memory/dense_weights.h"
#include "penstock/ops/operations.h"
#include "penstock/runtime/real_runtime.h"

namespace penstock {

class Device {
 public:
  struct Lanes {
    LaneIdx compute = 0;
    LaneIdx dram_to_pinned = 0;  // between two memories of the host's
    LaneIdx dram_to_device = 0;
    LaneIdx device_to_dram = 0;
  };

  virtual ~Device() = default;

  // Its own, of which no more than the budget is handed out; and the host's as far as its links read and write it.
  virtual Memory& memory() = 0;
  virtual Memory& host_memory() = 0;
  // Workers whose scratch memory its activations have.
  virtual int num_workers() const = 0;

  // Once. The runtime is gone before the device.
  virtual absl::StatusOr<Lanes> AddLanes(RealRuntime& runtime) = 0;
  // REQUIRES: AddLanes().
  virtual Copier& to_device() = 0;
  virtual Copier& to_host() = 0;
  struct OperationsArgs {
    const ModelConfig& config;  // outlives the operations, like all references
    const kernels::KernelTable& host_kernels;
    RowFormats row_formats;
    WeightFormat ffn_format = WeightFormat::kF32;
    const DenseWeights& weights;  // in its memory, like the activations
    Activations& activations;
  };
  virtual absl::StatusOr<std::unique_ptr<Operations>> MakeOperations(const OperationsArgs& args) = 0;

  // Until everything that was given to it is done.
  virtual absl::Status Wait() = 0;

  // What it can do at most, for about `seconds` each: `bytes` of its memory are read, whatever they hold. REQUIRES:
  // nothing runs there.
  virtual ProcessorRates Measure(Arithmetic arithmetic, std::span<const std::byte> bytes, double seconds) = 0;
  // To it, as above; where it is emulated as it was asked for.
  virtual double MeasureLink(double seconds) = 0;
};

std::unique_ptr<Device> MakeEmulatedDevice(const DeviceSpec& spec, uint64_t budget_bytes);

// Of a build with CUDA; kResources in others, and where there is no such device.
absl::StatusOr<DeviceSpec> FindCudaDevice(int device_idx);
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const DeviceSpec& spec, const CudaWorkspace& workspace,
                                                       uint64_t budget_bytes);

}  // namespace penstock
