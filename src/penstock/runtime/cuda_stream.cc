#include "penstock/runtime/cuda_stream.h"

#include <chrono>
#include <thread>
#include <utility>

#include "penstock/kernels/cuda/status.h"

namespace penstock {
namespace {

// A waiting thread polls for this long before it sleeps: waking a thread takes longer than most tasks.
constexpr std::chrono::microseconds kLooksOut{50};

}  // namespace

class CudaStream::EventMark : public Mark {
 public:
  // An event that could not be made or recorded counts as work that failed.
  EventMark(int device_idx, cuda::Stream stream) : stream_(stream) {
    status_ = PENSTOCK_CUDA_STATUS(cudaSetDevice(device_idx));
    if (status_.ok()) {
      status_ = PENSTOCK_CUDA_STATUS(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync));
    }
    if (status_.ok()) status_ = PENSTOCK_CUDA_STATUS(cudaEventRecord(event_, stream));
  }
  ~EventMark() override {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }

  const absl::Status& status() const { return status_; }
  cudaEvent_t event() const { return event_; }
  cuda::Stream stream() const { return stream_; }

 private:
  cuda::Stream stream_;
  cudaEvent_t event_ = nullptr;
  absl::Status status_;
};

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(int device_idx) {
  cuda::Stream stream = nullptr;
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_idx));
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return std::unique_ptr<CudaStream>(new CudaStream(device_idx, stream));
}

CudaStream::~CudaStream() {
  (void)cudaSetDevice(device_idx_);
  (void)cudaStreamSynchronize(stream_);
  (void)cudaStreamDestroy(stream_);
}

absl::Status CudaStream::Run(const std::function<absl::Status()>& body) {
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_idx_));  // sets the device of this thread
  PENSTOCK_RETURN_IF_ERROR(body());
  return PENSTOCK_CUDA_STATUS(cudaGetLastError());  // reports errors of launches
}

std::shared_ptr<DeviceStream::Mark> CudaStream::Record() { return std::make_shared<EventMark>(device_idx_, stream_); }

void CudaStream::WaitFor(const std::shared_ptr<Mark>& mark) {
  const auto& other = static_cast<const EventMark&>(*mark);
  (void)cudaSetDevice(device_idx_);
  // Without an event the host waits, to keep the order.
  if (!other.status().ok() || cudaStreamWaitEvent(stream_, other.event(), 0) != cudaSuccess) {
    (void)cudaStreamSynchronize(other.stream());
  }
}

absl::Status CudaStream::Synchronise(const Mark& mark) {
  const auto& own = static_cast<const EventMark&>(mark);
  PENSTOCK_RETURN_IF_ERROR(own.status());
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_idx_));
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < kLooksOut) {
    const cudaError_t error = cudaEventQuery(own.event());
    if (error != cudaErrorNotReady) return PENSTOCK_CUDA_STATUS(error);
    std::this_thread::yield();
  }
  return PENSTOCK_CUDA_STATUS(cudaEventSynchronize(own.event()));
}

}  // namespace penstock
