// Chooses the kernels for this machine. kernel_table.h describes the kernels themselves.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {

// Instruction sets, from the one that runs everywhere to the most demanding. All of them give the same bits, except
// that those with SumsPairs() take denormals as zero when they multiply kBF16 rows.
enum class Isa : int { kScalar, kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16, kAvx512Amx, kNeon };

// "scalar", "avx2", "avx512", "avx512vnni", "avx512bf16", "avx512amx", "neon"
std::string_view IsaName(Isa isa);

// Returns the instruction sets that this binary contains and this machine runs, ascending; kScalar is always among
// them.
std::vector<Isa> SupportedIsas();

// Whether kBF16 rows are multiplied in pairs of inputs.
inline bool SumsPairs(Isa isa) { return isa == Isa::kAvx512Bf16 || isa == Isa::kAvx512Amx; }

// Returns the last of SupportedIsas().
Isa BestIsa();

// Returns the instruction set called `forced`, or the best one when `forced` is empty. Returns a usage error when the
// name is unknown or the machine lacks it.
absl::StatusOr<Isa> ChooseIsa(std::string_view forced);

// Returns the kernels for `isa`. The table lives forever and is safe to use from any number of threads. REQUIRES: `isa`
// is supported.
const KernelTable& KernelsFor(Isa isa);

// Returns the bytes of a row of `dim` activations as PrepareRowsArgs::target, a multiple of 64: enough for the format
// on any machine.
int64_t RowBytes(RowFormat format, int64_t dim);

// Returns the scratch floats that attention needs for `num_heads` query heads over at most `num_positions` positions.
int64_t AttentionScratchFloats(int64_t num_heads, int64_t head_dim, int64_t num_positions);

// Returns the scratch floats that the scores of `num_heads` index queries need.
int64_t IndexScratchFloats(int64_t num_heads, int64_t head_dim);

}  // namespace penstock::kernels
