// Panels of block formats: 32 rows of blocks, interleaved so that one vector holds the same piece of many outputs.
//
// A panel keeps the order of the blocks, and within a block the order of its pieces. Each piece is stored for all 32
// outputs before the next one follows: a scale of f16 becomes [32] scales, and four bytes of codes become [32][4], the
// operand order of VDPBUSD. Only the fifth bits of kQ5_0 and kQ5_1 change: bit 4 t + j of 32 goes to byte j, bit t, so
// that a shift moves the bits of four neighbouring inputs to where their codes lie. Nothing is lost, and a panel has as
// many bytes as its rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// Makes a panel from `num_cols` <= 32 consecutive rows of blocks; the missing outputs are zeros. `rows` and `panel`
// must not overlap. REQUIRES: IsBlocks(format).
void InterleaveBlocks(WeightFormat format, const std::byte* rows, int64_t num_cols, int64_t inner_dim,
                      std::byte* panel);

// Copies block `block_idx` of output `col` (0..31) back from a panel: the bytes that InterleaveBlocks read.
void ExtractBlock(WeightFormat format, const std::byte* panel, int64_t block_idx, int64_t col, std::byte* target);

}  // namespace penstock
