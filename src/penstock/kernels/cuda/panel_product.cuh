// Products of a panel of weights (tensor/packed_matrix.h) and some rows, by the warps of a block. Each warp has its own
// panel (or shares one with others: QuantisedProduct), and all have the same rows. Every output is summed in the order
// of kernel_table.h's law. So floats with f32 rows, and quantised weights, give the host's bits.
//
// The panels' layout fits the matrix units. With g = lane / 4 and t = lane % 4, one 16-byte load gives a lane the words
// of outputs 4 g to 4 g + 3. Two of the words make the rows of one 16 x 32 tile, and the other two make those of
// another.
#pragma once

#include <type_traits>

#include "penstock/kernels/cuda/math.cuh"

namespace penstock::cuda {

inline constexpr int kPanelsAtOnce = 4;  // warps of a block, unless a product says otherwise
inline constexpr int kProductThreads = kPanelsAtOnce * kWarpThreads;

// Rows as a GEMM reads them.
struct RowsView {
  const std::byte* data = nullptr;
  int64_t stride_bytes = 0;
  kernels::RowFormat format = kernels::RowFormat::kF32;

  PENSTOCK_DEVICE const std::byte* Row(int64_t row) const { return data + row * stride_bytes; }
};

// The rows [first_row, end_row) of x that a block multiplies, at most the product's kRows.
struct ProductRows {
  RowsView x;
  int64_t first_row = 0;
  int64_t end_row = 0;
};

PENSTOCK_DEVICE uint32_t WordAt(const void* source) { return *static_cast<const uint32_t*>(source); }

// f32 rows, float weights: a lane computes one output of each row.
template <WeightFormat kFormat, int kMaxRows>
class FloatProduct {
 public:
  static constexpr int kRows = kMaxRows;
  static constexpr int kColumns = kPanelsAtOnce, kThreads = kProductThreads;
  // Shared memory for two buffers [kRows, kInputs] of x.
  static constexpr size_t kSharedBytes = sizeof(float) * 2 * kRows * 256;

  // All threads of the block must call this; `panel` may be null for a warp without one. `shared`: kSharedBytes.
  //
  // A chain of additions leaves no other work to hide a load behind. So the weights of the next kAhead pairs, and the
  // rows of the next chunk, are loaded while the current ones are multiplied.
  PENSTOCK_DEVICE void Run(const std::byte* panel, int64_t inner_dim, const ProductRows& rows, std::byte* shared) {
    for (int r = 0; r < kRows; ++r) sums_[r] = 0;
    const int64_t num_pairs = panel == nullptr ? 0 : (inner_dim + 1) / 2;
    float staged[kStaged];
    Word w[kAhead], next[kAhead];
    LoadRows(rows, inner_dim, 0, staged);
    LoadWeights(panel, 0, num_pairs, w);
    for (int64_t begin = 0; begin < inner_dim; begin += kInputs) {
      // Two buffers take turns, so one barrier is enough: behind it, no warp reads the other buffer any more.
      float* const x = reinterpret_cast<float*>(shared) + begin / kInputs % 2 * (kRows * kInputs);
#pragma unroll
      for (int i = 0; i < kStaged; ++i) x[static_cast<int>(threadIdx.x) + i * kProductThreads] = staged[i];
      __syncthreads();
      LoadRows(rows, inner_dim, begin + kInputs, staged);
      for (int first = 0; first < kInputs / 2; first += kAhead) {
        const int64_t pair = begin / 2 + first;
        if (pair >= num_pairs) break;
        LoadWeights(panel, pair + kAhead, num_pairs, next);
        if (num_pairs - pair >= kAhead) {
          Multiply<true>(w, x + 2 * first, kAhead);
        } else {
          Multiply<false>(w, x + 2 * first, static_cast<int>(num_pairs - pair));
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) w[i] = next[i];
      }
    }
    __syncthreads();  // shared memory may be used again
  }

