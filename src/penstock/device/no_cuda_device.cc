// The functions of CUDA devices for a build without CUDA: they return errors.
#include "penstock/base/status.h"
#include "penstock/device/device.h"

namespace penstock {

absl::StatusOr<DeviceSpec> FindCudaDevice(int) {
  return ResourceError("this build has no GPU support; use --device cpu, or build with -DPENSTOCK_CUDA=ON");
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const DeviceSpec& spec, const CudaWorkspace&, uint64_t) {
  return FindCudaDevice(spec.device_idx).status();
}

}  // namespace penstock
