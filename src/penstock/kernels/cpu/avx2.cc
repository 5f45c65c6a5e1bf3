#include "penstock/kernels/cpu/tables.h"

#include "penstock/kernels/cpu/exponents/avx2-inl.h"
#include "penstock/kernels/cpu/ints_avx2-inl.h"
#include "penstock/kernels/cpu/table-inl.h"
#include "penstock/kernels/cpu/vec_avx2-inl.h"

namespace penstock::kernels {

constinit const KernelTable kAvx2Kernels = MakeTable<Avx2Vec, Avx2Ints, Avx2Exponents>();

}  // namespace penstock::kernels
