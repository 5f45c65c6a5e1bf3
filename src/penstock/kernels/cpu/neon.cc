#include "penstock/kernels/cpu/tables.h"

#include "penstock/kernels/cpu/ints_neon-inl.h"
#include "penstock/kernels/cpu/table-inl.h"
#include "penstock/kernels/cpu/vec_neon-inl.h"

namespace penstock::kernels {

constinit const KernelTable kNeonKernels = MakeTable<NeonVec, NeonInts, ScalarExponents>();

}  // namespace penstock::kernels
