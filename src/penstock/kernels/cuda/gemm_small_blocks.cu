// GEMMs with GGUF's weights in blocks of 32.
#include "penstock/kernels/cuda/gemm_blocks.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {

template <class Args>
void LaunchSmallBlocks(const Args& launch, Stream stream) {
  switch (launch.w_format) {
    case WeightFormat::kQ4_0: return LaunchBlocks<WeightFormat::kQ4_0>(launch, stream);
    case WeightFormat::kQ4_1: return LaunchBlocks<WeightFormat::kQ4_1>(launch, stream);
    case WeightFormat::kQ5_0: return LaunchBlocks<WeightFormat::kQ5_0>(launch, stream);
    case WeightFormat::kQ5_1: return LaunchBlocks<WeightFormat::kQ5_1>(launch, stream);
    case WeightFormat::kQ8_0: return LaunchBlocks<WeightFormat::kQ8_0>(launch, stream);
    default: return;
  }
}
template void LaunchSmallBlocks(const GemmLaunch& launch, Stream stream);
template void LaunchSmallBlocks(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
