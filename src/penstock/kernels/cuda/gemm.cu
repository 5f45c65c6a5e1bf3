// GEMMs: one or several matrices, each by rows of its own.
#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/panel_product.cuh"

namespace penstock::cuda {
namespace {

// The rows of a block: tiles of a group lie one after the other in grid.y.
struct BlockRows {
  int group_idx;
  int64_t first, end;  // none when they are equal
};
PENSTOCK_DEVICE BlockRows RowsOfBlock(const RowGroups& groups, int rows_per_tile) {
  const int tiles_per_group = static_cast<int>(gridDim.y) / groups.num_groups;
  const int group_idx = static_cast<int>(blockIdx.y) / tiles_per_group;
  const int64_t tile = static_cast<int>(blockIdx.y) % tiles_per_group;
  int64_t begin = 0, end = groups.max_rows;
  if (groups.offsets != nullptr) {
    begin = groups.offsets[groups.expert_idx[group_idx]];
    end = groups.offsets[groups.expert_idx[group_idx] + 1];
  }
  const int64_t first = begin + tile * rows_per_tile;
  if (first >= end) return {group_idx, end, end};
  return {group_idx, first, first + rows_per_tile < end ? first + rows_per_tile : end};
}

struct PanelShape {
  int64_t num_panels;
  int64_t panel_bytes;
};
// Of this warp; null beyond the last one.
PENSTOCK_DEVICE const std::byte* PanelOfWarp(const std::byte* w, const PanelShape& shape) {
  const int64_t panel_idx = static_cast<int64_t>(blockIdx.x) * kPanelsAtOnce + Warp();
  return panel_idx < shape.num_panels ? w + panel_idx * shape.panel_bytes : nullptr;
}

template <class Product>
PENSTOCK_KERNEL(kProductThreads)
GemmKernel(const GemmLaunch args, const PanelShape shape) {
  const BlockRows rows = RowsOfBlock(args.groups, Product::kRows);
  if (rows.first == rows.end) return;
  Product product;
  product.Run(PanelOfWarp(args.weights.w[rows.group_idx], shape), args.inner_dim,
              {{args.x, args.x_stride_bytes}, rows.first, rows.end}, SharedMemory());
  const int64_t first_col = (static_cast<int64_t>(blockIdx.x) * kPanelsAtOnce + Warp()) * kPanelCols;
  product.ForEach([&](int output, int row, float sum) {
    const int64_t col = first_col + output, place = rows.first + row;
    if (col >= args.num_cols || place >= rows.end) return;
    args.y[place * args.y_stride + col] = args.bias == nullptr ? sum : sum + args.bias[col];
  });
}

// The outputs of a block are 128: a group of the int8 rows that they become.
constexpr int kBlockCols = kPanelsAtOnce * static_cast<int>(kPanelCols);
static_assert(kBlockCols == kInt8Group);

template <class Product>
PENSTOCK_KERNEL(kProductThreads)
GateUpKernel(const GateUpLaunch args, const PanelShape shape) {
  const BlockRows rows = RowsOfBlock(args.groups, Product::kRows);
  if (rows.first == rows.end) return;
  const ProductRows x = {{args.x, args.x_stride_bytes}, rows.first, rows.end};
  float* const hidden = reinterpret_cast<float*>(SharedMemory() + Product::kSharedBytes);  // [kRows, kBlockCols]
  Product product;
  product.Run(PanelOfWarp(args.gate.w[rows.group_idx], shape), args.inner_dim, x, SharedMemory());
  // A lane reads what it wrote itself.
  const int first_output = Warp() * static_cast<int>(kPanelCols);
  product.ForEach([&](int output, int row, float sum) { hidden[row * kBlockCols + first_output + output] = sum; });
  product.Run(PanelOfWarp(args.up.w[rows.group_idx], shape), args.inner_dim, x, SharedMemory());
  product.ForEach([&](int output, int row, float sum) {
    float& value = hidden[row * kBlockCols + first_output + output];
    value = SiluTimes(value, sum);
  });
  __syncthreads();
  const int64_t first_col = static_cast<int64_t>(blockIdx.x) * kBlockCols;
  for (int row = Warp(); rows.first + row < rows.end; row += kPanelsAtOnce) {
    float values[4];
    for (int i = 0; i < 4; ++i) {
      const int col = 4 * Lane() + i;
      values[i] = first_col + col < args.ffn_dim ? hidden[row * kBlockCols + col] : 0.0f;
    }
    StorePrepared(args.x_format, values, first_col, args.ffn_dim,
                  args.hidden + (rows.first + row) * args.hidden_stride_bytes);
  }
}

template <class Product, class Args>
LaunchShape ShapeOf(const Args& args, int64_t num_panels, size_t shared_bytes) {
  const int64_t tiles = (args.groups.max_rows + Product::kRows - 1) / Product::kRows;
  return {.grid = dim3(static_cast<uint32_t>((num_panels + kPanelsAtOnce - 1) / kPanelsAtOnce),
                       static_cast<uint32_t>(args.groups.num_groups * tiles)),
          .block = dim3(kProductThreads),
          .shared_bytes = shared_bytes};
}

template <class Product>
void LaunchOf(const GemmLaunch& args, Stream stream) {
  const PanelShape shape = {NumPanels(args.num_cols), static_cast<int64_t>(PanelBytes(args.w_format, args.inner_dim))};
  Launch(GemmKernel<Product>, ShapeOf<Product>(args, shape.num_panels, Product::kSharedBytes), stream, args, shape);
}
template <class Product>
void LaunchOf(const GateUpLaunch& args, Stream stream) {
  const PanelShape shape = {NumPanels(args.ffn_dim), static_cast<int64_t>(PanelBytes(args.w_format, args.inner_dim))};
  const size_t shared_bytes = Product::kSharedBytes + sizeof(float) * Product::kRows * kBlockCols;
  Launch(GateUpKernel<Product>, ShapeOf<Product>(args, shape.num_panels, shared_bytes), stream, args, shape);
}

// Few rows take small tiles; the bits are the same.
template <WeightFormat kFormat, class Args>
void LaunchFloat(const Args& args, Stream stream) {
  if (args.groups.max_rows <= 2) return LaunchOf<FloatProduct<kFormat, 2>>(args, stream);
  if (args.groups.max_rows <= 8) return LaunchOf<FloatProduct<kFormat, 8>>(args, stream);
  LaunchOf<FloatProduct<kFormat, 16>>(args, stream);
}
template <WeightFormat kFormat, class Args>
void LaunchQuantised(const Args& args, Stream stream) {
  if (args.groups.max_rows <= 8) return LaunchOf<QuantisedProduct<kFormat, 1>>(args, stream);
  LaunchOf<QuantisedProduct<kFormat, 4>>(args, stream);
}

template <class Args>
void LaunchAny(const Args& args, Stream stream) {
  if (args.groups.num_groups == 0 || args.groups.max_rows == 0) return;
  switch (args.w_format) {
    case WeightFormat::kF32: return LaunchFloat<WeightFormat::kF32>(args, stream);
    case WeightFormat::kF16: return LaunchFloat<WeightFormat::kF16>(args, stream);
    case WeightFormat::kBF16:
      if (args.x_format == kernels::RowFormat::kF32) return LaunchFloat<WeightFormat::kBF16>(args, stream);
      if (args.groups.max_rows <= 8) return LaunchOf<Bf16Product<1>>(args, stream);
      return LaunchOf<Bf16Product<4>>(args, stream);
    case WeightFormat::kInt8: return LaunchQuantised<WeightFormat::kInt8>(args, stream);
    case WeightFormat::kHqq4: return LaunchQuantised<WeightFormat::kHqq4>(args, stream);
    case WeightFormat::kHqq3: return LaunchQuantised<WeightFormat::kHqq3>(args, stream);
  }
}

}  // namespace

void Gemm(const GemmLaunch& launch, Stream stream) { LaunchAny(launch, stream); }
void GateUp(const GateUpLaunch& launch, Stream stream) { LaunchAny(launch, stream); }

}  // namespace penstock::cuda
