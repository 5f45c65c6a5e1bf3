// Softmax over a whole vocabulary, in blocks, so that a sampler can skip the blocks without likely tokens.
#pragma once

#include "penstock/kernels/cpu/exp-inl.h"
#include "penstock/kernels/cpu/rows-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// Calls block(first, count, block_idx) for each block of kSoftmaxBlock values; the last one may be shorter.
template <class Block>
void ForEachBlock(int64_t count, const Block& block) {
  for (int64_t first = 0; first < count; first += kSoftmaxBlock) {
    block(first, count - first < kSoftmaxBlock ? count - first : kSoftmaxBlock, first / kSoftmaxBlock);
  }
}

template <class V>
bool BlockMaxima(const float* values, int64_t count, float* maxima) {
  V differences = V::Zero();  // NaN where a value is infinite or NaN
  ForEachBlock(count, [&](int64_t first, int64_t size, int64_t block) {
    V max = V::Set(kMinusInfinity);
    ForEachPiece(size, [&](int64_t i, int64_t num) {
      const float* const source = values + first + i;
      const V piece = num == 16 ? V::Load(source) : V::LoadPartial(source, num, source[0]);
      max = Max(max, piece);
      differences = Add(differences, Sub(piece, piece));
    });
    maxima[block] = max.ReduceMax();
  });
  return differences.ReduceAdd() == 0;
}

template <class V>
void SoftmaxBlocks(const SoftmaxBlocksArgs& args) {
  const V max = V::Set(args.max), scale = V::Set(args.scale);
  ForEachBlock(args.count, [&](int64_t first, int64_t size, int64_t block) {
    V sums = V::Zero(), maxima = V::Zero();
    ForEachPiece(size, [&](int64_t i, int64_t num) {
      const float* const source = args.logits + first + i;
      const V logits = num == 16 ? V::Load(source) : V::LoadPartial(source, num, kMinusInfinity);
      const V weights = Exp(Mul(Sub(logits, max), scale));
      StoreUpTo16(weights, args.weights + first + i, num);
      sums = Add(sums, weights);
      maxima = Max(maxima, weights);
    });
    args.block_sums[block] = sums.ReduceAdd();
    args.block_maxima[block] = maxima.ReduceMax();
  });
}

}  // namespace
}  // namespace penstock::kernels
