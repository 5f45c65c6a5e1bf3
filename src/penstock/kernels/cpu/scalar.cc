#include "penstock/kernels/cpu/tables.h"

#include "penstock/kernels/cpu/ints_scalar-inl.h"
#include "penstock/kernels/cpu/table-inl.h"
#include "penstock/kernels/cpu/vec_scalar-inl.h"

namespace penstock::kernels {

constinit const KernelTable kScalarKernels = MakeTable<ScalarVec, ScalarInts, ScalarExponents>();

}  // namespace penstock::kernels
