// CUDA's threads on the host, for tests (cuda_runtime_api.h has its streams). The threads of a block are fibers that
// switch at barriers and shuffles; blocks run one after another. Each block starts with fresh shared memory, so it
// cannot read what an earlier kernel left there. Deadlocks end the program with a message. It has no timing and finds
// no races between warps: compute-sanitizer finds those on a GPU.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "penstock/kernels/cuda/stream.h"

#define PENSTOCK_KERNEL(max_threads) void
#define PENSTOCK_DEVICE inline
#define PENSTOCK_HOST_DEVICE inline
#define __restrict__ __restrict

namespace penstock::cuda::emulated {

// The values that device code may read about its thread.
struct ThreadState {
  dim3 thread_idx, block_idx, block_dim, grid_dim;
  std::byte* shared_memory = nullptr;
};
const ThreadState& CurrentThread();

// Wait until all threads of the block, or of the warp, have arrived.
void BlockBarrier();
void WarpBarrier();
// Returns the value that `lane` of the warp passed in the same call.
uint64_t Shuffle(uint64_t value, int lane);
// The words that all lanes passed. The next call of the warp may overwrite them.
using WarpWords = std::array<std::array<uint32_t, 6>, 32>;
const WarpWords& ShareWords(const std::array<uint32_t, 6>& words);

// Copies of 16 bytes by this thread, in groups. DoCopies() completes closed groups until at most `most` are left.
void AddCopy(std::byte* to, const std::byte* from);
void EndCopies();
void DoCopies(int max);

void RunGrid(const LaunchShape& shape, const std::function<void()>& thread);

template <typename T>
T ShuffleAs(T value, int lane) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Shuffle(bits, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
inline int LaneOfThread() { return static_cast<int>(CurrentThread().thread_idx.x % 32); }

}  // namespace penstock::cuda::emulated

#define threadIdx (::penstock::cuda::emulated::CurrentThread().thread_idx)
#define blockIdx (::penstock::cuda::emulated::CurrentThread().block_idx)
#define blockDim (::penstock::cuda::emulated::CurrentThread().block_dim)
#define gridDim (::penstock::cuda::emulated::CurrentThread().grid_dim)

inline void __syncthreads() { penstock::cuda::emulated::BlockBarrier(); }
inline void __syncwarp(uint32_t = 0xFFFFFFFFu) { penstock::cuda::emulated::WarpBarrier(); }
template <typename T>
T __shfl_sync(uint32_t, T value, int lane) {
  return penstock::cuda::emulated::ShuffleAs(value, lane);
}
template <typename T>
T __shfl_xor_sync(uint32_t, T value, int mask) {
  return penstock::cuda::emulated::ShuffleAs(value, penstock::cuda::emulated::LaneOfThread() ^ mask);
}
// Lanes beyond the last one keep their value.
template <typename T>
T __shfl_down_sync(uint32_t, T value, int delta) {
  const int lane = penstock::cuda::emulated::LaneOfThread();
  return penstock::cuda::emulated::ShuffleAs(value, lane + delta < 32 ? lane + delta : lane);
}
template <typename T>
T __shfl_up_sync(uint32_t, T value, int delta) {
  const int lane = penstock::cuda::emulated::LaneOfThread();
  return penstock::cuda::emulated::ShuffleAs(value, lane >= delta ? lane - delta : lane);
}

inline uint32_t __ballot_sync(uint32_t, bool vote) {
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) {
    bits |= penstock::cuda::emulated::ShuffleAs<uint32_t>(vote ? 1 : 0, lane) << lane;
  }
  return bits;
}

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __int2float_rn(int32_t x) { return static_cast<float>(x); }
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

namespace penstock::cuda {

inline std::byte* SharedMemory() { return emulated::CurrentThread().shared_memory; }

template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), const LaunchShape& shape, Stream stream, const Arguments&... arguments) {
  emulated::Enqueue(stream, [=] { emulated::RunGrid(shape, [&] { kernel(arguments...); }); });
}

inline uint4 LoadOnce(const void* source) {
  uint4 value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

inline uint32_t PickBytes(uint32_t low, uint32_t high, uint32_t numbers) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t picked = 0;
  for (int i = 0; i < 4; ++i) picked |= static_cast<uint32_t>(bytes >> 8 * (numbers >> 4 * i & 7) & 0xFF) << 8 * i;
  return picked;
}

inline void LoadMatrices(const std::byte* row, uint32_t (&words)[4]) {
  const int lane = emulated::LaneOfThread();
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto* const source = emulated::ShuffleAs(row, 8 * matrix + lane / 4);
    std::memcpy(&words[matrix], source + 4 * (lane % 4), 4);
  }
}

// Copies as late as the hardware may.
inline void CopyPiece(std::byte* shared, const std::byte* source) { emulated::AddCopy(shared, source); }
inline void EndCopies() { emulated::EndCopies(); }
template <int kMax>
void WaitForCopies() {
  emulated::DoCopies(kMax);
}

void MultiplyCodes(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void MultiplyBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

}  // namespace penstock::cuda
