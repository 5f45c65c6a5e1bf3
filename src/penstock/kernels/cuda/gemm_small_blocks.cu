// GEMMs with GGUF's weights in blocks of 32.
#include "penstock/kernels/cuda/gemm_blocks.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {

template <class Args>
bool LaunchSmallBlocks(const Args& launch, Stream stream) {
  switch (launch.w_format) {
    case WeightFormat::kQ4_0: LaunchBlocks<WeightFormat::kQ4_0>(launch, stream); return true;
    case WeightFormat::kQ4_1: LaunchBlocks<WeightFormat::kQ4_1>(launch, stream); return true;
    case WeightFormat::kQ5_0: LaunchBlocks<WeightFormat::kQ5_0>(launch, stream); return true;
    case WeightFormat::kQ5_1: LaunchBlocks<WeightFormat::kQ5_1>(launch, stream); return true;
    case WeightFormat::kQ8_0: LaunchBlocks<WeightFormat::kQ8_0>(launch, stream); return true;
    default: return false;
  }
}
template bool LaunchSmallBlocks(const GemmLaunch& launch, Stream stream);
template bool LaunchSmallBlocks(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
