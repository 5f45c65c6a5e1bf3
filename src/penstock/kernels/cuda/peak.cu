// Measures a device's peaks: products whose operands stay in registers, and reads whose data is dropped.
#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/math.cuh"

namespace penstock::cuda {
namespace {

constexpr int kPeakThreads = 256;
#ifdef PENSTOCK_EMULATED_SIMT
constexpr int kPeakSteps = 4;  // rates of the emulation mean nothing
#else
constexpr int kPeakSteps = 512;
#endif
constexpr int kChains = 8;  // independent products
constexpr int kReadThreads = 256;
constexpr int64_t kBytesPerReadBlock = 256 * 1024;

// Keeps the compiler from removing the work that `value` depends on: writes `value` if it is a number that never
// occurs.
PENSTOCK_DEVICE void Keep(float value, float* results) {
  if (value == 12345.678f) results[threadIdx.x] = value;
}

PENSTOCK_KERNEL(kPeakThreads) PeakF32Kernel(float start, float* results) {
  float sums[4 * kChains];
  for (int i = 0; i < 4 * kChains; ++i) sums[i] = start + static_cast<float>(i);
#pragma unroll 1
  for (int step = 0; step < kPeakSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4 * kChains; ++i) sums[i] = __fmaf_rn(sums[i], start, start);
  }
  float all = 0;
  for (int i = 0; i < 4 * kChains; ++i) all += sums[i];
  Keep(all, results);
}

PENSTOCK_KERNEL(kPeakThreads) PeakBf16Kernel(uint32_t start, float* results) {
  float sums[kChains][4] = {};
  const uint32_t a[4] = {start, start + threadIdx.x, start, start}, b[2] = {start, start + threadIdx.x};
#pragma unroll 1
  for (int step = 0; step < kPeakSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) MultiplyBf16(sums[i], a, b);
  }
  float all = 0;
  for (int i = 0; i < kChains; ++i) all += sums[i][0] + sums[i][3];
  Keep(all, results);
}

PENSTOCK_KERNEL(kPeakThreads) PeakCodesKernel(uint32_t start, float* results) {
  int32_t sums[kChains][4] = {};
  const uint32_t a[4] = {start, start + threadIdx.x, start, start}, b[2] = {start, start + threadIdx.x};
#pragma unroll 1
  for (int step = 0; step < kPeakSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) MultiplyCodes(sums[i], a, b);
  }
  int32_t all = 0;
  for (int i = 0; i < kChains; ++i) all += sums[i][0] + sums[i][3];
  Keep(__int2float_rn(all), results);
}

PENSTOCK_KERNEL(kReadThreads) ReadKernel(const std::byte* bytes, int64_t num_bytes, float* results) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kBytesPerReadBlock;
  const int64_t end = begin + kBytesPerReadBlock < num_bytes ? begin + kBytesPerReadBlock : num_bytes;
  uint32_t all = 0;
#pragma unroll 8
  for (int64_t at = begin + 16 * static_cast<int64_t>(threadIdx.x); at + 16 <= end; at += 16 * kReadThreads) {
    const uint4 words = LoadOnce(bytes + at);
    all ^= words.x ^ words.y ^ words.z ^ words.w;
  }
  if (all == 0x12345678u) results[threadIdx.x] = 1;
}

}  // namespace

double PeakOps(kernels::RowFormat format, int num_blocks) {
  const double num_steps = static_cast<double>(num_blocks) * kPeakSteps;
  constexpr double kWarps = kPeakThreads / kWarpThreads;
  switch (format) {
    case kernels::RowFormat::kF32: return num_steps * kPeakThreads * 4 * kChains * 2;
    case kernels::RowFormat::kBF16: return num_steps * kWarps * kChains * 2 * 16 * 8 * 16;
    case kernels::RowFormat::kInt8: return num_steps * kWarps * kChains * 2 * 16 * 8 * 32;
  }
  return 0;
}

void Peak(kernels::RowFormat format, int num_blocks, float* results, Stream stream) {
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(num_blocks)), .block = dim3(kPeakThreads)};
  switch (format) {
    case kernels::RowFormat::kF32: return Launch(PeakF32Kernel, shape, stream, 0.5f, results);
    case kernels::RowFormat::kBF16: return Launch(PeakBf16Kernel, shape, stream, 0x3F803F80u, results);
    case kernels::RowFormat::kInt8: return Launch(PeakCodesKernel, shape, stream, 0x01020304u, results);
  }
}

void ReadAll(const std::byte* bytes, int64_t num_bytes, float* results, Stream stream) {
  const auto num_blocks = static_cast<uint32_t>((num_bytes + kBytesPerReadBlock - 1) / kBytesPerReadBlock);
  Launch(ReadKernel, {.grid = dim3(num_blocks), .block = dim3(kReadThreads)}, stream, bytes, num_bytes, results);
}

}  // namespace penstock::cuda
