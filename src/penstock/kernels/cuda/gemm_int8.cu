// GEMMs with int8 weights, on the matrix units.
#include "penstock/kernels/cuda/gemm.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {
template <class Args>
void LaunchInt8(const Args& launch, Stream stream) {
  LaunchQuantised<WeightFormat::kInt8>(launch, stream);
}
template void LaunchInt8(const GemmLaunch& launch, Stream stream);
template void LaunchInt8(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
