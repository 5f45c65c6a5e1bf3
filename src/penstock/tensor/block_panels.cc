#include "penstock/tensor/block_panels.h"

#include <cstring>
#include <span>

#include "penstock/base/check.h"
#include "penstock/tensor/block_formats.h"

namespace penstock {
namespace {

// Consecutive bytes of a block that are interleaved in units of 1, 2 or 4 bytes.
struct Piece {
  int16_t bytes;
  int8_t unit_bytes;
  bool are_fifth_bits = false;
};

// The primary template is for slow formats, which kernels take apart again.
template <WeightFormat kFormat>
constexpr Piece kPieces[] = {{TraitsOf(kFormat).block_bytes, 2}};
template <>
constexpr Piece kPieces<WeightFormat::kFp8>[] = {{4 + 128, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kMxfp4>[] = {{1, 1}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kQ8_0>[] = {{2, 2}, {32, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kQ4_0>[] = {{2, 2}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kQ4_K>[] = {{4, 2}, {12, 1}, {128, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kQ5_K>[] = {{4, 2}, {12, 1}, {32 + 128, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kQ6_K>[] = {{128 + 64, 4}, {16, 1}, {2, 2}};
template <>
constexpr Piece kPieces<WeightFormat::kQ4_1>[] = {{4, 2}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kQ5_0>[] = {{2, 2}, {4, 4, true}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kQ5_1>[] = {{4, 2}, {4, 4, true}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kQ2_K>[] = {{16, 1}, {64, 4}, {4, 2}};
template <>
constexpr Piece kPieces<WeightFormat::kQ3_K>[] = {{32 + 64, 4}, {12, 1}, {2, 2}};
template <>
constexpr Piece kPieces<WeightFormat::kIq4_Nl>[] = {{2, 2}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kIq4_Xs>[] = {{2, 2}, {2 + 4, 1}, {128, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kU4>[] = {{2, 2}, {1, 1}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kNvfp4>[] = {{4, 4}, {16, 1}, {128, 4}};

std::span<const Piece> PiecesOf(WeightFormat format) {
#define PENSTOCK_BLOCK_FORMAT(block_format, ...) \
  if (format == WeightFormat::k##block_format) return kPieces<WeightFormat::k##block_format>;
#include "penstock/tensor/weight_formats.def"
  PENSTOCK_CHECK(false);
}

// Moves bit 4 t + j to bit 8 j + t.
uint32_t SpreadFifthBits(uint32_t bits) {
  uint32_t spread = 0;
  for (int j = 0; j < 4; ++j) {
    uint32_t every_fourth = bits >> j & 0x11111111;
    every_fourth = (every_fourth | every_fourth >> 3) & 0x03030303;
    every_fourth = (every_fourth | every_fourth >> 6) & 0x000F000F;
    every_fourth = (every_fourth | every_fourth >> 12) & 0xFF;
    spread |= every_fourth << 8 * j;
  }
  return spread;
}
uint32_t GatherFifthBits(uint32_t spread) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= (spread >> (i % 4 * 8 + i / 4) & 1) << i;
  return bits;
}

// Writes `count` units of one block for all outputs. `Unit` is a piece's unit.
template <typename Unit>
std::byte* Interleave(const std::byte* source, int64_t row_bytes, int64_t num_cols, int64_t count, std::byte* target) {
  Unit line[kPanelCols] = {};
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t col = 0; col < num_cols; ++col) {
      std::memcpy(&line[col], source + col * row_bytes + i * static_cast<int64_t>(sizeof(Unit)), sizeof(Unit));
    }
    std::memcpy(target, line, sizeof(line));
    target += sizeof(line);
  }
  return target;
}

typedef uint32_t Words4 __attribute__((vector_size(16)));

// Writes four units of four bytes of all outputs, which are 32.
void InterleaveFourWords(const std::byte* source, int64_t row_bytes, std::byte* target) {
  for (int64_t col = 0; col < kPanelCols; col += 4) {
    Words4 rows[4];
    for (int64_t i = 0; i < 4; ++i) std::memcpy(&rows[i], source + (col + i) * row_bytes, 16);
    const Words4 a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
    const Words4 b = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    const Words4 c = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
    const Words4 d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    const Words4 units[4] = {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
                             __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
    for (int64_t i = 0; i < 4; ++i) std::memcpy(target + i * 4 * kPanelCols + 4 * col, &units[i], 16);
  }
}

// Does what Interleave<uint32_t> does, with vectors for full panels: whole blocks take two thirds of the time.
std::byte* InterleaveWords(const std::byte* source, int64_t row_bytes, int64_t num_cols, int64_t count,
                           std::byte* target) {
  int64_t done = 0;
  for (; num_cols == kPanelCols && done + 4 <= count; done += 4) {
    InterleaveFourWords(source + 4 * done, row_bytes, target);
    target += 16 * kPanelCols;
  }
  return Interleave<uint32_t>(source + 4 * done, row_bytes, num_cols, count - done, target);
}

std::byte* InterleaveFifthBits(const std::byte* source, int64_t row_bytes, int64_t num_cols, std::byte* target) {
  uint32_t line[kPanelCols] = {};
  for (int64_t col = 0; col < num_cols; ++col) {
    uint32_t bits;
    std::memcpy(&bits, source + col * row_bytes, 4);
    line[col] = SpreadFifthBits(bits);
  }
  std::memcpy(target, line, sizeof(line));
  return target + sizeof(line);
}

}  // namespace

void InterleaveBlocks(WeightFormat format, const std::byte* rows, int64_t num_cols, int64_t inner_dim,
                      std::byte* panel) {
  PENSTOCK_CHECK(num_cols <= kPanelCols);
  const auto row_bytes = static_cast<int64_t>(BlockRowBytes(format, inner_dim));
  const std::span<const Piece> pieces = PiecesOf(format);
  for (int64_t offset = 0; offset < row_bytes;) {
    for (const Piece& piece : pieces) {
      const std::byte* source = rows + offset;
      const int64_t count = piece.bytes / piece.unit_bytes;
      if (piece.are_fifth_bits) {
        panel = InterleaveFifthBits(source, row_bytes, num_cols, panel);
      } else if (piece.unit_bytes == 4) {
        panel = InterleaveWords(source, row_bytes, num_cols, count, panel);
      } else if (piece.unit_bytes == 2) {
        panel = Interleave<uint16_t>(source, row_bytes, num_cols, count, panel);
      } else {
        panel = Interleave<uint8_t>(source, row_bytes, num_cols, count, panel);
      }
      offset += piece.bytes;
    }
  }
}

void ExtractBlock(WeightFormat format, const std::byte* panel, int64_t block_idx, int64_t col, std::byte* target) {
  const std::byte* source = panel + block_idx * BlockBytes(format) * kPanelCols;
  for (const Piece& piece : PiecesOf(format)) {
    const int64_t unit_bytes = piece.unit_bytes;
    for (int64_t i = 0; i < piece.bytes; i += unit_bytes) {
      std::memcpy(target + i, source + i * kPanelCols + col * unit_bytes, static_cast<size_t>(unit_bytes));
    }
    if (piece.are_fifth_bits) {
      uint32_t spread;
      std::memcpy(&spread, target, 4);
      const uint32_t bits = GatherFifthBits(spread);
      std::memcpy(target, &bits, 4);
    }
    source += piece.bytes * kPanelCols;
    target += piece.bytes;
  }
}

}  // namespace penstock
