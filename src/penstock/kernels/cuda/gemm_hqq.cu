// GEMMs with HQQ weights: on the matrix units, or decoded for rows of floats.
#include "penstock/kernels/cuda/block_product.cuh"
#include "penstock/kernels/cuda/gemm.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {
namespace {

template <WeightFormat kFormat, class Args>
void LaunchCodes(const Args& launch, Stream stream) {
  if (launch.x_format == kernels::RowFormat::kInt8) return LaunchQuantised<kFormat>(launch, stream);
  LaunchOf<DecodedProduct<kFormat>>(launch, stream);
}

}  // namespace

template <class Args>
void LaunchHqq(const Args& launch, Stream stream) {
  switch (launch.w_format) {
    case WeightFormat::kHqq4: return LaunchCodes<WeightFormat::kHqq4>(launch, stream);
    case WeightFormat::kHqq3: return LaunchCodes<WeightFormat::kHqq3>(launch, stream);
    case WeightFormat::kHqq2: return LaunchCodes<WeightFormat::kHqq2>(launch, stream);
    default: LaunchCodes<WeightFormat::kTernary>(launch, stream);
  }
}
template void LaunchHqq(const GemmLaunch& launch, Stream stream);
template void LaunchHqq(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
