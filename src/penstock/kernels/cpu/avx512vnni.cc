#include "penstock/kernels/cpu/attention-inl.h"
#include "penstock/kernels/cpu/gemm/gemm_blocks-inl.h"
#include "penstock/kernels/cpu/gemm/gemm_quantised-inl.h"
#include "penstock/kernels/cpu/indexer-inl.h"
#include "penstock/kernels/cpu/ints_avx512-inl.h"
#include "penstock/kernels/cpu/tables.h"
#include "penstock/kernels/cpu/vec_avx512-inl.h"

namespace penstock::kernels {
namespace {

using VnniInts = Avx512IntsOf<true>;

void Gemm(const GemmArgs& args) {
  if (args.x_format != RowFormat::kInt8) return kAvx512Kernels.gemm(args);
  GemmOfRowCodes<VnniInts>(args);
}

void Attention(const AttentionArgs& args) {
  if (args.kv_format != KvFormat::kInt8) return kAvx512Kernels.attention(args);
  RunAttention<Avx512Vec, VnniInts, KvFormat::kInt8>(args);
}

void IndexScores(const IndexScoresArgs& args) {
  if (args.format != KvFormat::kInt8) return kAvx512Kernels.index_scores(args);
  RunIndexScores<Avx512Vec, VnniInts, KvFormat::kInt8>(args);
}

}  // namespace

constinit const KernelChanges kAvx512VnniChanges = {
    .prepare_rows = nullptr, .gemm = Gemm, .attention = Attention, .index_scores = IndexScores};

}  // namespace penstock::kernels