  // Calls put(output of the panel, row from first_row on, sum) for this lane's sums.
  template <typename Put>
  PENSTOCK_DEVICE void ForEach(const Put& put) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) put(Lane(), r, sums_[r]);
  }

 private:
  using Word = std::conditional_t<kFormat == WeightFormat::kBF16, uint32_t, float2>;  // a pair as it is loaded
  static constexpr int kInputs = 256;
  static constexpr int kAhead = kFormat == WeightFormat::kBF16 ? 32 : 16;  // pairs
  static constexpr int kStaged = kRows * kInputs / kProductThreads;        // of a thread

  static PENSTOCK_DEVICE void LoadRows(const ProductRows& rows, int64_t inner_dim, int64_t begin,
                                       float (&staged)[kStaged]) {
#pragma unroll
    for (int i = 0; i < kStaged; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kProductThreads;
      const int64_t row = rows.first_row + at / kInputs, k = begin + at % kInputs;
      staged[i] = row < rows.end_row && k < inner_dim ? reinterpret_cast<const float*>(rows.x.Row(row))[k] : 0.0f;
    }
  }
  // Loads the weights of this lane's output for kAhead pairs of inputs.
  static PENSTOCK_DEVICE void LoadWeights(const std::byte* panel, int64_t pair, int64_t num_pairs, Word (&w)[kAhead]) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) w[i] = pair + i < num_pairs ? WordOf(panel, pair + i) : Word{};
  }
  // Without kAll, `num_pairs` ends the loop; a check of each pair would keep loads from being issued early.
  template <bool kAll>
  PENSTOCK_DEVICE void Multiply(const Word (&w)[kAhead], const float* x, int num_pairs) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (!kAll && i >= num_pairs) break;
      const float2 pair = Floats(w[i]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float2 inputs = reinterpret_cast<const float2*>(x + r * kInputs)[i];
        sums_[r] = __fmaf_rn(inputs.y, pair.y, sums_[r]);
        sums_[r] = __fmaf_rn(inputs.x, pair.x, sums_[r]);
      }
    }
  }

  static PENSTOCK_DEVICE Word WordOf(const std::byte* panel, int64_t pair) {
    if constexpr (kFormat == WeightFormat::kBF16) {
      return WordAt(panel + (pair * kPanelCols + Lane()) * 4);
    } else if constexpr (kFormat == WeightFormat::kF16) {
      const uint16_t* const w = reinterpret_cast<const uint16_t*>(panel) + 2 * pair * kPanelCols + Lane();
      return {FromF16Bits(w[0]), FromF16Bits(w[kPanelCols])};
    } else {
      const float* const w = reinterpret_cast<const float*>(panel) + 2 * pair * kPanelCols + Lane();
      return {w[0], w[kPanelCols]};
    }
  }
  static PENSTOCK_DEVICE float2 Floats(const Word& word) {
    if constexpr (kFormat == WeightFormat::kBF16) {
      return {FromBf16Bits(word & 0xFFFFu), FromBf16Bits(word >> 16)};
    } else {
      return word;
    }
  }

  float sums_[kRows];
};

// Like FloatProduct, for more rows: a lane computes four outputs of eight rows, so that each load serves several
// products.
template <WeightFormat kFormat>
class FloatTile {
 public:
  static constexpr int kRows = 32;
  static constexpr int kColumns = kPanelsAtOnce, kThreads = kProductThreads;
  static constexpr size_t kSharedBytes = sizeof(float) * kRows * 66;

