// All kernels for one vector class, one class of integer products and one way to multiply bf16 pairs.
#pragma once

#include "penstock/kernels/cpu/attention-inl.h"
#include "penstock/kernels/cpu/exp-inl.h"
#include "penstock/kernels/cpu/gemm-inl.h"
#include "penstock/kernels/cpu/gemm_blocks-inl.h"
#include "penstock/kernels/cpu/gemm_quantised-inl.h"
#include "penstock/kernels/cpu/prepare-inl.h"
#include "penstock/kernels/cpu/router-inl.h"
#include "penstock/kernels/cpu/rows-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// `Bf16Steps` is void where the machine cannot multiply pairs; kBF16 rows are then floats.
template <class V, class Ints, class Bf16Steps>
void Gemm(const GemmArgs& args) {
  switch (args.w_format) {
    case WeightFormat::kF32: return RunGemm<FloatSteps<V, WeightFormat::kF32>, FloatTile>(args);
    case WeightFormat::kF16: return RunGemm<FloatSteps<V, WeightFormat::kF16>, FloatTile>(args);
    case WeightFormat::kBF16:
      if constexpr (!__is_same(Bf16Steps, void)) {
        if (args.x_format == RowFormat::kBF16) return RunGemm<Bf16Steps, FloatTile>(args);
      }
      return RunGemm<FloatSteps<V, WeightFormat::kBF16>, FloatTile>(args);
    case WeightFormat::kInt8: return RunGemm<Int8Steps<Ints>, Int8Tile>(args);
    case WeightFormat::kHqq4: return RunGemm<HqqSteps<Ints, WeightFormat::kHqq4>, HqqTile>(args);
    case WeightFormat::kHqq3: return RunGemm<HqqSteps<Ints, WeightFormat::kHqq3>, HqqTile>(args);
    default: return GemmOfBlocks<V, Bf16Steps>(args);
  }
}

template <class V, class Ints, class Bf16Steps>
constexpr KernelTable MakeTable() {
  return {.prepare_rows = PrepareRows<V, !__is_same(Bf16Steps, void)>,
          .gemm = Gemm<V, Ints, Bf16Steps>,
          .norm = NormRows<V>,
          .rope = Rope<V>,
          .router_topk = RouterTopk<V>,
          .swiglu = Swiglu<V>,
          .store_kv = StoreKv<V>,
          .attention = Attention<V, Ints>,
          .combine = Combine<V>,
          .exp = ExpOf<V>,
          .add = AddTo<V>,
          .to_bf16 = ToBf16<V>,
          .to_f32 = ToF32<V>};
}

}  // namespace
}  // namespace penstock::kernels
