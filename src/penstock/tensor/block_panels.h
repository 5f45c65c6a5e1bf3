// Panels of block formats: 32 rows of blocks, interleaved so that one vector holds the same piece of many outputs.
//
// A panel keeps the order of the blocks, and within a block the order of its pieces. Each piece is stored for all 32
// outputs before the next one follows: a scale of f16 becomes [32] scales, and four bytes of codes become [32][4], the
// operand order of VDPBUSD: a word of each output. Two things change. Bit 4 t + j of the 32 fifth bits of kQ5_0 and
// kQ5_1 goes to byte j, bit t, so that a shift moves the bits of four neighbouring inputs to where their codes lie. In
// kQ2_K to kQ6_K the scales come first, and words follow in the order in which kernels need them (QuadWords), so that
// they read a panel from its first byte to its last. Nothing is lost, and a panel has as many bytes as its rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/tensor/codebook_formats.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// QuadWords says where a panel's block of 256 has the codes of one quad, in all four groups of 32 of half a block. A
// quad is four neighbouring inputs of a group. Both fields count words of all outputs from the first word on:
//   low     the word of the low bits of all groups (kQ2_K, kQ3_K), or of two groups, with the other two behind it
//   high    the word of the high bits, or -1; in kQ3_K and kQ5_K both halves of the block share it
struct QuadWords {
  int low;
  int high;
};
// `second`: which half of the block, 0 or 1. `quad`: 0 to 7.
constexpr QuadWords QuadWordsOf(WeightFormat format, int second, int quad) {
  switch (format) {
    case WeightFormat::kQ4_K: return {2 * (8 * second + quad), -1};
    case WeightFormat::kQ5_K: return {second == 0 ? 3 * quad + 1 : 24 + 2 * quad, 3 * quad};
    case WeightFormat::kQ6_K: return {3 * (8 * second + quad), 3 * (8 * second + quad) + 2};
    case WeightFormat::kQ3_K: return {second == 0 ? 2 * quad + 1 : 16 + quad, 2 * quad};
    default: return {8 * second + quad, -1};
  }
}
// Tells whether the words of a format's panels are ordered so.
constexpr bool HasQuadWords(WeightFormat format) {
  return format == WeightFormat::kQ2_K || format == WeightFormat::kQ3_K || format == WeightFormat::kQ4_K ||
         format == WeightFormat::kQ5_K || format == WeightFormat::kQ6_K;
}

// Tells whether an older program arranged panels of this format in another way.
constexpr bool HasNewPanels(WeightFormat format) { return HasQuadWords(format) || IsCodebookOrTernary(format); }

// Makes a panel from `num_cols` <= 32 consecutive rows of blocks; the missing outputs are zeros. `rows` and `panel`
// must not overlap. REQUIRES: IsBlocks(format).
void InterleaveBlocks(WeightFormat format, const std::byte* rows, int64_t num_cols, int64_t inner_dim,
                      std::byte* panel);

// Copies block `block_idx` of output `col` (0..31) back from a panel: the bytes that InterleaveBlocks read.
void ExtractBlock(WeightFormat format, const std::byte* panel, int64_t block_idx, int64_t col, std::byte* target);

}  // namespace penstock