  PENSTOCK_DEVICE void Run(const std::byte* panel, int64_t inner_dim, const ProductRows& rows, std::byte* shared) {
    float* const x = reinterpret_cast<float*>(shared);  // [kRows, kStride]
    const int t = Lane() % 4;
#pragma unroll
    for (int j = 0; j < kLaneRows; ++j) {
      for (int col = 0; col < 4; ++col) sums_[j][col] = 0;
    }
    for (int64_t begin = 0; begin < inner_dim; begin += kInputs) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kRows * kInputs; i += kProductThreads) {
        const int64_t row = rows.first_row + i / kInputs, k = begin + i % kInputs;
        x[i / kInputs * kStride + i % kInputs] =
            row < rows.end_row && k < inner_dim ? reinterpret_cast<const float*>(rows.x.Row(row))[k] : 0.0f;
      }
      __syncthreads();
      if (panel == nullptr) continue;
      const int64_t left = inner_dim - begin;
      const int num_pairs = static_cast<int>(left < kInputs ? (left + 1) / 2 : kInputs / 2);
#pragma unroll 4
      for (int pair = 0; pair < num_pairs; ++pair) {
        float2 w[4];
        Weights(panel, begin / 2 + pair, w);
#pragma unroll
        for (int j = 0; j < kLaneRows; ++j) {
          const float2 inputs = reinterpret_cast<const float2*>(x + (t + 4 * j) * kStride)[pair];
#pragma unroll
          for (int col = 0; col < 4; ++col) {
            sums_[j][col] = __fmaf_rn(inputs.y, w[col].y, sums_[j][col]);
            sums_[j][col] = __fmaf_rn(inputs.x, w[col].x, sums_[j][col]);
          }
        }
      }
    }
  }

  template <typename Put>
  PENSTOCK_DEVICE void ForEach(const Put& put) const {
#pragma unroll
    for (int j = 0; j < kLaneRows; ++j) {
#pragma unroll
      for (int col = 0; col < 4; ++col) put(Lane() / 4 * 4 + col, Lane() % 4 + 4 * j, sums_[j][col]);
    }
  }

 private:
  static constexpr int kInputs = 64, kStride = kInputs + 2;
  static constexpr int kLaneRows = kRows / 4;

  // Returns the weights of outputs 4 g to 4 g + 3 for inputs 2 pair and 2 pair + 1.
  static PENSTOCK_DEVICE void Weights(const std::byte* panel, int64_t pair, float2 (&w)[4]) {
    const int g = Lane() / 4;
    if constexpr (kFormat == WeightFormat::kBF16) {
      const uint4 words = LoadOnce(panel + pair * 128 + 16 * g);
      const uint32_t all[4] = {words.x, words.y, words.z, words.w};
      for (int col = 0; col < 4; ++col) w[col] = {FromBf16Bits(all[col] & 0xFFFFu), FromBf16Bits(all[col] >> 16)};
    } else if constexpr (kFormat == WeightFormat::kF16) {
      const uint2 first = *reinterpret_cast<const uint2*>(panel + 2 * pair * 64 + 8 * g);
      const uint2 second = *reinterpret_cast<const uint2*>(panel + (2 * pair + 1) * 64 + 8 * g);
      w[0] = {FromF16Bits(first.x & 0xFFFFu), FromF16Bits(second.x & 0xFFFFu)};
      w[1] = {FromF16Bits(first.x >> 16), FromF16Bits(second.x >> 16)};
      w[2] = {FromF16Bits(first.y & 0xFFFFu), FromF16Bits(second.y & 0xFFFFu)};
      w[3] = {FromF16Bits(first.y >> 16), FromF16Bits(second.y >> 16)};
    } else {
      const float4 first = *reinterpret_cast<const float4*>(panel + 2 * pair * 128 + 16 * g);
      const float4 second = *reinterpret_cast<const float4*>(panel + (2 * pair + 1) * 128 + 16 * g);
      w[0] = {first.x, second.x};
      w[1] = {first.y, second.y};
      w[2] = {first.z, second.z};
      w[3] = {first.w, second.w};
    }
  }

  float sums_[kLaneRows][4];
};

// Visits a lane's sums. In a tile of eight rows, the matrix units give a lane rows 2 t and 2 t + 1 of outputs 4 g to 4
// g + 3. Value i of the first 16 x 8 product is of output 4 g + i / 2, and value i of the second is of output 4 g + 2 +
// i / 2. Both are of row 2 t + i % 2.
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

// Turns the words of outputs 4 g to 4 g + 3 in two rows of a panel of words [., 32] into the operands of two products.
PENSTOCK_DEVICE void OperandsOf(const uint4& lower, const uint4& upper, uint32_t (&first)[4], uint32_t (&second)[4]) {
  first[0] = lower.x, first[1] = lower.y, first[2] = upper.x, first[3] = upper.y;
  second[0] = lower.z, second[1] = lower.w, second[2] = upper.z, second[3] = upper.w;
}

