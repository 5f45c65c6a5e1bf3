// GEMMs with weights in block formats whose codes name values.
#include "penstock/kernels/cuda/gemm_blocks.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {

template <class Args>
void LaunchValueBlocks(const Args& launch, Stream stream) {
  switch (launch.w_format) {
    case WeightFormat::kFp8: return LaunchBlocks<WeightFormat::kFp8>(launch, stream);
    case WeightFormat::kMxfp4: return LaunchBlocks<WeightFormat::kMxfp4>(launch, stream);
    case WeightFormat::kIq4_Nl: return LaunchBlocks<WeightFormat::kIq4_Nl>(launch, stream);
    case WeightFormat::kIq4_Xs: return LaunchBlocks<WeightFormat::kIq4_Xs>(launch, stream);
    default: return;
  }
}
template void LaunchValueBlocks(const GemmLaunch& launch, Stream stream);
template void LaunchValueBlocks(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
