// Products of a panel of weights (tensor/packed_matrix.h) with some rows, by the four warps of a block: each warp has a
// panel of its own, all have the same rows. Every output is summed in the order of kernel_table.h's law, so that
// floats with f32 rows and quantised weights give the host's bits.
//
// The panels' layout is what the matrix units take: with g = lane / 4 and t = lane % 4, one 16-byte load brings a lane
// the words of outputs 4 g to 4 g + 3, of which two make the rows of one 16 x 32 tile and two those of another.
#pragma once

#include "penstock/kernels/cuda/math.cuh"

namespace penstock::cuda {

inline constexpr int kPanelsAtOnce = 4;  // warps of a block
inline constexpr int kProductThreads = kPanelsAtOnce * kWarpThreads;

// Rows as a GEMM takes them.
struct RowsView {
  const std::byte* data = nullptr;
  int64_t stride_bytes = 0;

  PENSTOCK_DEVICE const std::byte* Row(int64_t row) const { return data + row * stride_bytes; }
};

// What a block multiplies: rows [first_row, end_row) of x, at most the product's kRows.
struct ProductRows {
  RowsView x;
  int64_t first_row = 0;
  int64_t end_row = 0;
};

PENSTOCK_DEVICE uint32_t WordAt(const void* source) { return *static_cast<const uint32_t*>(source); }

// f32 rows, float weights: a lane has one output of each row.
template <WeightFormat kFormat, int kMaxRows>
class FloatProduct {
 public:
  static constexpr int kRows = kMaxRows;
  // [kRows, kInputs] of x.
  static constexpr size_t kSharedBytes = sizeof(float) * kRows * 256;

  // All threads of the block come here; `panel` may be null for a warp that has none. `shared`: kSharedBytes.
  PENSTOCK_DEVICE void Run(const std::byte* panel, int64_t inner_dim, const ProductRows& rows, std::byte* shared) {
    float* const x = reinterpret_cast<float*>(shared);
    for (int r = 0; r < kRows; ++r) sums_[r] = 0;
    for (int64_t begin = 0; begin < inner_dim; begin += kInputs) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kRows * kInputs; i += kProductThreads) {
        const int64_t row = rows.first_row + i / kInputs, k = begin + i % kInputs;
        x[i] = row < rows.end_row && k < inner_dim ? reinterpret_cast<const float*>(rows.x.Row(row))[k] : 0.0f;
      }
      __syncthreads();
      if (panel == nullptr) continue;
      const int64_t left = inner_dim - begin;
      const int num_pairs = static_cast<int>(left < kInputs ? (left + 1) / 2 : kInputs / 2);
      for (int first = 0; first < num_pairs; first += kAhead) {
        float2 w[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          w[i] = first + i < num_pairs ? PairAt(panel, begin / 2 + first + i) : float2{0.0f, 0.0f};
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (first + i >= num_pairs) break;
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const float2 pair = reinterpret_cast<const float2*>(x + r * kInputs)[first + i];
            sums_[r] = __fmaf_rn(pair.y, w[i].y, sums_[r]);
            sums_[r] = __fmaf_rn(pair.x, w[i].x, sums_[r]);
          }
        }
      }
    }
  }

  // put(output of the panel, row from first_row on, sum) for what this lane has.
  template <typename Put>
  PENSTOCK_DEVICE void ForEach(const Put& put) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) put(Lane(), r, sums_[r]);
  }

 private:
  static constexpr int kInputs = 256;
  static constexpr int kAhead = 16;  // loads under way

  // The weights of this lane's output for inputs 2 pair and 2 pair + 1.
  static PENSTOCK_DEVICE float2 PairAt(const std::byte* panel, int64_t pair) {
    if constexpr (kFormat == WeightFormat::kBF16) {
      const uint32_t both = WordAt(panel + (pair * kPanelCols + Lane()) * 4);
      return {FromBf16Bits(both & 0xFFFFu), FromBf16Bits(both >> 16)};
    } else if constexpr (kFormat == WeightFormat::kF16) {
      const uint16_t* const w = reinterpret_cast<const uint16_t*>(panel) + 2 * pair * kPanelCols + Lane();
      return {FromF16Bits(w[0]), FromF16Bits(w[kPanelCols])};
    } else {
      const float* const w = reinterpret_cast<const float*>(panel) + 2 * pair * kPanelCols + Lane();
      return {w[0], w[kPanelCols]};
    }
  }

  float sums_[kRows];
};

