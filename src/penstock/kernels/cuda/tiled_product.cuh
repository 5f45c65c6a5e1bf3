// Products of many rows. A block has 128 rows of bf16, or 64 of codes, and 256 outputs, so that weights and rows are
// loaded once for that much work. Rows pass through shared memory, several stages ahead; weights go unchanged from the
// L2 cache into registers, a stage or a group ahead. Sums are taken in the order of panel_product.cuh, so either one
// gives a row the same bits.
#pragma once

#include "penstock/kernels/cuda/panel_product.cuh"

namespace penstock::cuda {

inline constexpr int kTiledWarps = 8;
inline constexpr int kTiledThreads = kTiledWarps * kWarpThreads;
inline constexpr int kTiledColumns = 4;  // warps side by side, each with two panels

// Rows on their way through shared memory. A stage has 128 bytes of each row, in pieces of 16 bytes spread over the
// banks. Neither the loads of eight rows' pieces nor those of two neighbouring pieces of four rows conflict. With
// kHasGroups, a stage also has the rows' groups (kernels::Int8RowGroup) of these 128 codes, behind the rows.
template <int kWarpTiles, bool kHasGroups>
class RowStages {
 public:
  static constexpr int kWarpRows = 8 * kWarpTiles;
  static constexpr int kRows = kWarpRows * (kTiledWarps / kTiledColumns);
  static constexpr int kRowBytes = 128;
  static constexpr int kStages = 4;
  static constexpr int kGroupBytes = kHasGroups ? static_cast<int>(sizeof(kernels::Int8RowGroup)) : 0;
  static constexpr int kStageBytes = kRows * (kRowBytes + kGroupBytes);
  static constexpr size_t kBytes = static_cast<size_t>(kStages) * kStageBytes;

  // Returns the group of the warp's row `row`, for the codes of a stage.
  PENSTOCK_DEVICE const kernels::Int8RowGroup& GroupAt(int64_t stage, int row) const {
    static_assert(kHasGroups);
    const int place = Warp() / kTiledColumns * kWarpRows + row;
    return reinterpret_cast<const kernels::Int8RowGroup*>(StageAt(stage) + kRows * kRowBytes)[place];
  }

  // `row_bytes`: bytes of a row (of its codes, if it has groups behind them), a multiple of 16.
  PENSTOCK_DEVICE RowStages(const ProductRows& rows, int64_t row_bytes, std::byte* shared)
      : rows_(rows), row_bytes_(row_bytes), shared_(shared) {
    for (int stage = 0; stage < kStages - 1; ++stage) Begin(stage);
  }

  PENSTOCK_DEVICE int64_t num_stages() const { return (row_bytes_ + kRowBytes - 1) / kRowBytes; }

  // Waits until stage `stage` is loaded; the stage before it may then be overwritten. All threads must call it.
  PENSTOCK_DEVICE void Enter(int64_t stage) {
    WaitForCopies<kStages - 2>();
    __syncthreads();
    Begin(stage + kStages - 1);
  }

  // Loads the operands of 32 bytes of this warp's rows. In a tile of eight rows, lane (g, t) gets four bytes of row g
  // at 4 t and four at 16 + 4 t. With kHasNeighbours, it gets eight bytes at 8 t.
  template <bool kHasNeighbours>
  PENSTOCK_DEVICE void Load(int64_t stage, int step, uint32_t (&b)[kWarpTiles][2]) const {
    const std::byte* const base = StageAt(stage);
    const int lane = Lane(), first_row = Warp() / kTiledColumns * kWarpRows;
    if constexpr (kHasNeighbours) {
#pragma unroll
      for (int tile = 0; tile < kWarpTiles; ++tile) {
        const int row = first_row + 8 * tile + lane / 4;
        const std::byte* const piece = base + PieceAt(row, 2 * step + lane % 4 / 2);
        const uint2 words = *reinterpret_cast<const uint2*>(piece + 8 * (lane % 2));
        b[tile][0] = words.x;
        b[tile][1] = words.y;
      }
    } else {
#pragma unroll
      for (int tile = 0; tile < kWarpTiles; tile += 2) {
        // Loads four matrices of eight rows and 16 bytes: this tile's lower and upper half, then the next tile's.
        const int row = first_row + 8 * (tile + lane / 16) + lane % 8;
        uint32_t words[4];
        LoadMatrices(base + PieceAt(row, 2 * step + lane / 8 % 2), words);
        b[tile][0] = words[0], b[tile][1] = words[1];
        b[tile + 1][0] = words[2], b[tile + 1][1] = words[3];
      }
    }
  }

