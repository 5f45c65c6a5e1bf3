// The interface of a device that computes layers: its memory, the links to it, its lanes and its operations.
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
    LaneIdx dram_to_pinned = 0;  // from DRAM to page-locked memory
    LaneIdx dram_to_device = 0;
    LaneIdx device_to_dram = 0;
  };

  virtual ~Device() = default;

  // memory() is the device's own and hands out no more than the budget. host_memory() is host memory that the device's
  // links can read and write.
  virtual Memory& memory() = 0;
  virtual Memory& host_memory() = 0;
  // Returns the number of workers for which the device's activations hold scratch memory.
  virtual int num_workers() const = 0;

  // Adds the device's lanes. REQUIRES: called once; the device outlives the runtime.
  virtual absl::StatusOr<Lanes> AddLanes(RealRuntime& runtime) = 0;
  // Return the copiers of the links to and from the device. REQUIRES: AddLanes() was called.
  virtual Copier& to_device() = 0;
  virtual Copier& to_host() = 0;
  struct OperationsArgs {
    const ModelConfig& config;  // outlives the operations, like all references
    const kernels::KernelTable& host_kernels;
    RowFormats row_formats;
    WeightFormat ffn_format = WeightFormat::kF32;
    const DenseWeights& weights;  // in the device's memory, like the activations
    Activations& activations;
  };
  virtual absl::StatusOr<std::unique_ptr<Operations>> MakeOperations(const OperationsArgs& args) = 0;

  // Waits until the device has finished all computations that were given to it.
  virtual absl::Status Wait() = 0;

  // Measures the device's highest rates, for about `seconds` each. The memory's rate comes from reading `bytes` of it,
  // whatever they hold; it is 0 for less than 4 MiB. REQUIRES: nothing runs on the device.
  virtual ProcessorRates Measure(Arithmetic arithmetic, std::span<const std::byte> bytes, double seconds) = 0;
  // Measures the bytes per second of the link to the device, in the same way. An emulated link returns its given rate.
  virtual double MeasureLink(double seconds) = 0;
};

std::unique_ptr<Device> MakeEmulatedDevice(const DeviceSpec& spec, uint64_t budget_bytes);

// Find and make a CUDA device. kResources when this build has no CUDA, or this machine has no such device.
absl::StatusOr<DeviceSpec> FindCudaDevice(int device_idx);
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const DeviceSpec& spec, const CudaWorkspace& workspace,
                                                       uint64_t budget_bytes);

}  // namespace penstock
