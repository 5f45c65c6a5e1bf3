// Products of a panel in a block format and some rows. With int8 rows, the matrix units sum codes exactly in integers
// (BlockGroup, for QuantisedProduct). With float rows, each lane decodes the weights of one output (DecodedProduct);
// so it does with int8 and HQQ weights.
// Sums have the order of kernel_table.h's law, so they have the host's bits.
#pragma once

#include "penstock/kernels/cuda/block_codes.cuh"
#include "penstock/kernels/cuda/panel_product.cuh"

namespace penstock::cuda {

// The 128 inputs of a panel that share a scale of the rows: four groups of 32.
template <WeightFormat kFormat>
class BlockGroup {
 public:
  static constexpr int kInputs = static_cast<int>(kInt8Group);

  // Starts with input `begin`, a multiple of kInputs.
  PENSTOCK_DEVICE BlockGroup(const std::byte* panel, int64_t begin)
      : block_(panel + begin / kElements * kBytes), second_(static_cast<int>(begin % kElements / kInputs)) {}

  // Multiplies as QuantisedGroup (panel_product.cuh) does. The factors are the sum over the groups that have scales
  // of their own, and the scale of the row.
  template <int kTiles, typename Put>
  PENSTOCK_DEVICE void Multiply(int64_t begin, int64_t inner_dim, const ProductRows& rows, const Put& put) const {
    const int t = Lane() % 4;
    const int64_t codes_bytes = CodesBytes(inner_dim), sums_at = codes_bytes + codes_bytes / kInputs * kRowGroupBytes;
    const int num_groups = inner_dim - begin < kInputs ? static_cast<int>((inner_dim - begin + 31) / 32) : 4;
    float parts[kTiles][2][4] = {};
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      // Behind the last group, repeats its loads and drops the products: a branch would keep loads from being issued
      // early.
      const bool is_used = group < num_groups;
      const int64_t input = begin + 32 * group;
      const std::byte* const block = kElements == 32 ? block_ + (is_used ? group : num_groups - 1) * kBytes : block_;
      uint32_t lower[4], upper[4];
      Codes::Quad(block, second_, group, 0, t, lower);
      Codes::Quad(block, second_, group, 1, t, upper);
      const uint32_t operands[2][4] = {{lower[0], lower[1], upper[0], upper[1]},
                                       {lower[2], lower[3], upper[2], upper[3]}};
      const typename Codes::template Scales<4> of_block(block);
      const auto add_half = [&](int half, bool is_whole) {
        const GroupScales<4> scales = of_block.Of(second_, group, half);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const std::byte* const x = RowOfTiles(rows, 8 * tile + Lane() / 4) + input + 4 * t;
          const uint32_t b[2] = {is_whole || half == 0 ? WordAt(x) : 0, is_whole || half == 1 ? WordAt(x + 16) : 0};
          int32_t dots[2][4] = {};
          MultiplyCodes(dots[0], operands[0], b);
          MultiplyCodes(dots[1], operands[1], b);
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const std::byte* const row = RowOfTiles(rows, 8 * tile + 2 * t + odd);
            const auto* const sums = reinterpret_cast<const int16_t*>(row + sums_at + input / 8);
            const int32_t sum = is_whole ? sums[0] + sums[1] : sums[half];
#pragma unroll
            for (int col = 0; col < 4; ++col) {
              const int m = col / 2, i = 2 * (col % 2) + odd;
              float& part = parts[tile][m][i];
              float next = __fmaf_rn(__int2float_rn(dots[m][i] - Codes::kOffset * sum), scales.scale[col], part);
              if constexpr (Codes::kHasMin) next = __fmaf_rn(__int2float_rn(sum), scales.min[col], next);
              part = is_used ? next : part;
            }
          }
        }
      };
      if constexpr (Codes::kGroup == 32) {
        add_half(0, true);
      } else {
        add_half(0, false);
        add_half(1, false);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const kernels::Int8RowGroup& row = RowGroupAt(RowOfTiles(rows, 8 * tile + 2 * t + i % 2), codes_bytes, begin);
        put(tile, i / 4, i % 4, {parts[tile][i / 4][i % 4], row.scale});
      }
    }
  }

 private:
  using Codes = BlockCodes<kFormat>;
  static constexpr int64_t kElements = BlockElements(kFormat), kBytes = BlockBytes(kFormat) * kPanelCols;
  static constexpr int64_t kRowGroupBytes = sizeof(kernels::Int8RowGroup);

  const std::byte* block_;
  int second_;
};

