// GEMMs with GGUF's weights in blocks of 256.
#include "penstock/kernels/cuda/gemm_blocks.cuh"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {

template <class Args>
bool LaunchKBlocks(const Args& launch, Stream stream) {
  switch (launch.w_format) {
    case WeightFormat::kQ2_K: LaunchBlocks<WeightFormat::kQ2_K>(launch, stream); return true;
    case WeightFormat::kQ3_K: LaunchBlocks<WeightFormat::kQ3_K>(launch, stream); return true;
    case WeightFormat::kQ4_K: LaunchBlocks<WeightFormat::kQ4_K>(launch, stream); return true;
    case WeightFormat::kQ5_K: LaunchBlocks<WeightFormat::kQ5_K>(launch, stream); return true;
    case WeightFormat::kQ6_K: LaunchBlocks<WeightFormat::kQ6_K>(launch, stream); return true;
    default: return false;
  }
}
template bool LaunchKBlocks(const GemmLaunch& launch, Stream stream);
template bool LaunchKBlocks(const GateUpLaunch& launch, Stream stream);

}  // namespace penstock::cuda