// Of a tile of eight rows the matrix units give a lane rows 2 t and 2 t + 1 of outputs 4 g to 4 g + 3: the i-th value
// of the first 16 x 8 product has output 4 g + i / 2, of the second 4 g + 2 + i / 2, both row 2 t + i % 2.
template <int kTiles, typename Value, typename Put>
PENSTOCK_DEVICE void ForEachOfTiles(const Value (&sums)[kTiles][2][4], const Put& put) {
  const int g = Lane() / 4, t = Lane() % 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) put(4 * g + 2 * m + i / 2, 8 * tile + 2 * t + i % 2, sums[tile][m][i]);
    }
  }
}

// The words of outputs 4 g to 4 g + 3 in two rows of a panel of words [., 32], as the operands of two products.
PENSTOCK_DEVICE void OperandsOf(const uint4& lower, const uint4& upper, uint32_t (&first)[4], uint32_t (&second)[4]) {
  first[0] = lower.x, first[1] = lower.y, first[2] = upper.x, first[3] = upper.y;
  second[0] = lower.z, second[1] = lower.w, second[2] = upper.z, second[3] = upper.w;
}

// Int8 rows, quantised weights: exact integer sums of a group by the matrix units, one float accumulator over groups.
template <WeightFormat kFormat, int kTiles>
class QuantisedProduct {
 public:
  static constexpr int kRows = 8 * kTiles;
  static constexpr size_t kSharedBytes = 0;

  PENSTOCK_DEVICE void Run(const std::byte* panel, int64_t inner_dim, const ProductRows& rows, std::byte*) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      for (int m = 0; m < 2; ++m) {
        for (int i = 0; i < 4; ++i) sums_[tile][m][i] = 0;
      }
    }
    if (panel == nullptr) return;
    const int64_t codes_bytes = (inner_dim + kInt8Group - 1) / kInt8Group * kInt8Group;
    if constexpr (kFormat == WeightFormat::kInt8) {
      for (int64_t begin = 0; begin < inner_dim; begin += kInt8Group) {
        MultiplyInt8Group(panel + begin / kInt8Group * kInt8BlockBytes, begin, codes_bytes, rows);
      }
    } else {
      constexpr int64_t kGroupBytes = kFormat == WeightFormat::kHqq4 ? kHqq4GroupBytes : kHqq3GroupBytes;
      constexpr int64_t kBlockBytes = kHqqHeaderBytes + kHqqBlock / 64 * kGroupBytes;
      for (int64_t begin = 0; begin < inner_dim; begin += 64) {
        const std::byte* const header = panel + begin / kHqqBlock * kBlockBytes;
        const int group_idx = static_cast<int>(begin % kHqqBlock / 64);
        MultiplyHqqGroup(header, group_idx, header + kHqqHeaderBytes + group_idx * kGroupBytes, begin, codes_bytes,
                         rows);
      }
    }
  }

  template <typename Put>
  PENSTOCK_DEVICE void ForEach(const Put& put) const {
    ForEachOfTiles(sums_, put);
  }

 private:
  using Dots = int32_t[kTiles][2][4];

  // Row `row` of the tiles, or the last one that there is: its products are not looked at.
  static PENSTOCK_DEVICE const std::byte* RowOf(const ProductRows& rows, int row) {
    const int64_t place = rows.first_row + row;
    return rows.x.Row(place < rows.end_row ? place : rows.end_row - 1);
  }

  static PENSTOCK_DEVICE void Clear(Dots& dots) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      for (int m = 0; m < 2; ++m) {
        for (int i = 0; i < 4; ++i) dots[tile][m][i] = 0;
      }
    }
  }

  // 32 inputs; `quads`: of four inputs each, for the lower and the upper half of the operands.
  static PENSTOCK_DEVICE void MultiplyStep(const uint4& lower, const uint4& upper, const ProductRows& rows,
                                           int64_t lower_quad, int64_t upper_quad, Dots& dots) {
    uint32_t first[4], second[4];
    OperandsOf(lower, upper, first, second);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const std::byte* const x = RowOf(rows, 8 * tile + Lane() / 4);
      const uint32_t b[2] = {WordAt(x + 4 * lower_quad), WordAt(x + 4 * upper_quad)};
      MultiplyCodes(dots[tile][0], first, b);
      MultiplyCodes(dots[tile][1], second, b);
    }
  }

  PENSTOCK_DEVICE void MultiplyInt8Group(const std::byte* block, int64_t begin, int64_t codes_bytes,
                                         const ProductRows& rows) {
    const int g = Lane() / 4, t = Lane() % 4;
    uint4 words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = LoadOnce(block + (4 * i + t) * 128 + 16 * g);
    Dots dots;
    Clear(dots);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int64_t quad = begin / 4 + 8 * step + t;
      MultiplyStep(words[2 * step], words[2 * step + 1], rows, quad, quad + 4, dots);
    }
    const uint2 packed = *reinterpret_cast<const uint2*>(block + kInt8Group * kPanelCols + 8 * g);
    const float scales[4] = {FromBf16Bits(packed.x & 0xFFFFu), FromBf16Bits(packed.x >> 16),
                             FromBf16Bits(packed.y & 0xFFFFu), FromBf16Bits(packed.y >> 16)};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const auto* const group = reinterpret_cast<const kernels::Int8RowGroup*>(
            RowOf(rows, 8 * tile + 2 * t + odd) + codes_bytes + begin / kInt8Group * sizeof(kernels::Int8RowGroup));