// Returns the offset of the groups of int8 rows, which follow their codes.
PENSTOCK_DEVICE int64_t CodesBytes(int64_t inner_dim) { return (inner_dim + kInt8Group - 1) / kInt8Group * kInt8Group; }
PENSTOCK_DEVICE const kernels::Int8RowGroup& RowGroupAt(const std::byte* row, int64_t codes_bytes, int64_t input) {
  return reinterpret_cast<const kernels::Int8RowGroup*>(row + codes_bytes)[input / kInt8Group];
}

// Returns row `row` of the tiles, or the last existing row, whose products are not used.
PENSTOCK_DEVICE const std::byte* RowOfTiles(const ProductRows& rows, int row) {
  const int64_t place = rows.first_row + row;
  return rows.x.Row(place < rows.end_row ? place : rows.end_row - 1);
}

// Returns a digit of each byte (tensor/ternary.h). `power` is 3 to the digit's index.
PENSTOCK_DEVICE uint32_t DigitsOf(uint32_t word, uint32_t power) {
  const auto digits = [power](uint32_t bytes) {  // of two bytes, each with 16 bits
    return ((bytes * power & 0x00FF00FFu) * 3 & 0xFF00FF00u) >> 8;
  };
  return digits(word & 0x00FF00FFu) | digits(word >> 8 & 0x00FF00FFu) << 8;
}

// Returns 3^index. REQUIRES: 0 <= index <= 4.
PENSTOCK_DEVICE uint32_t PowerOfThree(int index) {
  return index == 0 ? 1u : index == 1 ? 3u : index == 2 ? 9u : index == 3 ? 27u : 81u;
}

// A group of inputs of a panel of quantised weights: its codes as operands, and the scales that turn sums of products
// of codes into sums. A lane's words are those of outputs 4 g to 4 g + 3.
template <WeightFormat kFormat>
class QuantisedGroup {
 public:
  static constexpr int kInputs = kFormat == WeightFormat::kInt8 ? static_cast<int>(kInt8Group) : 64;
  static constexpr int kSteps = kInputs / 32;
  // Whether a lane's quads (4 inputs) are neighbours. Inputs may be assigned to products in any way that is the same
  // for both operands. Of the 32 inputs of a step, lane t has two quads: 2 t and 2 t + 1 if they are neighbours,
  // otherwise t and 4 + t.
  static constexpr bool kHasNeighbours = kFormat == WeightFormat::kHqq4;

  // Starts at the group that begins with input `begin`, a multiple of kInputs.
  PENSTOCK_DEVICE QuantisedGroup(const std::byte* panel, int64_t begin) {
    if constexpr (kFormat == WeightFormat::kInt8) {
      codes_ = panel + begin / kInt8Group * kInt8BlockBytes;
    } else {
      constexpr int64_t kGroupBytes = HqqGroupBytes(kFormat);
      constexpr int64_t kBlockBytes = kHqqHeaderBytes + kHqqBlock / 64 * kGroupBytes;
      header_ = panel + begin / kHqqBlock * kBlockBytes;
      group_idx_ = static_cast<int>(begin % kHqqBlock / 64);
      codes_ = header_ + kHqqHeaderBytes + group_idx_ * kGroupBytes;
    }
  }

