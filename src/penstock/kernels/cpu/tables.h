// The kernels of each instruction set. A unit exists only if the compiler can make it: the scalar one everywhere, NEON
// on 64-bit ARM, the others on x86-64.
//
// Units with instruction set flags export no code, only these tables and pointers.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kNeonKernels;

// The kernels that change when a machine has further instructions; null means unchanged. kernels.cc puts them into a
// copy of the table without these instructions, so that the other kernels are compiled once.
struct KernelChanges {
  void (*prepare_rows)(const PrepareRowsArgs& args);
  void (*gemm)(const GemmArgs& args);
  void (*attention)(const AttentionArgs& args);
  void (*index_scores)(const IndexScoresArgs& args);
};
extern const KernelChanges kAvx512VnniChanges;  // to kAvx512Kernels
extern const KernelChanges kAvx512Bf16Changes;  // to the table that those changes give
extern const KernelChanges kAvx512AmxChanges;   // and to the table that these give

// Converts the inputs [first, first + count) of a panel of codes or blocks into a panel of floats or bf16.
using MakeChunkFunction = void (*)(const std::byte* panel, int64_t first, int64_t count, bool as_bf16,
                                   std::byte* target);
using ChooseMakeChunkFunction = MakeChunkFunction (*)(WeightFormat format);
extern const ChooseMakeChunkFunction kAvx512MakeChunkOf;

// Tells whether VDPBF16PS of this machine sums in the order that kernel_table.h writes down. It asks the instruction
// itself, because no maker promises the order. REQUIRES: the machine has AVX512-BF16.
extern bool (*const kAvx512Bf16FollowsTheLaw)();

}  // namespace penstock::kernels
