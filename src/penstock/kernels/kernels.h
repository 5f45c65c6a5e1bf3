// Chooses the kernels for this machine. The kernels themselves are described in kernel_table.h.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {

// Instruction sets, from the one that runs everywhere to the most demanding. All of them give the same bits, except
// that kAvx512Bf16 takes denormals as zero where kBF16 rows are multiplied.
enum class Isa : int { kScalar, kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16, kNeon };

std::string_view IsaName(Isa isa);  // "scalar", "avx2", "avx512", "avx512vnni", "avx512bf16", "neon"

// The ones that this binary contains and this machine runs, ascending; kScalar is always there.
std::vector<Isa> SupportedIsas();

// The last of SupportedIsas().
Isa BestIsa();

// The instruction set called `forced`, or the best one when `forced` is empty. A usage error when the name is unknown
// or the machine lacks it.
absl::StatusOr<Isa> ChooseIsa(std::string_view forced);

// REQUIRES: `isa` is supported. The table lives forever and may be used by any number of threads.
const KernelTable& KernelsFor(Isa isa);

// Bytes of a row of `dim` activations as PrepareRowsArgs::target, a multiple of 64: room for the format on any machine.
int64_t RowBytes(RowFormat format, int64_t dim);

// What attention needs for `num_heads` query heads over at most `num_positions` positions.
int64_t AttentionScratchFloats(int64_t num_heads, int64_t head_dim, int64_t num_positions);

}  // namespace penstock::kernels
