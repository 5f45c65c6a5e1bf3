// GEMMs with int8 weights: on the matrix units, or decoded for rows of floats.
#include "penstock/kernels/cuda/block_product.cuh"
#include "penstock/kernels/cuda/gemm.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {
template <class Args>
void LaunchInt8(const Args& launch, Stream stream) {
  if (launch.x_format != kernels::RowFormat::kInt8) {
    return LaunchOf<DecodedProduct<WeightFormat::kInt8>>(launch, stream);
  }
  LaunchQuantised<WeightFormat::kInt8>(launch, stream);
}
template void LaunchInt8(const GemmLaunch& launch, Stream stream);
template void LaunchInt8(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