  // The codes of a step as they lie in the panel.
  struct Codes {
    uint4 words[kFormat == WeightFormat::kHqq4 ? 1 : kFormat == WeightFormat::kHqq3 ? 3 : 2];
  };
  PENSTOCK_DEVICE Codes Load(int step) const {
    const int g = Lane() / 4, t = Lane() % 4;
    if constexpr (kFormat == WeightFormat::kInt8) {
      return {{LoadOnce(codes_ + (8 * step + t) * 128 + 16 * g), LoadOnce(codes_ + (8 * step + 4 + t) * 128 + 16 * g)}};
    } else if constexpr (kFormat == WeightFormat::kHqq4) {
      return {{LoadOnce(codes_ + (4 * step + t) * 128 + 16 * g)}};
    } else if constexpr (kFormat == WeightFormat::kHqq2) {
      return {{LoadOnce(codes_ + (2 * step) * 128 + 16 * g), LoadOnce(codes_ + (2 * step + 1) * 128 + 16 * g)}};
    } else if constexpr (kFormat == WeightFormat::kTernary) {  // ready: which digit a lane takes depends on the step
      return {{TernaryQuads(8 * step + t), TernaryQuads(8 * step + 4 + t)}};
    } else {
      return {{LoadOnce(codes_ + (2 * step) * 128 + 16 * g), LoadOnce(codes_ + (2 * step + 1) * 128 + 16 * g),
               LoadOnce(codes_ + 512 + step * 128 + 16 * g)}};
    }
  }
  // Makes the lower and the upper half of the operands.
  static PENSTOCK_DEVICE void Unpack(const Codes& codes, uint4& lower, uint4& upper) {
    if constexpr (kFormat == WeightFormat::kInt8 || kFormat == WeightFormat::kTernary) {
      lower = codes.words[0];
      upper = codes.words[1];
    } else if constexpr (kFormat == WeightFormat::kHqq2) {  // a word has four quads
      const int t = Lane() % 4;
      lower = ForEachWord(codes.words[0], [&](uint32_t word) { return word >> 2 * t & 0x03030303u; });
      upper = ForEachWord(codes.words[1], [&](uint32_t word) { return word >> 2 * t & 0x03030303u; });
    } else if constexpr (kFormat == WeightFormat::kHqq4) {  // a word has two quads
      lower = ForEachWord(codes.words[0], [](uint32_t word) { return word & 0x0F0F0F0Fu; });
      upper = ForEachWord(codes.words[0], [](uint32_t word) { return word >> 4 & 0x0F0F0F0Fu; });
    } else {
      // A word has the two low bits of four quads; another word has the third bits of eight quads.
      const int t = Lane() % 4;
      const auto half = [&](int i) {
        const uint4 low = ForEachWord(codes.words[i], [&](uint32_t word) { return word >> 2 * t & 0x03030303u; });
        const uint4 high =
            ForEachWord(codes.words[2], [&](uint32_t word) { return (word >> (4 * i + t) & 0x01010101u) << 2; });
        return uint4{low.x | high.x, low.y | high.y, low.z | high.z, low.w | high.w};
      };
      lower = half(0);
      upper = half(1);
    }
  }

  PENSTOCK_DEVICE void LoadScales() {
    const int g = Lane() / 4;
    if constexpr (kFormat == WeightFormat::kInt8) {
      const uint2 packed = *reinterpret_cast<const uint2*>(codes_ + kInt8Group * kPanelCols + 8 * g);
      scales_[0] = FromBf16Bits(packed.x & 0xFFFFu);
      scales_[1] = FromBf16Bits(packed.x >> 16);
      scales_[2] = FromBf16Bits(packed.y & 0xFFFFu);
      scales_[3] = FromBf16Bits(packed.y >> 16);
    } else {
      const float4 steps = *reinterpret_cast<const float4*>(header_);  // step and minimum of scales, then of zeros
      const uint32_t scale_codes = WordAt(header_ + 64 + kPanelCols * group_idx_ + 4 * g);
      const uint32_t zero_codes = WordAt(header_ + 192 + kPanelCols * group_idx_ + 4 * g);  // but of ternary
#pragma unroll
      for (int col = 0; col < 4; ++col) {
        scales_[col] =
            __fmaf_rn(__int2float_rn(static_cast<int32_t>(scale_codes >> 8 * col & 0xFFu)), steps.x, steps.y);
        zeros_[col] =
            kFormat == WeightFormat::kTernary
                ? 1.0f
                : __fmaf_rn(__int2float_rn(static_cast<int32_t>(zero_codes >> 8 * col & 0xFFu)), steps.z, steps.w);
      }
    }
  }