#pragma unroll
        for (int col = 0; col < 4; ++col) {
          float& sum = sums_[tile][col / 2][2 * (col % 2) + odd];
          const int32_t dot = dots[tile][col / 2][2 * (col % 2) + odd] + group->code_offset;
          sum = __fmaf_rn(__int2float_rn(dot), scales[col] * group->scale, sum);
        }
      }
    }
  }

  PENSTOCK_DEVICE void MultiplyHqqGroup(const std::byte* header, int group_idx, const std::byte* data, int64_t begin,
                                        int64_t codes_bytes, const ProductRows& rows) {
    const int g = Lane() / 4, t = Lane() % 4;
    Dots dots;
    Clear(dots);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int64_t quad = begin / 4 + 8 * step;
      uint4 lower, upper;
      if constexpr (kFormat == WeightFormat::kHqq4) {
        // Which inputs make a product does not matter as long as both operands have the same: a word has two quads.
        const uint4 both = LoadOnce(data + (4 * step + t) * 128 + 16 * g);
        lower = ForEachWord(both, [](uint32_t word) { return word & 0x0F0F0F0Fu; });
        upper = ForEachWord(both, [](uint32_t word) { return word >> 4 & 0x0F0F0F0Fu; });
        MultiplyStep(lower, upper, rows, quad + 2 * t, quad + 2 * t + 1, dots);
      } else {
        // A word has the two low bits of four quads; the third bits of eight quads are in one word.
        const uint4 thirds = LoadOnce(data + 512 + step * 128 + 16 * g);
        const auto codes = [&](int i) {
          const uint4 pairs = LoadOnce(data + (2 * step + i) * 128 + 16 * g);
          const uint4 low = ForEachWord(pairs, [&](uint32_t word) { return word >> 2 * t & 0x03030303u; });
          const uint4 high =
              ForEachWord(thirds, [&](uint32_t word) { return (word >> (4 * i + t) & 0x01010101u) << 2; });
          return uint4{low.x | high.x, low.y | high.y, low.z | high.z, low.w | high.w};
        };
        lower = codes(0);
        upper = codes(1);
        MultiplyStep(lower, upper, rows, quad + t, quad + 4 + t, dots);
      }
    }
    const float4 steps = *reinterpret_cast<const float4*>(header);  // of scales: step, minimum; of zeros: the same
    const uint32_t scale_codes = WordAt(header + 64 + kPanelCols * group_idx + 4 * g);
    const uint32_t zero_codes = WordAt(header + 192 + kPanelCols * group_idx + 4 * g);
    const int64_t half = begin / 64 % 2;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const auto* const group = reinterpret_cast<const kernels::Int8RowGroup*>(
            RowOf(rows, 8 * tile + 2 * t + odd) + codes_bytes + begin / kInt8Group * sizeof(kernels::Int8RowGroup));
        const float code_sum = half == 0 ? group->code_sums[0] : group->code_sums[1];
