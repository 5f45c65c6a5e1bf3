// GEMMs with HQQ weights, on the matrix units.
#include "penstock/kernels/cuda/gemm.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {
namespace {

template <int kTiles>
using Hqq4Product = QuantisedProduct<WeightFormat::kHqq4, kTiles>;
template <int kTiles>
using Hqq3Product = QuantisedProduct<WeightFormat::kHqq3, kTiles>;

}  // namespace

template <class Args>
void LaunchHqq(const Args& launch, Stream stream) {
  if (launch.w_format == WeightFormat::kHqq4)
    return LaunchMatrixUnits<WeightFormat::kHqq4, Hqq4Product>(launch, stream);
  LaunchMatrixUnits<WeightFormat::kHqq3, Hqq3Product>(launch, stream);
}
template void LaunchHqq(const GemmLaunch& launch, Stream stream);
template void LaunchHqq(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
