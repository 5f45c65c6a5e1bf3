// GEMMs with bf16 weights and bf16 rows, on the matrix units.
#include "penstock/kernels/cuda/gemm.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {

template <class Args>
void LaunchBf16(const Args& launch, Stream stream) {
  if (IsTiled<WeightFormat::kBF16>(launch)) return LaunchTiled<WeightFormat::kBF16>(launch, stream);
  if (launch.groups.typical() <= 8) return LaunchOf<Bf16Product<1>>(launch, stream);
  LaunchOf<Bf16Product<4>>(launch, stream);
}
template void LaunchBf16(const GemmLaunch& launch, Stream stream);
template void LaunchBf16(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
