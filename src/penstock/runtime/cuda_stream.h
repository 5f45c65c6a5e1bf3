// A CUDA stream as a lane of the runtime.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "penstock/kernels/cuda/stream.h"
#include "penstock/runtime/device_stream.h"

namespace penstock {

class CudaStream : public DeviceStream {
 public:
  // Errors: kResources, kInternal.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(int device_idx);
  ~CudaStream() override;  // waits for all work given

  cuda::Stream get() const { return stream_; }

  absl::Status Run(const std::function<absl::Status()>& body) override;
  std::shared_ptr<Mark> Record() override;
  void WaitFor(const std::shared_ptr<Mark>& mark) override;
  absl::Status Synchronise(const Mark& mark) override;

 private:
  class EventMark;
  CudaStream(int device_idx, cuda::Stream stream) : device_idx_(device_idx), stream_(stream) {}

  int device_idx_;
  cuda::Stream stream_;
};

}  // namespace penstock