 private:
  static PENSTOCK_DEVICE int PieceAt(int row, int piece) {
    const int spread = (row % 4) << 1 | (row / 4 % 2);
    return row * kRowBytes + (piece ^ spread) * 16;
  }
  PENSTOCK_DEVICE std::byte* StageAt(int64_t stage) const {
    return shared_ + static_cast<int>(stage % kStages) * kStageBytes;
  }
  PENSTOCK_DEVICE void Begin(int64_t stage) {
    if (stage < num_stages()) {
      std::byte* const target = StageAt(stage);
      for (int i = static_cast<int>(threadIdx.x); i < kRows * 8; i += kTiledThreads) {
        const int row = i / 8, piece = i % 8;
        const int64_t offset = stage * kRowBytes + 16 * piece;
        if (offset < row_bytes_) CopyPiece(target + PieceAt(row, piece), RowOfTiles(rows_, row) + offset);
      }
      if constexpr (kHasGroups) {
        for (int row = static_cast<int>(threadIdx.x); row < kRows; row += kTiledThreads) {
          CopyPiece(target + kRows * kRowBytes + kGroupBytes * row,
                    RowOfTiles(rows_, row) + row_bytes_ + kGroupBytes * stage);
        }
      }
    }
    EndCopies();
  }

  ProductRows rows_;
  int64_t row_bytes_;
  std::byte* shared_;
};

// Products of the warp's two panels, either of which may be null, with its rows. The number of rows is limited by the
// registers for their sums and, with quantised weights, for the sums of a group's codes.
template <WeightFormat kFormat>
class TiledProduct {
  static constexpr int kWarpTiles = kFormat == WeightFormat::kBF16 ? 8 : 4;
  using Stages = RowStages<kWarpTiles, kFormat != WeightFormat::kBF16>;

 public:
  static constexpr int kRows = Stages::kRows;
  static constexpr size_t kSharedBytes = Stages::kBytes;

  // All threads of the block must call this.
  PENSTOCK_DEVICE void Run(const std::byte* const (&panels)[2], int64_t inner_dim, const ProductRows& rows,
                           std::byte* shared) {
#pragma unroll
    for (int p = 0; p < 2; ++p) {
#pragma unroll
      for (int tile = 0; tile < kWarpTiles; ++tile) {
        for (int m = 0; m < 2; ++m) {
          for (int i = 0; i < 4; ++i) sums_[p][tile][m][i] = 0;
        }
      }
    }
    if constexpr (kFormat == WeightFormat::kBF16) {
      RunBf16(panels, inner_dim, rows, shared);
    } else {
      RunQuantised(panels, inner_dim, rows, shared);
    }
    WaitForCopies<0>();
    __syncthreads();  // shared memory may be used again
  }

  // Calls put(index of the panel, its output, row from first_row on, sum) for this lane's sums.
  template <typename Put>
  PENSTOCK_DEVICE void ForEach(const Put& put) const {
    const int first_row = Warp() / kTiledColumns * Stages::kWarpRows;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      ForEachOfTiles(sums_[p], [&](int output, int row, float sum) { put(p, output, first_row + row, sum); });
    }
  }

