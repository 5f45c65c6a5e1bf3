// A device made of this machine's threads. Its memory is part of DRAM, and its links take the time of their given rate.
#include <algorithm>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/device/device.h"
#include "penstock/hardware/peaks.h"
#include "penstock/ops/host_operations.h"

namespace penstock {
namespace {

class EmulatedDevice : public Device {
 public:
  EmulatedDevice(const DeviceSpec& spec, uint64_t budget_bytes)
      : spec_(spec), memory_("device", HostMemory(), budget_bytes), pool_(spec.num_threads, ThreadPool::Pinned::kNo) {}

  Memory& memory() override { return memory_; }
  Memory& host_memory() override { return HostMemory(); }
  int num_workers() const override { return pool_.num_workers(); }

  absl::StatusOr<Lanes> AddLanes(RealRuntime& runtime) override {
    return Lanes{.compute = runtime.AddThreadLane("device_compute"),
                 .dram_to_pinned = runtime.AddThreadLane("dram_to_pinned"),
                 .dram_to_device = runtime.AddThreadLane("dram_to_device", spec_.link_bytes_per_s),
                 .device_to_dram = runtime.AddThreadLane("device_to_dram", spec_.link_bytes_per_s)};
  }
  Copier& to_device() override { return copier_; }
  Copier& to_host() override { return copier_; }

  absl::StatusOr<std::unique_ptr<Operations>> MakeOperations(const OperationsArgs& args) override {
    return std::make_unique<HostOperations>(
        OpContext{args.config, args.host_kernels, pool_, args.row_formats, args.weights, args.activations});
  }

  absl::Status Wait() override { return absl::OkStatus(); }

  ProcessorRates Measure(Arithmetic arithmetic, std::span<const std::byte> bytes, double seconds) override {
    ProcessorRates rates;
    rates.ops_per_s = OpsPerSecond(arithmetic, pool_, seconds).value_or(0);
    if (bytes.size() >= 4 * kMiB) rates.memory_bytes_per_s = ReadBytesPerSecond(bytes, pool_, seconds);
    return rates;
  }
  double MeasureLink(double) override { return spec_.link_bytes_per_s; }

 private:
  DeviceSpec spec_;
  BudgetedMemory memory_;
  ThreadPool pool_;
  HostCopier copier_;
};

}  // namespace

std::unique_ptr<Device> MakeEmulatedDevice(const DeviceSpec& spec, uint64_t budget_bytes) {
  return std::make_unique<EmulatedDevice>(spec, budget_bytes);
}

}  // namespace penstock
