// All kernels for one vector class and one class of integer products.
#pragma once

#include "penstock/kernels/cpu/attention-inl.h"
#include "penstock/kernels/cpu/exp-inl.h"
#include "penstock/kernels/cpu/exponents/exponents-inl.h"
#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/kernels/cpu/gemm/gemm_blocks-inl.h"
#include "penstock/kernels/cpu/gemm/gemm_quantised-inl.h"
#include "penstock/kernels/cpu/indexer-inl.h"
#include "penstock/kernels/cpu/prepare-inl.h"
#include "penstock/kernels/cpu/recurrent-inl.h"
#include "penstock/kernels/cpu/router-inl.h"
#include "penstock/kernels/cpu/rows-inl.h"
#include "penstock/kernels/cpu/softmax-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// `V` are vectors, `Ints` integer products, `Exponents` decodes exponents.
template <class V, class Ints>
void Gemm(const GemmArgs& args) {
  if (args.x_format == RowFormat::kInt8) return GemmOfRowCodes<Ints>(args);
  switch (args.w_format) {
    case WeightFormat::kF32: return RunGemm<FloatSteps<V, WeightFormat::kF32>, FloatTile>(args);
    case WeightFormat::kF16: return RunGemm<FloatSteps<V, WeightFormat::kF16>, FloatTile>(args);
    case WeightFormat::kBF16: return RunGemm<FloatSteps<V, WeightFormat::kBF16>, FloatTile>(args);
    default: return GemmOfChunks<V>(args, MakeChunkOf<Ints>(args.w_format));
  }
}

template <class V, class Ints>
void Attention(const AttentionArgs& args) {
  switch (args.kv_format) {
    case KvFormat::kF32: return RunAttention<V, Ints, KvFormat::kF32>(args);
    case KvFormat::kBF16: return RunAttention<V, Ints, KvFormat::kBF16>(args);
    case KvFormat::kInt8: return RunAttention<V, Ints, KvFormat::kInt8>(args);
  }
}

template <class V, class Ints>
void IndexScores(const IndexScoresArgs& args) {
  switch (args.format) {
    case KvFormat::kF32: return RunIndexScores<V, Ints, KvFormat::kF32>(args);
    case KvFormat::kBF16: return RunIndexScores<V, Ints, KvFormat::kBF16>(args);
    case KvFormat::kInt8: return RunIndexScores<V, Ints, KvFormat::kInt8>(args);
  }
}

template <class V, class Ints, class Exponents>
constexpr KernelTable MakeTable() {
  return {.prepare_rows = PrepareRows<V, false>,
          .gemm = Gemm<V, Ints>,
          .norm = NormRows<V>,
          .rope = Rope<V>,
          .router_topk = RouterTopk<V>,
          .swiglu = Swiglu<V>,
          .store_kv = StoreKv<V>,
          .attention = Attention<V, Ints>,
          .index_scores = IndexScores<V, Ints>,
          .select_topk = SelectTopk,
          .gather_kv = GatherKv,
          .combine = Combine<V>,
          .short_conv = ShortConv<V>,
          .recurrent_gates = RecurrentGates<V>,
          .state_rule = StateRule<V>,
          .selective_scan = SelectiveScan<V>,
          .scale_by_sigmoid = ScaleBySigmoid<V>,
          .exp = ExpOf<V>,
          .soft_cap = SoftCap<V>,
          .block_maxima = BlockMaxima<V>,
          .softmax_blocks = SoftmaxBlocks<V>,
          .add = AddTo<V>,
          .to_bf16 = ToBf16<V>,
          .to_f32 = ToF32<V>,
          .decode_exponents = DecodeExponents<Exponents>};
}

}  // namespace
}  // namespace penstock::kernels
