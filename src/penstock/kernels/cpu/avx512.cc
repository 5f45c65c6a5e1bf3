#include "penstock/kernels/cpu/tables.h"

#include "penstock/kernels/cpu/exponents/avx512-inl.h"
#include "penstock/kernels/cpu/ints_avx512-inl.h"
#include "penstock/kernels/cpu/table-inl.h"
#include "penstock/kernels/cpu/vec_avx512-inl.h"

namespace penstock::kernels {

constinit const KernelTable kAvx512Kernels = MakeTable<Avx512Vec, Avx512IntsOf<false>, Avx512Exponents>();
constinit const ChooseMakeChunkFunction kAvx512MakeChunkOf = MakeChunkOf<Avx512IntsOf<false>>;

}  // namespace penstock::kernels
