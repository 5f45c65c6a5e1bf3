#include "penstock/hardware/write_loops.h"

#include "penstock/base/check.h"

namespace penstock {
namespace {

// Ordinary stores, as kernels use them. Non-temporal stores lost on a Cascade Lake at 2.5 GHz: 6.8 instead of 9.5 GB/s
// written with one thread, 13.4 instead of 18.4 with two; copies 4.5 instead of 5.4, and 8.8 in both cases.
using Vec [[gnu::vector_size(16), gnu::may_alias]] = uint64_t;
constexpr size_t kLineVecs = 64 / sizeof(Vec);

// Keeps the compiler from turning the loop into memset or memcpy, which choose the kind of their stores by size.
inline void KeepLoop() { asm volatile("" ::: "memory"); }

}  // namespace

void FillMemory(std::span<std::byte> to, uint64_t word) {
  PENSTOCK_CHECK(to.size() % 64 == 0);
  Vec* target = reinterpret_cast<Vec*>(to.data());
  const Vec value = {word, word};
  for (size_t i = 0; i < to.size() / sizeof(Vec); i += kLineVecs) {
#pragma GCC unroll 4
    for (size_t j = 0; j < kLineVecs; ++j) target[i + j] = value;
    KeepLoop();
  }
}

void CopyMemory(std::span<const std::byte> from, std::span<std::byte> to) {
  PENSTOCK_CHECK(from.size() == to.size() && from.size() % 64 == 0);
  const Vec* source = reinterpret_cast<const Vec*>(from.data());
  Vec* target = reinterpret_cast<Vec*>(to.data());
  for (size_t i = 0; i < from.size() / sizeof(Vec); i += kLineVecs) {
#pragma GCC unroll 4
    for (size_t j = 0; j < kLineVecs; ++j) target[i + j] = source[i + j];
    KeepLoop();
  }
}

}  // namespace penstock