#pragma unroll
        for (int col = 0; col < 4; ++col) {
          const float scale =
              __fmaf_rn(__int2float_rn(static_cast<int32_t>(scale_codes >> 8 * col & 0xFFu)), steps.x, steps.y);
          const float zero =
              __fmaf_rn(__int2float_rn(static_cast<int32_t>(zero_codes >> 8 * col & 0xFFu)), steps.z, steps.w);
          float& sum = sums_[tile][col / 2][2 * (col % 2) + odd];
          const float dot = __fmaf_rn(0.0f - zero, code_sum, __int2float_rn(dots[tile][col / 2][2 * (col % 2) + odd]));
          sum = __fmaf_rn(dot, scale * group->scale, sum);
        }
      }
    }
  }

  template <typename Change>
  static PENSTOCK_DEVICE uint4 ForEachWord(const uint4& words, const Change& change) {
    return {change(words.x), change(words.y), change(words.z), change(words.w)};
  }

  float sums_[kTiles][2][4];
};

// Bf16 rows and weights. A sum takes 16 inputs at a time, in increasing order: an order of its own, but the same for
// any number of rows.
template <int kTiles>
class Bf16Product {
 public:
  static constexpr int kRows = 8 * kTiles;
  static constexpr size_t kSharedBytes = 0;

  PENSTOCK_DEVICE void Run(const std::byte* panel, int64_t inner_dim, const ProductRows& rows, std::byte*) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      for (int m = 0; m < 2; ++m) {
        for (int i = 0; i < 4; ++i) sums_[tile][m][i] = 0;
      }
    }
    if (panel == nullptr) return;
    const int64_t num_pairs = (inner_dim + 1) / 2;
    for (int64_t begin = 0; begin < num_pairs; begin += 8 * kAhead) {
      uint4 lower[kAhead], upper[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        lower[i] = PairsAt(panel, begin + 8 * i + Lane() % 4, num_pairs);
        upper[i] = PairsAt(panel, begin + 8 * i + 4 + Lane() % 4, num_pairs);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (begin + 8 * i < num_pairs) MultiplyStep(lower[i], upper[i], rows, begin + 8 * i + Lane() % 4);
      }
    }
  }

  template <typename Put>
  PENSTOCK_DEVICE void ForEach(const Put& put) const {
    ForEachOfTiles(sums_, put);
  }

 private:
  static constexpr int kAhead = 4;

  static PENSTOCK_DEVICE uint4 PairsAt(const std::byte* panel, int64_t pair, int64_t num_pairs) {
    return pair < num_pairs ? LoadOnce(panel + pair * 128 + 16 * (Lane() / 4)) : uint4{0, 0, 0, 0};
  }

  PENSTOCK_DEVICE void MultiplyStep(const uint4& lower, const uint4& upper, const ProductRows& rows, int64_t pair) {
    uint32_t first[4], second[4];
    OperandsOf(lower, upper, first, second);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int64_t place = rows.first_row + 8 * tile + Lane() / 4;
      const std::byte* const x = rows.x.Row(place < rows.end_row ? place : rows.end_row - 1);
      const uint32_t b[2] = {WordAt(x + 4 * pair), WordAt(x + 4 * (pair + 4))};
      MultiplyBf16(sums_[tile][0], first, b);
      MultiplyBf16(sums_[tile][1], second, b);
    }
  }

  float sums_[kTiles][2][4];
};

}  // namespace penstock::cuda
