// The language of device code: CUDA C++, with wrappers for the few operations that differ between architectures. With
// PENSTOCK_EMULATED_SIMT the same code compiles for the host, where every thread of a block is a fiber
// (testing/cuda/emulated_simt.h). So its arithmetic, barriers and indices are tested without a GPU.
//
// Device code is compiled with -fmad=false: fused operations are written explicitly, as on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/kernels/cuda/stream.h"

namespace penstock::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
};

// Returns a row of blocks.
inline LaunchShape BlocksShape(int64_t num_blocks, int num_threads, int64_t shared_floats = 0) {
  return {.grid = dim3(static_cast<uint32_t>(num_blocks)),
          .block = dim3(static_cast<uint32_t>(num_threads)),
          .shared_bytes = sizeof(float) * static_cast<size_t>(shared_floats)};
}

inline int64_t BlocksFor(int64_t count, int64_t of_block) { return (count + of_block - 1) / of_block; }

}  // namespace penstock::cuda

#ifdef PENSTOCK_EMULATED_SIMT
#include "emulated_simt.h"
#else
#include <cuda_runtime.h>

#define PENSTOCK_KERNEL(max_threads) __global__ void __launch_bounds__(max_threads)
#define PENSTOCK_DEVICE __device__ __forceinline__
#define PENSTOCK_HOST_DEVICE __host__ __device__ __forceinline__
#endif

namespace penstock::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

#ifndef PENSTOCK_EMULATED_SIMT

// Returns dynamic shared memory, aligned to 16 bytes. All kernels use the same memory, one kernel at a time.
PENSTOCK_DEVICE std::byte* SharedMemory() {
  extern __shared__ uint4 penstock_shared_memory[];
  return reinterpret_cast<std::byte*>(penstock_shared_memory);
}

// Launches a kernel. Errors are sticky: cudaGetLastError() returns them.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), const LaunchShape& shape, Stream stream, const Arguments&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  // A kernel needs permission for more shared memory than this.
  if (shape.shared_bytes > 48 * 1024) {
    (void)cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes));
  }
  kernel<<<shape.grid, shape.block, shape.shared_bytes, stream>>>(arguments...);
}

// Loads 16 bytes that are read only once, without displacing other data from the L1 cache.
PENSTOCK_DEVICE uint4 LoadOnce(const void* source) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(source));
  return value;
}

// Returns four of the eight bytes of `low` and `high`: those whose numbers (0 to 7) are the four low nibbles of
// `numbers`.
PENSTOCK_DEVICE uint32_t PickBytes(uint32_t low, uint32_t high, uint32_t numbers) {
  return __byte_perm(low, high, numbers);
}

// Computes d += a . b^T exactly: a [16, 32] of u8, b [8, 32] of s8, d [16, 8]. With g = lane / 4 and t = lane % 4, a
// has rows g, g + 8, g, g + 8 at inputs 4 t, 4 t, 16 + 4 t, 16 + 4 t (four each). b has row g at inputs 4 t and 16 + 4
// t. d has (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
PENSTOCK_DEVICE void MultiplyCodes(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int32_t* const half = d + 2 * (i % 2);
    asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(half[0]), "+r"(half[1])
        : "r"(a[i]), "r"(b[i / 2]));
  }
#endif
}

// Computes d += a . b^T in f32: a [16, 16] and b [8, 16] of bf16 in pairs, laid out as above with inputs 2 t and 8 + 2
// t. Before sm_80 the matrix units have no bf16, and f16 lacks its range, so products are computed one by one: correct
// but slow.
PENSTOCK_DEVICE void MultiplyBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int word = 0; word < 8; ++word) {
    const uint32_t x[2] = {__shfl_sync(0xFFFFFFFFu, a[word / 4 * 2], 4 * g + word % 4),
                           __shfl_sync(0xFFFFFFFFu, a[word / 4 * 2 + 1], 4 * g + word % 4)};
    const uint32_t y[2] = {__shfl_sync(0xFFFFFFFFu, b[word / 4], 8 * t + word % 4),
                           __shfl_sync(0xFFFFFFFFu, b[word / 4], 8 * t + 4 + word % 4)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[i] = __fmaf_rn(__uint_as_float(x[i / 2] << 16), __uint_as_float(y[i % 2] << 16), d[i]);
      d[i] = __fmaf_rn(__uint_as_float(x[i / 2] & 0xFFFF0000u), __uint_as_float(y[i % 2] & 0xFFFF0000u), d[i]);
    }
  }
#endif
}

PENSTOCK_DEVICE uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Loads from four matrices of eight rows and 16 bytes in shared memory. Lane i passes the address of row i % 8 of
// matrix i / 8. It gets four bytes of each matrix: those at 4 (i % 4) of row i / 4.
PENSTOCK_DEVICE void LoadMatrices(const std::byte* row, uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(SharedAddress(row)));
}

// Starts to copy 16 bytes from device memory into shared memory (before sm_80: copies at once). EndCopies() closes a
// set of copies; WaitForCopies() waits until at most the given number of sets are in flight. Other threads see the data
// after a barrier.
PENSTOCK_DEVICE void CopyPiece(std::byte* shared, const std::byte* source) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(shared)), "l"(source) : "memory");
#else
  *reinterpret_cast<uint4*>(shared) = *reinterpret_cast<const uint4*>(source);
#endif
}
PENSTOCK_DEVICE void EndCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kMax>
PENSTOCK_DEVICE void WaitForCopies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kMax) : "memory");
#endif
}

#endif

// Return the lane in a warp, and the number of the warp in its block. REQUIRES: blocks of one dimension.
PENSTOCK_DEVICE int Lane() { return static_cast<int>(threadIdx.x) % kWarpThreads; }
PENSTOCK_DEVICE int Warp() { return static_cast<int>(threadIdx.x) / kWarpThreads; }

}  // namespace penstock::cuda
