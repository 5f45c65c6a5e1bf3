// GEMMs with int8 weights, on the matrix units.
#include "penstock/kernels/cuda/gemm.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {
namespace {

template <int kTiles>
using Int8Product = QuantisedProduct<WeightFormat::kInt8, kTiles>;

}  // namespace

template <class Args>
void LaunchInt8(const Args& launch, Stream stream) {
  LaunchMatrixUnits<WeightFormat::kInt8, Int8Product>(launch, stream);
}
template void LaunchInt8(const GemmLaunch& launch, Stream stream);
template void LaunchInt8(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
