#include "penstock/kernels/cpu/tables.h"

#include "penstock/kernels/cpu/table-inl.h"
#include "penstock/kernels/cpu/vec_scalar-inl.h"

namespace penstock::kernels {

constinit const KernelTable kScalarKernels = MakeTable<ScalarVec, ScalarPairs>();

}  // namespace penstock::kernels
