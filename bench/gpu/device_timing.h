// Shared by programs that time kernels of a GPU: memory with numbers in it, and times by the device's clock.
#pragma once

#include <algorithm>
#include <cstdio>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"
#include "penstock/device/device.h"
#include "penstock/kernels/cuda/status.h"
#include "penstock/kernels/cuda/stream.h"

namespace penstock {

// Device memory whose words are small finite numbers in every format.
class DeviceBytes {
 public:
  explicit DeviceBytes(uint64_t size_bytes) {
    constexpr uint64_t kPart = 16 * kMiB;
    std::vector<uint16_t> words(kPart / 2);
    uint32_t state = 1;
    for (uint16_t& word : words)
      word = static_cast<uint16_t>(0x3e00 | ((state = state * 1664525 + 1013904223) >> 16 & 0x80ff));
    status_ = PENSTOCK_CUDA_STATUS(cudaMalloc(reinterpret_cast<void**>(&data_), size_bytes));
    for (uint64_t begin = 0; begin < size_bytes && status_.ok(); begin += kPart) {
      status_ = PENSTOCK_CUDA_STATUS(
          cudaMemcpy(data_ + begin, words.data(), std::min(kPart, size_bytes - begin), cudaMemcpyHostToDevice));
    }
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::byte* data() const { return data_; }
  const absl::Status& status() const { return status_; }

 private:
  std::byte* data_ = nullptr;
  absl::Status status_;
};

inline constexpr int kTimedRuns = 7;

// Returns the median seconds of `give`, which gives work to the stream.
template <typename Give>
double Seconds(cuda::Stream stream, const Give& give) {
  cudaEvent_t begin = nullptr, end = nullptr;
  (void)cudaEventCreateWithFlags(&begin, cudaEventDefault);
  (void)cudaEventCreateWithFlags(&end, cudaEventDefault);
  std::vector<double> seconds;
  for (int run = 0; run <= kTimedRuns; ++run) {
    (void)cudaEventRecord(begin, stream);
    give();
    (void)cudaEventRecord(end, stream);
    (void)cudaEventSynchronize(end);
    float milliseconds = 0;
    (void)cudaEventElapsedTime(&milliseconds, begin, end);
    if (run > 0) seconds.push_back(1e-3 * static_cast<double>(milliseconds));  // run 0 warms up
  }
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  std::nth_element(seconds.begin(), seconds.begin() + kTimedRuns / 2, seconds.end());
  return seconds[kTimedRuns / 2];
}

// Measures the first GPU. Returns the exit code of the program `name`.
inline int MeasureFirstGpu(const char* name, absl::Status (*measure)(const DeviceSpec&)) {
  const absl::StatusOr<DeviceSpec> spec = FindCudaDevice(0);
  const absl::Status status = spec.ok() ? measure(*spec) : spec.status();
  if (!status.ok()) std::fprintf(stderr, "%s: %s\n", name, Message(status).c_str());
  return status.ok() ? 0 : ExitCode(status);
}

}  // namespace penstock
