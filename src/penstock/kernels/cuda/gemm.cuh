// GEMMs: one or several matrices, each with rows of its own. gemm_*.cu compile them, a unit for each kind of weights.
#pragma once

#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/tiled_product.cuh"

namespace penstock::cuda {
namespace {

// How a launch is cut into tiles of some outputs and rows. Tiles of the same outputs follow each other, so that tiles
// that run at the same time share weights.
struct TileShape {
  int64_t panels_per_tile;
  int rows_per_tile;
  int64_t tiles_per_group;  // along the rows
  int64_t num_panels;
  int64_t panel_bytes;
  int64_t num_tiles;
};

struct Tile {
  int group_idx;
  int64_t first_panel;
  int64_t first, end;  // rows; none when first == end
};

PENSTOCK_DEVICE Tile TileAt(const RowGroups& groups, const TileShape& shape, int64_t tile_idx) {
  const int64_t tile = tile_idx % shape.tiles_per_group;
  const int64_t rest = tile_idx / shape.tiles_per_group;
  const int group_idx = static_cast<int>(rest % groups.num_groups);
  int64_t begin = 0, end = groups.max_rows;
  if (groups.offsets != nullptr) {
    begin = groups.offsets[groups.expert_idx[group_idx]];
    end = groups.offsets[groups.expert_idx[group_idx] + 1];
  }
  const int64_t first = begin + tile * shape.rows_per_tile;
  const int64_t last = first + shape.rows_per_tile < end ? first + shape.rows_per_tile : end;
  return {group_idx, rest / groups.num_groups * shape.panels_per_tile, first, first < end ? last : first};
}

// Returns the rows of a tile.
template <class Args>
PENSTOCK_DEVICE ProductRows RowsOf(const Args& args, const Tile& tile) {
  const std::byte* const x = args.x + tile.group_idx * args.groups.x_step_bytes;
  return {{x, args.x_stride_bytes, args.x_format}, tile.first, tile.end};
}

// Returns null beyond the last panel.
PENSTOCK_DEVICE const std::byte* PanelAt(const std::byte* w, const TileShape& shape, int64_t panel_idx) {
  return panel_idx < shape.num_panels ? w + panel_idx * shape.panel_bytes : nullptr;
}

PENSTOCK_DEVICE float Biased(const Biases& bias, const RowGroups& groups, int group_idx, int64_t num_cols, int64_t col,
                             float sum) {
  if (bias.values == nullptr) return sum;
  return sum + bias.values[(bias.is_per_expert ? groups.expert_idx[group_idx] * num_cols : 0) + col];
}

PENSTOCK_DEVICE void PutOutput(const GemmLaunch& args, const Tile& tile, int64_t panel_idx, int output, int row,
                               float sum) {
  const int64_t col = panel_idx * kPanelCols + output, place = tile.first + row;
  if (col >= args.num_cols || place >= tile.end) return;
  float* const y = args.y + tile.group_idx * args.groups.y_step;
  y[place * args.y_stride + col] = Biased(args.bias, args.groups, tile.group_idx, args.num_cols, col, sum);
}

// Combines gate and up; columns beyond the last one do not matter. A NaN stays.
PENSTOCK_DEVICE float Gated(const GateUpLaunch& args, const Tile& tile, int64_t col, float gate, float up) {
  if (col >= args.ffn_dim) return 0;
  if (!args.is_gated) {
    up = Biased(args.up_bias, args.groups, tile.group_idx, args.ffn_dim, col, up);
    if (up < 0) up = 0;
    return args.squares_relu ? up * up : up;
  }
  gate = Biased(args.gate_bias, args.groups, tile.group_idx, args.ffn_dim, col, gate);
  up = Biased(args.up_bias, args.groups, tile.group_idx, args.ffn_dim, col, up);
  return Glu(args.rule, gate, up);
}

// Computes a tile with the products of panel_product.cuh: a block's warps have Product::kColumns panels, and all have
// the same rows.
template <class Product>
PENSTOCK_KERNEL(Product::kThreads)
GemmKernel(const GemmLaunch args, const TileShape shape) {
  for (int64_t i = blockIdx.x; i < shape.num_tiles; i += gridDim.x) {
    const Tile tile = TileAt(args.groups, shape, i);
    if (tile.first == tile.end) continue;
    const int64_t panel_idx = tile.first_panel + Warp() % Product::kColumns;
    Product product;
    product.Run(PanelAt(args.weights.w[tile.group_idx], shape, panel_idx), args.inner_dim, RowsOf(args, tile),
                SharedMemory());
    product.ForEach([&](int output, int row, float sum) { PutOutput(args, tile, panel_idx, output, row, sum); });
  }
}

template <WeightFormat kFormat>
PENSTOCK_KERNEL(kTiledThreads)
TiledGemmKernel(const GemmLaunch args, const TileShape shape) {
  for (int64_t i = blockIdx.x; i < shape.num_tiles; i += gridDim.x) {
    const Tile tile = TileAt(args.groups, shape, i);
    if (tile.first == tile.end) continue;
    const int64_t panel_idx = tile.first_panel + Warp() % kTiledColumns;
    const std::byte* const w = args.weights.w[tile.group_idx];
    TiledProduct<kFormat> product;
    product.Run({PanelAt(w, shape, panel_idx), PanelAt(w, shape, panel_idx + kTiledColumns)}, args.inner_dim,
                RowsOf(args, tile), SharedMemory());
    product.ForEach([&](int p, int output, int row, float sum) {
      PutOutput(args, tile, panel_idx + p * kTiledColumns, output, row, sum);
    });
  }
}

// A block has 128 outputs, which become one group of an int8 row.
constexpr int kBlockCols = kPanelsAtOnce * static_cast<int>(kPanelCols);
static_assert(kBlockCols == kInt8Group && kTiledColumns == kPanelsAtOnce);

// Prepares hidden [rows, kBlockCols] from shared memory for the next GEMM. All threads of the `num_warps` warps must
// call it.
PENSTOCK_DEVICE void StoreHidden(const GateUpLaunch& args, const Tile& tile, const float* hidden, int num_warps) {
  __syncthreads();
  const int64_t first_col = tile.first_panel * kPanelCols;
  for (int row = Warp(); tile.first + row < tile.end; row += num_warps) {
    float values[4];
    for (int i = 0; i < 4; ++i) {
      const int col = 4 * Lane() + i;
      values[i] = first_col + col < args.ffn_dim ? hidden[row * kBlockCols + col] : 0.0f;
    }
    StorePrepared(args.x_format, values, first_col, args.ffn_dim,
                  args.hidden + (tile.first + row) * args.hidden_stride_bytes);
  }
  __syncthreads();
}

template <class Product>
PENSTOCK_KERNEL(Product::kThreads)
GateUpKernel(const GateUpLaunch args, const TileShape shape) {
  static_assert(Product::kColumns == kPanelsAtOnce);
  for (int64_t i = blockIdx.x; i < shape.num_tiles; i += gridDim.x) {
    const Tile tile = TileAt(args.groups, shape, i);
    if (tile.first == tile.end) continue;
    const ProductRows x = RowsOf(args, tile);
    float* const hidden = reinterpret_cast<float*>(SharedMemory() + Product::kSharedBytes);  // [kRows, kBlockCols]
    const int column = Warp() % Product::kColumns;
    const int64_t panel_idx = tile.first_panel + column;
    Product product;
    // Each lane reads only its own writes.
    const int first_output = column * static_cast<int>(kPanelCols);
    if (args.is_gated) {
      product.Run(PanelAt(args.gate.w[tile.group_idx], shape, panel_idx), args.inner_dim, x, SharedMemory());
      product.ForEach([&](int output, int row, float sum) { hidden[row * kBlockCols + first_output + output] = sum; });
    }
    product.Run(PanelAt(args.up.w[tile.group_idx], shape, panel_idx), args.inner_dim, x, SharedMemory());
    product.ForEach([&](int output, int row, float sum) {
      float& value = hidden[row * kBlockCols + first_output + output];
      value = Gated(args, tile, panel_idx * kPanelCols + output, value, sum);
    });
    StoreHidden(args, tile, hidden, Product::kThreads / kWarpThreads);
  }
}

// Computes gate and up together as a warp's two panels.
template <WeightFormat kFormat>
PENSTOCK_KERNEL(kTiledThreads)
TiledGateUpKernel(const GateUpLaunch args, const TileShape shape) {
  for (int64_t i = blockIdx.x; i < shape.num_tiles; i += gridDim.x) {
    const Tile tile = TileAt(args.groups, shape, i);
    if (tile.first == tile.end) continue;
    const int column = Warp() % kTiledColumns;
    TiledProduct<kFormat> product;
    product.Run({args.is_gated ? PanelAt(args.gate.w[tile.group_idx], shape, tile.first_panel + column) : nullptr,
                 PanelAt(args.up.w[tile.group_idx], shape, tile.first_panel + column)},
                args.inner_dim, RowsOf(args, tile), SharedMemory());
    float* const hidden = reinterpret_cast<float*>(SharedMemory());  // [kRows, kBlockCols], over the rows of x
    product.ForEach([&](int p, int output, int row, float sum) {
      float& value = hidden[row * kBlockCols + column * static_cast<int>(kPanelCols) + output];
      value = p == 0 ? sum : Gated(args, tile, (tile.first_panel + column) * kPanelCols + output, value, sum);
    });
    StoreHidden(args, tile, hidden, kTiledWarps);
  }
}

inline int64_t OutputsOf(const GemmLaunch& args) { return args.num_cols; }

inline int64_t OutputsOf(const GateUpLaunch& args) { return args.ffn_dim; }

// Return the panels of a tile of tiled_product.cuh, of each matrix.
inline int64_t TiledPanels(const GemmLaunch&) { return 2 * kTiledColumns; }

inline int64_t TiledPanels(const GateUpLaunch&) { return kTiledColumns; }

template <class Args>
TileShape ShapeOf(const Args& args, int64_t panels_per_tile, int rows_per_tile) {
  TileShape shape{.panels_per_tile = panels_per_tile,
                  .rows_per_tile = rows_per_tile,
                  .tiles_per_group = (args.groups.max_rows + rows_per_tile - 1) / rows_per_tile,
                  .num_panels = NumPanels(OutputsOf(args)),
                  .panel_bytes = static_cast<int64_t>(PanelBytes(args.w_format, args.inner_dim)),
                  .num_tiles = 0};
  shape.num_tiles =
      args.groups.num_groups * shape.tiles_per_group * ((shape.num_panels + panels_per_tile - 1) / panels_per_tile);
  return shape;
}

template <class Args>
void LaunchTiles(void (*kernel)(Args, TileShape), const Args& args, const TileShape& shape, int num_threads,
                 size_t shared_bytes, Stream stream) {
  const int64_t max = args.tuning.max_blocks;
  const int64_t num_blocks = max > 0 && max < shape.num_tiles ? max : shape.num_tiles;
  Launch(kernel,
         {.grid = dim3(static_cast<uint32_t>(num_blocks)),
          .block = dim3(static_cast<uint32_t>(num_threads)),
          .shared_bytes = shared_bytes},
         stream, args, shape);
}

template <class Product>
void LaunchOf(const GemmLaunch& args, Stream stream) {
  LaunchTiles<GemmLaunch>(GemmKernel<Product>, args, ShapeOf(args, Product::kColumns, Product::kRows),
                          Product::kThreads, Product::kSharedBytes, stream);
}

template <class Product>
void LaunchOf(const GateUpLaunch& args, Stream stream) {
  LaunchTiles<GateUpLaunch>(GateUpKernel<Product>, args, ShapeOf(args, Product::kColumns, Product::kRows),
                            Product::kThreads, Product::kSharedBytes + sizeof(float) * Product::kRows * kBlockCols,
                            stream);
}

template <WeightFormat kFormat>
void LaunchTiled(const GemmLaunch& args, Stream stream) {
  LaunchTiles<GemmLaunch>(TiledGemmKernel<kFormat>, args,
                          ShapeOf(args, TiledPanels(args), TiledProduct<kFormat>::kRows), kTiledThreads,
                          TiledProduct<kFormat>::kSharedBytes, stream);
}

template <WeightFormat kFormat>
void LaunchTiled(const GateUpLaunch& args, Stream stream) {
  static_assert(sizeof(float) * TiledProduct<kFormat>::kRows * kBlockCols <= TiledProduct<kFormat>::kSharedBytes);
  LaunchTiles<GateUpLaunch>(TiledGateUpKernel<kFormat>, args,
                            ShapeOf(args, TiledPanels(args), TiledProduct<kFormat>::kRows), kTiledThreads,
                            TiledProduct<kFormat>::kSharedBytes, stream);
}

// Returns whether tiles of kPanelsAtOnce panels and `rows_per_tile` rows make too few blocks. The launch is then cut
// into smaller tiles, or a block shares each panel among more warps. The bits are the same.
template <class Args>
bool HasFewBlocks(const Args& args, int rows_per_tile) {
  return ShapeOf(args, kPanelsAtOnce, rows_per_tile).num_tiles < args.tuning.few_blocks;
}

template <WeightFormat kFormat, class Args>
void LaunchFloat(const Args& args, Stream stream) {
  const int64_t rows = args.groups.typical();
  if (rows <= 2 || HasFewBlocks(args, 2)) return LaunchOf<FloatProduct<kFormat, 2>>(args, stream);
  if (rows <= 8 || HasFewBlocks(args, 8)) return LaunchOf<FloatProduct<kFormat, 8>>(args, stream);
  LaunchOf<FloatTile<kFormat>>(args, stream);
}

// A block shares each panel among more warps, for tiles of 8 * kTiles rows: 1 or 4.
template <class Group, int kTiles, class Args>
void LaunchSplit(const Args& args, Stream stream) {
  constexpr int kOften = kTiles == 1 ? 2 : 1;
  if constexpr (std::is_same_v<Args, GemmLaunch>) {
    LaunchOf<QuantisedProduct<Group, kTiles, 1, 4 * kOften>>(args, stream);
  } else {
    LaunchOf<QuantisedProduct<Group, kTiles, kPanelsAtOnce, 2 * kOften>>(args, stream);
  }
}

template <WeightFormat kFormat, class Args>
bool IsTiled(const Args& args) {
  // Large tiles make up for fewer blocks, until half of the multiprocessors have none.
  const int64_t num_tiled = ShapeOf(args, TiledPanels(args), TiledProduct<kFormat>::kRows).num_tiles;
  return args.groups.typical() >= args.tuning.tiled_from && num_tiled >= args.tuning.few_blocks / 6;
}

// int8 rows and quantised weights.
template <WeightFormat kFormat, class Args>
void LaunchQuantised(const Args& args, Stream stream) {
  using Group = QuantisedGroup<kFormat>;
  const int64_t rows = args.groups.typical();
  if (IsTiled<kFormat>(args)) return LaunchTiled<kFormat>(args, stream);
  if (rows <= 8) {
    if (HasFewBlocks(args, 8)) return LaunchSplit<Group, 1>(args, stream);
    return LaunchOf<QuantisedProduct<Group, 1>>(args, stream);
  }
  if (HasFewBlocks(args, 32)) return LaunchSplit<Group, 4>(args, stream);
  LaunchOf<QuantisedProduct<Group, 4>>(args, stream);
}

}  // namespace
}  // namespace penstock::cuda
