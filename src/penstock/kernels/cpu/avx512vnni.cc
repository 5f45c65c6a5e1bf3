#include "penstock/kernels/cpu/tables.h"

#include "penstock/kernels/cpu/ints_avx512-inl.h"
#include "penstock/kernels/cpu/table-inl.h"
#include "penstock/kernels/cpu/vec_avx512-inl.h"

namespace penstock::kernels {

constinit const KernelTable kAvx512VnniKernels = MakeTable<Avx512Vec, Avx512IntsOf<true>, void>();

}  // namespace penstock::kernels