// The Decode functions set `weights` to those of 32 inputs of a lane's output, from `first` on.
PENSTOCK_DEVICE void DecodeInt8(const std::byte* panel, int64_t first, float (&weights)[32]) {
  const std::byte* const block = panel + first / kInt8Group * kInt8BlockBytes;
  const float scale = FromBf16Bits(reinterpret_cast<const uint16_t*>(block + kInt8Group * kPanelCols)[Lane()]);
#pragma unroll
  for (int quad = 0; quad < 8; ++quad) {
    const uint32_t codes = WordAt(block + first % kInt8Group * kPanelCols + kQuadBytes * quad + 4 * Lane());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights[4 * quad + i] = __int2float_rn(static_cast<int32_t>(codes >> 8 * i & 0xFFu) - 128) * scale;
    }
  }
}

template <WeightFormat kFormat>
PENSTOCK_DEVICE void DecodeHqq(const std::byte* panel, int64_t first, float (&weights)[32]) {
  constexpr int64_t kGroupBytes = HqqGroupBytes(kFormat);
  const std::byte* const header = panel + first / kHqqBlock * (kHqqHeaderBytes + kHqqBlock / 64 * kGroupBytes);
  const int group = static_cast<int>(first % kHqqBlock / 64), half = static_cast<int>(first % 64 / 32);
  const auto* const meta = reinterpret_cast<const float*>(header);
  const auto* const meta_codes = reinterpret_cast<const uint8_t*>(header) + kPanelCols * group + Lane();
  const float scale = __fmaf_rn(__int2float_rn(meta_codes[64]), meta[0], meta[1]);
  const float zero =
      kFormat == WeightFormat::kTernary ? 1.0f : __fmaf_rn(__int2float_rn(meta_codes[192]), meta[2], meta[3]);
  const std::byte* const codes = header + kHqqHeaderBytes + group * kGroupBytes + 4 * Lane();
  const auto put = [&](int input, uint32_t code) {
    weights[input] = (__int2float_rn(static_cast<int32_t>(code)) - zero) * scale;
  };
  if constexpr (kFormat == WeightFormat::kHqq4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t both = WordAt(codes + kQuadBytes * (4 * half + i));
#pragma unroll
      for (int j = 0; j < 8; ++j) put(8 * i + j, both >> (8 * (j % 4) + 4 * (j / 4)) & 15u);
    }
  } else if constexpr (kFormat == WeightFormat::kTernary) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int quad = 8 * half + i;
      const uint32_t word = quad == 15 ? WordAt(header + kTernaryLastQuads + 4 * Lane()) >> 2 * group & 0x03030303u
                                       : DigitsOf(WordAt(codes + quad / 5 * kQuadBytes), PowerOfThree(quad % 5));
#pragma unroll
      for (int j = 0; j < 4; ++j) put(4 * i + j, word >> 8 * j & 3u);
    }
  } else {
    const uint32_t thirds = kFormat == WeightFormat::kHqq3 ? WordAt(codes + 512 + kQuadBytes * half) : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t pairs = WordAt(codes + kQuadBytes * (2 * half + i));
#pragma unroll
      for (int j = 0; j < 16; ++j) {  // input j: byte j % 4, bits of j / 4
        const uint32_t low = pairs >> (8 * (j % 4) + 2 * (j / 4)) & 3u;
        put(16 * i + j, low | (thirds >> (8 * (j % 4) + 4 * i + j / 4) & 1u) << 2);
      }
    }
  }
}

