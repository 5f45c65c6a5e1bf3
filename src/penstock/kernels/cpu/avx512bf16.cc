#include "penstock/kernels/cpu/tables.h"

#include "penstock/kernels/cpu/gemm/gemm_blocks-inl.h"
#include "penstock/kernels/cpu/gemm/pairs_avx512bf16-inl.h"
#include "penstock/kernels/cpu/ints_avx512-inl.h"
#include "penstock/kernels/cpu/prepare-inl.h"

namespace penstock::kernels {
namespace {

inline __m512 DotInstruction(__m512 sum, __m512i x, __m512i w) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
}

bool FollowsTheLaw() {
  alignas(64) uint32_t x[16], w[16];
  alignas(64) float sum[16];
  uint32_t state = 1;
  const auto next = [&state] { return state = state * 1664525 + 1013904223; };
  // Any sign and mantissa, exponents from 2^-8 to 2^7: order and rounding decide the last bits of nearly every sum.
  const auto next_bf16 = [&next] {
    const uint32_t bits = next() >> 8;
    return (bits & 0x807F) | (119 + (bits >> 16 & 15)) << 7;
  };
  for (int round = 0; round < 64; ++round) {
    for (int lane = 0; lane < 16; ++lane) {
      x[lane] = next_bf16() << 16 | next_bf16();
      w[lane] = next_bf16() << 16 | next_bf16();
      sum[lane] = static_cast<float>(static_cast<int32_t>(next())) * 0x1p-28f;
    }
    const __m512i x_lanes = _mm512_load_si512(x);
    const __m512i w_lanes = _mm512_load_si512(w);
    const __m512 found = DotInstruction(_mm512_load_ps(sum), x_lanes, w_lanes);
    const __m512 expected = DotByMultiplyAdds(_mm512_load_ps(sum), x_lanes, w_lanes);
    if (_mm512_cmpneq_epi32_mask(_mm512_castps_si512(found), _mm512_castps_si512(expected)) != 0) return false;
  }
  return true;
}

void Gemm(const GemmArgs& args) {
  using Steps = Bf16Steps<DotInstruction>;
  if (args.x_format == RowFormat::kInt8 && IsCodebookOrTernary(args.w_format)) {
    return GemmOfCodebooks<Avx512IntsOf<true>>(args);
  }
  if (args.x_format != RowFormat::kBF16) return kAvx512VnniChanges.gemm(args);
  if (args.w_format == WeightFormat::kBF16) return RunGemm<Steps, FloatTile>(args);
  RunChunksGemm<Steps>(args, kAvx512MakeChunkOf(args.w_format), true);
}

}  // namespace

constinit const KernelChanges kAvx512Bf16Changes = {
    .prepare_rows = PrepareRows<Avx512Vec, true>, .gemm = Gemm, .attention = nullptr, .index_scores = nullptr};
bool (*const kAvx512Bf16FollowsTheLaw)() = FollowsTheLaw;

}  // namespace penstock::kernels
