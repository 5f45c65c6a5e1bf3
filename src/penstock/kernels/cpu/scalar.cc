#include "penstock/kernels/cpu/tables.h"

#include "penstock/kernels/cpu/vec_scalar-inl.h"
// The kernels find the functions of the vector class where they are defined, so they come after it.
#include "penstock/kernels/cpu/table-inl.h"

namespace penstock::kernels {

constinit const KernelTable kScalarKernels = MakeTable<ScalarVec, ScalarPairs>();

}  // namespace penstock::kernels
