// The shortest correct code for every kernel: double sums in plain order. It is the tests' oracle; the engine never
// calls it.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels::reference {

void PrepareRows(const PrepareRowsArgs& args);  // kBF16 rows are floats
void Gemm(const GemmArgs& args);                // x: rows from PrepareRows
void NormRows(const NormArgs& args);
void Rope(const RopeArgs& args);
void RouterTopk(const RouterTopkArgs& args);
void Swiglu(const SwigluArgs& args);
void StoreKv(const StoreKvArgs& args);
void Attention(const AttentionArgs& args);
void IndexScores(const IndexScoresArgs& args);
void SelectTopk(const SelectTopkArgs& args);
void GatherKv(const GatherKvArgs& args);
void Combine(const CombineArgs& args);
void ShortConv(const ShortConvArgs& args);
void RecurrentGates(const RecurrentGatesArgs& args);
void StateRule(const StateRuleArgs& args);
void SelectiveScan(const SelectiveScanArgs& args);
void ScaleBySigmoid(const float* gate, int64_t count, float* target);
void Exp(const float* source, int64_t count, float* target);
void SoftCap(float cap, int64_t count, float* x);
void Add(const float* source, float scale, int64_t count, float* target);
void ToBf16(const float* source, int64_t count, BF16* target);
void ToF32(Dtype dtype, const std::byte* source, int64_t count, float* target);

}  // namespace penstock::kernels::reference
