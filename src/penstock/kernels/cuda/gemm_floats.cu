// GEMMs with float weights and f32 rows.
#include "penstock/kernels/cuda/gemm.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {

template <class Args>
void LaunchFloats(const Args& launch, Stream stream) {
  switch (launch.w_format) {
    case WeightFormat::kF32: return LaunchFloat<WeightFormat::kF32>(launch, stream);
    case WeightFormat::kF16: return LaunchFloat<WeightFormat::kF16>(launch, stream);
    default: return LaunchFloat<WeightFormat::kBF16>(launch, stream);
  }
}
template void LaunchFloats(const GemmLaunch& launch, Stream stream);
template void LaunchFloats(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