template <WeightFormat kFormat>
PENSTOCK_DEVICE void DecodeBlocks(const std::byte* panel, int64_t first, float (&weights)[32]) {
  constexpr int64_t kElements = BlockElements(kFormat), kBytes = BlockBytes(kFormat) * kPanelCols;
  const std::byte* const block = panel + first / kElements * kBytes;
  const int idx = static_cast<int>(first % kElements / 32);
  if constexpr (kFormat == WeightFormat::kFp8) {
    const float scale = reinterpret_cast<const float*>(block)[Lane()];
#pragma unroll
    for (int quad = 0; quad < 8; ++quad) {
      const uint32_t codes = WordAt(block + kQuadBytes * (1 + 8 * idx + quad) + 4 * Lane());
      for (int i = 0; i < 4; ++i) weights[4 * quad + i] = FromFp8(codes >> 8 * i & 0xFFu) * scale;
    }
  } else {
    using Codes = BlockCodes<kFormat>;
    const typename Codes::template Scales<1> of_block(block);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const GroupScales<1> scales = of_block.Of(idx / 4, idx % 4, half);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t codes[1];
        Codes::Quad(block, idx / 4, idx % 4, half, i, codes);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int32_t code = static_cast<int32_t>(codes[0] >> 8 * j & 0xFFu) - Codes::kOffset;
          float weight = scales.scale[0] * __int2float_rn(code);
          if constexpr (Codes::kHasMin) weight += scales.min[0];
          weights[16 * half + 4 * i + j] = weight;
        }
      }
    }
  }
}

template <WeightFormat kFormat>
PENSTOCK_DEVICE void Decode(const std::byte* panel, int64_t first, float (&weights)[32]) {
  if constexpr (IsBlocks(kFormat)) {
    DecodeBlocks<kFormat>(panel, first, weights);
  } else if constexpr (kFormat == WeightFormat::kInt8) {
    DecodeInt8(panel, first, weights);
  } else {
    DecodeHqq<kFormat>(panel, first, weights);
  }
}

// f32 rows, or bf16 rows, for which weights are rounded to bf16: a lane computes one output of each row.
template <WeightFormat kFormat>
class DecodedProduct {
 public:
  static constexpr int kRows = 8;
  static constexpr int kColumns = kPanelsAtOnce, kThreads = kProductThreads;
  static constexpr size_t kSharedBytes = sizeof(float) * kRows * 256;

  // All threads of the block must call this.
  PENSTOCK_DEVICE void Run(const std::byte* panel, int64_t inner_dim, const ProductRows& rows, std::byte* shared) {
    float* const x = reinterpret_cast<float*>(shared);  // [kRows, kInputs]
    const bool is_bf16 = rows.x.format == kernels::RowFormat::kBF16;
    for (int r = 0; r < kRows; ++r) sums_[r] = 0;
    for (int64_t begin = 0; begin < inner_dim; begin += kInputs) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kRows * kInputs; i += kThreads) {
        const int64_t row = rows.first_row + i / kInputs, k = begin + i % kInputs;
        x[i] = row < rows.end_row && k < inner_dim ? InputOf(rows.x.Row(row), k, is_bf16) : 0.0f;
      }
      __syncthreads();
      if (panel == nullptr) continue;
      for (int first = 0; first < kInputs && begin + first < inner_dim; first += 32) {
        float weights[32];
        Decode<kFormat>(panel, begin + first, weights);
        const int64_t left = inner_dim - begin - first;
#pragma unroll
        for (int k = 0; k < 32; k += 2) {
          if (k >= left) break;
          float odd = k + 1 < left ? weights[k + 1] : 0.0f, even = weights[k];
          if (is_bf16) odd = FromBf16Bits(ToBf16Bits(odd)), even = FromBf16Bits(ToBf16Bits(even));
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const float2 inputs = *reinterpret_cast<const float2*>(x + r * kInputs + first + k);
            sums_[r] = __fmaf_rn(inputs.y, odd, sums_[r]);
            sums_[r] = __fmaf_rn(inputs.x, even, sums_[r]);
          }
        }
      }
    }
    __syncthreads();  // shared memory may be used again
  }

  template <typename Put>
  PENSTOCK_DEVICE void ForEach(const Put& put) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) put(Lane(), r, sums_[r]);
  }

 private:
  static constexpr int kInputs = 256;

  static PENSTOCK_DEVICE float InputOf(const std::byte* row, int64_t k, bool is_bf16) {
    if (is_bf16) return FromBf16Bits(reinterpret_cast<const uint16_t*>(row)[k]);
    return reinterpret_cast<const float*>(row)[k];
  }

  float sums_[kRows];
};

}  // namespace penstock::cuda
