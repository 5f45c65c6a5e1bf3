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
    case WeightFormat::kHqq3:
    case WeightFormat::kHqq2:
    case WeightFormat::kTernary: return LaunchHqq(launch, stream);
    default:  // a block format; those of CPUs alone are refused before a model is loaded
      (void)(LaunchKBlocks(launch, stream) || LaunchSmallBlocks(launch, stream) || LaunchValueBlocks(launch, stream));
  }
}

}  // namespace

void Gemm(const GemmLaunch& launch, Stream stream) { LaunchByFormat(launch, stream); }
void GateUp(const GateUpLaunch& launch, Stream stream) { LaunchByFormat(launch, stream); }

}  // namespace penstock::cuda
