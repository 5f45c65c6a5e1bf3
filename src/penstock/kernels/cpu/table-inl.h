// All kernels for one vector class and one bf16 dot product.
#pragma once

#include "penstock/kernels/cpu/attention-inl.h"
#include "penstock/kernels/cpu/exp-inl.h"
#include "penstock/kernels/cpu/gemm-inl.h"
#include "penstock/kernels/cpu/router-inl.h"
#include "penstock/kernels/cpu/rows-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

template <class V, class Pairs>
constexpr KernelTable MakeTable() {
  return {.gemm_f32 = GemmF32<V>,
          .gemm_bf16 = GemmBf16<V, Pairs>,
          .rms_norm = RmsNorm<V>,
          .rope = Rope<V>,
          .router_topk = RouterTopk<V>,
          .swiglu = Swiglu<V>,
          .attention = Attention<V>,
          .combine = Combine<V>,
          .exp = ExpOf<V>,
          .add = AddTo<V>,
          .to_bf16 = ToBf16<V>,
          .to_f32 = ToF32<V>};
}

}  // namespace
}  // namespace penstock::kernels
