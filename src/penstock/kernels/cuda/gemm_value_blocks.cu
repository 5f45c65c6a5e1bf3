// GEMMs with weights in block formats whose codes name values.
#include "penstock/kernels/cuda/gemm_blocks.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {

template <class Args>
bool LaunchValueBlocks(const Args& launch, Stream stream) {
  switch (launch.w_format) {
    case WeightFormat::kFp8: LaunchBlocks<WeightFormat::kFp8>(launch, stream); return true;
    case WeightFormat::kMxfp4: LaunchBlocks<WeightFormat::kMxfp4>(launch, stream); return true;
    case WeightFormat::kIq4_Nl: LaunchBlocks<WeightFormat::kIq4_Nl>(launch, stream); return true;
    case WeightFormat::kIq4_Xs: LaunchBlocks<WeightFormat::kIq4_Xs>(launch, stream); return true;
    default: return false;
  }
}
template bool LaunchValueBlocks(const GemmLaunch& launch, Stream stream);
template bool LaunchValueBlocks(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