 private:
  PENSTOCK_DEVICE void RunBf16(const std::byte* const (&panels)[2], int64_t inner_dim, const ProductRows& rows,
                               std::byte* shared) {
    constexpr int kStepBytes = 32;  // 16 inputs
    const int64_t num_pairs = (inner_dim + 1) / 2, num_steps = (inner_dim + 15) / 16;
    Stages stages(rows, num_steps * kStepBytes, shared);
    // Weights are loaded one step ahead. Two steps leave registers for 96 rows only, which took 5 % longer for 4,096
    // rows.
    constexpr int kSteps = Stages::kRowBytes / kStepBytes;
    uint4 lower[2], upper[2];
    const auto load = [&](int64_t step) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int64_t pair = 8 * step + Lane() % 4;
        const int64_t last = panels[p] == nullptr ? 0 : num_pairs;
        lower[p] = PairsAt(panels[p], pair, last);
        upper[p] = PairsAt(panels[p], pair + 4, last);
      }
    };
    load(0);
    for (int64_t stage = 0; stage < stages.num_stages(); ++stage) {
      stages.Enter(stage);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int64_t step = stage * kSteps + i;
        if (step >= num_steps) break;
        uint32_t a[2][2][4], b[kWarpTiles][2];
#pragma unroll
        for (int p = 0; p < 2; ++p) OperandsOf(lower[p], upper[p], a[p][0], a[p][1]);
        load(step + 1);
        stages.template Load<false>(stage, i, b);
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          if (panels[p] == nullptr) continue;
#pragma unroll
          for (int tile = 0; tile < kWarpTiles; ++tile) {
            MultiplyBf16(sums_[p][tile][0], a[p][0], b[tile]);
            MultiplyBf16(sums_[p][tile][1], a[p][1], b[tile]);
          }
        }
      }
    }
  }

  PENSTOCK_DEVICE void RunQuantised(const std::byte* const (&panels)[2], int64_t inner_dim, const ProductRows& rows,
                                    std::byte* shared) {
    using Group = QuantisedGroup<kFormat>;
    constexpr int kParts = Stages::kRowBytes / Group::kInputs;
    Stages stages(rows, CodesBytes(inner_dim), shared);
    // The codes of a group are loaded while the group before it is multiplied: groups of the first and of the second
    // panel take turns.
    typename Group::Codes codes[Group::kSteps];
    const auto load = [&](int p, int64_t begin, int i) {
      if (panels[p] != nullptr && begin < inner_dim) codes[i] = Group(panels[p], begin).Load(i);
    };
#pragma unroll
    for (int i = 0; i < Group::kSteps; ++i) load(0, 0, i);
    for (int64_t stage = 0; stage < stages.num_stages(); ++stage) {
      stages.Enter(stage);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int64_t begin = stage * Stages::kRowBytes + part * Group::kInputs;
        if (begin >= inner_dim) break;
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          const auto load_next = [&](int i) { load(1 - p, p == 0 ? begin : begin + Group::kInputs, i); };
          if (panels[p] == nullptr) {  // the same for all threads of a warp
#pragma unroll
            for (int i = 0; i < Group::kSteps; ++i) load_next(i);
            continue;
          }
          Group group(panels[p], begin);
          group.LoadScales();
          int32_t dots[kWarpTiles][2][4] = {};
#pragma unroll
          for (int i = 0; i < Group::kSteps; ++i) {
            uint32_t first[4], second[4], b[kWarpTiles][2];
            uint4 lower, upper;
            Group::Unpack(codes[i], lower, upper);
            OperandsOf(lower, upper, first, second);
            load_next(i);
            stages.template Load<Group::kHasNeighbours>(stage, part * Group::kSteps + i, b);
#pragma unroll
            for (int tile = 0; tile < kWarpTiles; ++tile) {
              MultiplyCodes(dots[tile][0], first, b[tile]);
              MultiplyCodes(dots[tile][1], second, b[tile]);
            }
          }
          AddGroup(group, dots, stages, stage, sums_[p]);
        }
      }
    }
  }

  static PENSTOCK_DEVICE void AddGroup(const QuantisedGroup<kFormat>& group, const int32_t (&dots)[kWarpTiles][2][4],
                                       const Stages& stages, int64_t stage, float (&sums)[kWarpTiles][2][4]) {
#pragma unroll
    for (int tile = 0; tile < kWarpTiles; ++tile) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const kernels::Int8RowGroup& row = stages.GroupAt(stage, 8 * tile + 2 * (Lane() % 4) + odd);
#pragma unroll
        for (int col = 0; col < 4; ++col) {
          const int m = col / 2, i = 2 * (col % 2) + odd;
          const float2 factors = group.FactorsOf(col, dots[tile][m][i], row);
          sums[tile][m][i] = __fmaf_rn(factors.x, factors.y, sums[tile][m][i]);
        }
      }
    }
  }

  float sums_[2][kWarpTiles][2][4];
};

}  // namespace penstock::cuda
