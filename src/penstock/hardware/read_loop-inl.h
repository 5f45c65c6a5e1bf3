// The loops behind every ReadLoop, parameterised by the vector width.
#pragma once

#include "penstock/hardware/read_loops.h"

namespace penstock {
namespace {

// Width::Vec is the vector. Each stream has its own sum: additions do not wait for each other, and the streams keep the
// prefetchers busy.
template <class Width>
uint64_t SumStreams(const std::byte* from, size_t num_bytes) {
  using Vec = typename Width::Vec;
  constexpr size_t kVecBytes = sizeof(Vec);
  constexpr size_t kNumStreams = 8;
  constexpr size_t kLineVecs = 64 / kVecBytes;
  const Vec* vecs = reinterpret_cast<const Vec*>(from);
  const size_t stream_vecs = num_bytes / kVecBytes / kNumStreams;
  Vec sums[kNumStreams] = {};
  for (size_t i = 0; i < stream_vecs; i += kLineVecs) {
#pragma GCC unroll 8
    for (size_t stream = 0; stream < kNumStreams; ++stream) {
      const Vec* line = vecs + stream * stream_vecs + i;
      Vec line_sum = line[0];
#pragma GCC unroll 4
      for (size_t j = 1; j < kLineVecs; ++j) line_sum += line[j];
      sums[stream] += line_sum;
    }
  }
  for (size_t stream = 1; stream < kNumStreams; ++stream) sums[0] += sums[stream];
  uint64_t sum = 0;
  for (size_t i = 0; i < kVecBytes / sizeof(uint64_t); ++i) sum += sums[0][i];
  return sum;
}

// Reads one stream and prefetches, in alternation, the second half of the next page and the first half of the page
// after it.
template <class Width>
uint64_t SumPages(const std::byte* from, size_t num_bytes) {
  using Vec = typename Width::Vec;
  constexpr size_t kLineVecs = 64 / sizeof(Vec);
  constexpr size_t kStepBytes = 512;
  constexpr size_t kPageBytes = 4096;
  Vec sums[8] = {};
  for (size_t i = 0; i < num_bytes; i += kStepBytes) {
    const std::byte* half = from + i - i % kPageBytes / 2 + kPageBytes + kPageBytes / 2;
#pragma GCC unroll 4
    for (size_t line = 0; line < 4; ++line) {
      __builtin_prefetch(half + 64 * line);
      __builtin_prefetch(half + kPageBytes / 2 + 64 * line);
    }
#pragma GCC unroll 8
    for (size_t line = 0; line < 8; ++line) {
      const Vec* vecs = reinterpret_cast<const Vec*>(from + i + 64 * line);
      Vec line_sum = vecs[0];
#pragma GCC unroll 4
      for (size_t j = 1; j < kLineVecs; ++j) line_sum += vecs[j];
      sums[line] += line_sum;
    }
  }
  for (size_t line = 1; line < 8; ++line) sums[0] += sums[line];
  uint64_t sum = 0;
  for (size_t i = 0; i < sizeof(Vec) / sizeof(uint64_t); ++i) sum += sums[0][i];
  return sum;
}

}  // namespace
}  // namespace penstock
