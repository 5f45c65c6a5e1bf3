// Gives each GEMM to the unit that multiplies its weights.
#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/gemm_formats.h"

namespace penstock::cuda {
namespace {

template <class Args>
void LaunchByFormat(const Args& launch, Stream stream) {
  if (launch.groups.num_groups == 0 || launch.groups.max_rows == 0) return;
  switch (launch.w_format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16: return LaunchFloats(launch, stream);
    case WeightFormat::kBF16:
      if (launch.x_format == kernels::RowFormat::kF32) return LaunchFloats(launch, stream);
      return LaunchBf16(launch, stream);
    case WeightFormat::kInt8: return LaunchInt8(launch, stream);
    case WeightFormat::kHqq4:
    case WeightFormat::kHqq3: return LaunchHqq(launch, stream);
    case WeightFormat::kQ2_K:
    case WeightFormat::kQ3_K:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
    case WeightFormat::kQ6_K: return LaunchKBlocks(launch, stream);
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ8_0: return LaunchSmallBlocks(launch, stream);
    case WeightFormat::kFp8:
    case WeightFormat::kMxfp4:
    case WeightFormat::kIq4_Nl:
    case WeightFormat::kIq4_Xs: return LaunchValueBlocks(launch, stream);
    default: return;  // slow formats: refused before a model is loaded
  }
}

}  // namespace

void Gemm(const GemmLaunch& launch, Stream stream) { LaunchByFormat(launch, stream); }
void GateUp(const GateUpLaunch& launch, Stream stream) { LaunchByFormat(launch, stream); }

}  // namespace penstock::cuda
