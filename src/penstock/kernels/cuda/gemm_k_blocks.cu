// GEMMs with GGUF's weights in blocks of 256.
#include "penstock/kernels/cuda/gemm_blocks.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {

template <class Args>
void LaunchKBlocks(const Args& launch, Stream stream) {
  switch (launch.w_format) {
    case WeightFormat::kQ2_K: return LaunchBlocks<WeightFormat::kQ2_K>(launch, stream);
    case WeightFormat::kQ3_K: return LaunchBlocks<WeightFormat::kQ3_K>(launch, stream);
    case WeightFormat::kQ4_K: return LaunchBlocks<WeightFormat::kQ4_K>(launch, stream);
    case WeightFormat::kQ5_K: return LaunchBlocks<WeightFormat::kQ5_K>(launch, stream);
    case WeightFormat::kQ6_K: return LaunchBlocks<WeightFormat::kQ6_K>(launch, stream);
    default: return;
  }
}
template void LaunchKBlocks(const GemmLaunch& launch, Stream stream);
template void LaunchKBlocks(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
