// GEMMs with HQQ weights, on the matrix units.
#include "penstock/kernels/cuda/gemm.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {
template <class Args>
void LaunchHqq(const Args& launch, Stream stream) {
  if (launch.w_format == WeightFormat::kHqq4) return LaunchQuantised<WeightFormat::kHqq4>(launch, stream);
  LaunchQuantised<WeightFormat::kHqq3>(launch, stream);
}
template void LaunchHqq(const GemmLaunch& launch, Stream stream);
template void LaunchHqq(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