  // Returns this group's product of output 4 g + col with a row as two factors; sums take it with a fused multiply-add.
  // `row` is the row's group.
  PENSTOCK_DEVICE float2 FactorsOf(int col, int32_t dot, const kernels::Int8RowGroup& row) const {
    if constexpr (kFormat == WeightFormat::kInt8) {
      return {__int2float_rn(dot + row.code_offset), scales_[col] * row.scale};
    } else {
      const float code_sum = group_idx_ % 2 == 0 ? row.code_sums[0] : row.code_sums[1];
      return {__fmaf_rn(0.0f - zeros_[col], code_sum, __int2float_rn(dot)), scales_[col] * row.scale};
    }
  }

  // Multiplies the group by int8 rows: the matrix units sum its codes exactly in integers. Calls put(tile, product m,
  // value i, factors) for each of a lane's outputs (ForEachOfTiles). `begin`: the group's first input.
  template <int kTiles, typename Put>
  PENSTOCK_DEVICE void Multiply(int64_t begin, int64_t inner_dim, const ProductRows& rows, const Put& put) {
    const int t = Lane() % 4;
    Codes codes[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) codes[step] = Load(step);
    int32_t dots[kTiles][2][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint4 lower, upper;
      Unpack(codes[step], lower, upper);
      uint32_t first[4], second[4];
      OperandsOf(lower, upper, first, second);
      const int64_t quad = begin / 4 + 8 * step + (kHasNeighbours ? 2 * t : t);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const std::byte* const x = RowOfTiles(rows, 8 * tile + Lane() / 4);
        const uint32_t b[2] = {WordAt(x + 4 * quad), WordAt(x + 4 * (quad + (kHasNeighbours ? 1 : 4)))};
        MultiplyCodes(dots[tile][0], first, b);
        MultiplyCodes(dots[tile][1], second, b);
      }
    }
    LoadScales();
    const int64_t codes_bytes = CodesBytes(inner_dim);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const kernels::Int8RowGroup& row = RowGroupAt(RowOfTiles(rows, 8 * tile + 2 * t + odd), codes_bytes, begin);
#pragma unroll
        for (int col = 0; col < 4; ++col) {
          const int m = col / 2, i = 2 * (col % 2) + odd;
          put(tile, m, i, FactorsOf(col, dots[tile][m][i], row));
        }
      }
    }
  }

 private:
  // Returns the codes of 4 inputs of a group of kTernary.
  PENSTOCK_DEVICE uint4 TernaryQuads(int quad) const {
    const int g = Lane() / 4;
    if (quad == 15) {
      return ForEachWord(LoadOnce(header_ + kTernaryLastQuads + 16 * g),
                         [&](uint32_t word) { return word >> 2 * group_idx_ & 0x03030303u; });
    }
    const uint32_t power = PowerOfThree(quad % 5);
    return ForEachWord(LoadOnce(codes_ + quad / 5 * 128 + 16 * g),
                       [&](uint32_t word) { return DigitsOf(word, power); });
  }

  template <typename Change>
  static PENSTOCK_DEVICE uint4 ForEachWord(const uint4& words, const Change& change) {
    return {change(words.x), change(words.y), change(words.z), change(words.w)};
  }

  const std::byte* codes_;
  const std::byte* header_ = nullptr;
  int group_idx_ = 0;
  float scales_[4], zeros_[4];
};

// Int8 rows and weights of codes, whose groups of inputs are `Group`s. One float accumulator of each output runs over
// the groups, in their order.
//
// kSplits > 1: a panel's groups are shared by that many warps, kNumColumns panels by a block. So a product of few tiles
// still has enough loads under way to keep the memory busy. The first warp of a panel adds the factors that the others
// leave in shared memory. The order of the sums, and so the bits, stay the same.
template <class Group, int kTiles, int kNumColumns = kPanelsAtOnce, int kSplits = 1>
class QuantisedProduct {
 public:
  static constexpr int kRows = 8 * kTiles;
  static constexpr int kColumns = kNumColumns, kThreads = kColumns * kSplits * kWarpThreads;
  // Two buffers of factors, [kSplits - 1, kColumns, kValues, 32] each.
  static constexpr size_t kSharedBytes = sizeof(float2) * 2 * (kSplits - 1) * kColumns * 8 * kTiles * kWarpThreads;

