// GEMMs with weights in a block format. gemm_*_blocks.cu compile them, a unit for each kind of blocks.
#pragma once

#include "penstock/kernels/cuda/block_product.cuh"
#include "penstock/kernels/cuda/gemm.cuh"

namespace penstock::cuda {
namespace {

// Two kernels for int8 rows and one for float rows: each more would take a tenth of the time that the formats take to
// compile.
template <WeightFormat kFormat, class Args>
void LaunchBlocks(const Args& args, Stream stream) {
  if constexpr (kFormat != WeightFormat::kFp8) {
    if (args.x_format == kernels::RowFormat::kInt8) {
      using Group = BlockGroup<kFormat>;
      if (args.groups.typical() <= 8) return LaunchSplit<Group, 1>(args, stream);
      return LaunchOf<QuantisedProduct<Group, 4>>(args, stream);
    }
  }
  LaunchOf<DecodedProduct<kFormat>>(args, stream);
}

}  // namespace
}  // namespace penstock::cuda