  // All threads of the block must call this.
  PENSTOCK_DEVICE void Run(const std::byte* panel, int64_t inner_dim, const ProductRows& rows, std::byte* shared) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      for (int m = 0; m < 2; ++m) {
        for (int i = 0; i < 4; ++i) sums_[tile][m][i] = 0;
      }
    }
    const auto add = [&](int tile, int m, int i, const float2& factors) {
      sums_[tile][m][i] = __fmaf_rn(factors.x, factors.y, sums_[tile][m][i]);
    };
    if constexpr (kSplits == 1) {
      if (panel == nullptr) return;
      for (int64_t begin = 0; begin < inner_dim; begin += Group::kInputs) {
        Group(panel, begin).template Multiply<kTiles>(begin, inner_dim, rows, add);
      }
      return;
    }
    const int split = Warp() / kColumns;
    int buffer = 0;
    for (int64_t begin = 0; begin < inner_dim; begin += kSplits * Group::kInputs, buffer ^= 1) {
      const int64_t own = begin + split * Group::kInputs;
      const bool has_group = panel != nullptr && own < inner_dim;
      if (has_group && split == 0) {
        Group(panel, own).template Multiply<kTiles>(own, inner_dim, rows, add);
      } else if (has_group) {
        float2* const factors = FactorsIn(shared, buffer, split);
        const auto keep = [&](int tile, int m, int i, const float2& value) {
          factors[((tile * 2 + m) * 4 + i) * kWarpThreads + Lane()] = value;
        };
        Group(panel, own).template Multiply<kTiles>(own, inner_dim, rows, keep);
      }
      __syncthreads();
      if (split > 0 || panel == nullptr) continue;
      for (int other = 1; other < kSplits && begin + other * Group::kInputs < inner_dim; ++other) {
        const float2* const factors = FactorsIn(shared, buffer, other);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int value = 0; value < 8; ++value) {
            add(tile, value / 4, value % 4, factors[(8 * tile + value) * kWarpThreads + Lane()]);
          }
        }
      }
    }
    __syncthreads();  // shared memory may be used again
  }

  template <typename Put>
  PENSTOCK_DEVICE void ForEach(const Put& put) const {
    if (Warp() < kColumns) ForEachOfTiles(sums_, put);
  }

 private:
  static PENSTOCK_DEVICE float2* FactorsIn(std::byte* shared, int buffer, int split) {
    constexpr int kSize = 8 * kTiles * kWarpThreads;
    const int place = (buffer * (kSplits - 1) + split - 1) * kColumns + Warp() % kColumns;
    return reinterpret_cast<float2*>(shared) + place * kSize;
  }

  float sums_[kTiles][2][4];
};

// Returns the pairs of inputs of outputs 4 g to 4 g + 3 in a panel of bf16; zeros behind the last.
PENSTOCK_DEVICE uint4 PairsAt(const std::byte* panel, int64_t pair, int64_t num_pairs) {
  return pair < num_pairs ? LoadOnce(panel + pair * 128 + 16 * (Lane() / 4)) : uint4{0, 0, 0, 0};
}

// Bf16 rows and weights. A sum takes 16 inputs at a time, in increasing order. This order is not the law's, but it is
// the same for any number of rows.
template <int kTiles>
class Bf16Product {
 public:
  static constexpr int kRows = 8 * kTiles;
  static constexpr int kColumns = kPanelsAtOnce, kThreads = kProductThreads;
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

  PENSTOCK_DEVICE void MultiplyStep(const uint4& lower, const uint4& upper, const ProductRows& rows, int64_t pair) {
    uint32_t first[4], second[4];
    OperandsOf(lower, upper, first, second);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const std::byte* const x = RowOfTiles(rows, 8 * tile + Lane() / 4);
      const uint32_t b[2] = {WordAt(x + 4 * pair), WordAt(x + 4 * (pair + 4))};
      MultiplyBf16(sums_[tile][0], first, b);
      MultiplyBf16(sums_[tile][1], second, b);
    }
  }

  float sums_[kTiles][2][4];
};

}  // namespace penstock::cuda
