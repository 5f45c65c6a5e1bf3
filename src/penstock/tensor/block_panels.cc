#include "penstock/tensor/block_panels.h"

#include <cstring>
#include <span>

#include "penstock/base/check.h"
#include "penstock/tensor/block_formats.h"

namespace penstock {
namespace {

// Consecutive bytes of a block that are interleaved in units of 1, 2 or 4 bytes. `begin`: where they lie in a panel's
// block, in bytes of an output; by default as in the block.
struct Piece {
  int16_t bytes;
  int8_t unit_bytes;
  bool are_fifth_bits = false;
  int16_t begin = -1;
};

template <WeightFormat kFormat>
constexpr Piece kPieces[] = {{0, 0}};
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
constexpr Piece kPieces<WeightFormat::kQ6_K>[] = {{128 + 64, 4, false, 18}, {16, 1, false, 2}, {2, 2, false, 0}};
template <>
constexpr Piece kPieces<WeightFormat::kQ4_1>[] = {{4, 2}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kQ5_0>[] = {{2, 2}, {4, 4, true}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kQ5_1>[] = {{4, 2}, {4, 4, true}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kQ2_K>[] = {{16, 1, false, 4}, {64, 4, false, 20}, {4, 2, false, 0}};
template <>
constexpr Piece kPieces<WeightFormat::kQ3_K>[] = {{32 + 64, 4, false, 14}, {12, 1, false, 2}, {2, 2, false, 0}};
template <>
constexpr Piece kPieces<WeightFormat::kIq4_Nl>[] = {{2, 2}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kIq4_Xs>[] = {{2, 2}, {2 + 4, 1}, {128, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kU4>[] = {{2, 2}, {1, 1}, {16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kNvfp4>[] = {{4, 4}, {16, 1}, {128, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kIq3_S>[] = {{2, 2}, {64 + 8 + 32, 4}, {4, 1}};
template <>
constexpr Piece kPieces<WeightFormat::kIq3_Xxs>[] = {{2, 2}, {64 + 32, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kIq2_S>[] = {{2, 2}, {32 + 32 + 8, 4}, {8, 1}};
template <>
constexpr Piece kPieces<WeightFormat::kIq2_Xs>[] = {{2, 2}, {64, 4}, {8, 1}};
template <>
constexpr Piece kPieces<WeightFormat::kIq2_Xxs>[] = {{2, 2}, {64, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kIq1_M>[] = {{32 + 16, 4}, {8, 2}};
template <>
constexpr Piece kPieces<WeightFormat::kIq1_S>[] = {{2, 2}, {32 + 16, 4}};
template <>
constexpr Piece kPieces<WeightFormat::kTq1_0>[] = {{48 + 4, 4, false, 2}, {2, 2, false, 0}};
template <>
constexpr Piece kPieces<WeightFormat::kTq2_0>[] = {{64, 4, false, 2}, {2, 2, false, 0}};

std::span<const Piece> PiecesOf(WeightFormat format) {
#define PENSTOCK_BLOCK_FORMAT(block_format, ...) \
  if (format == WeightFormat::k##block_format) return kPieces<WeightFormat::k##block_format>;
#include "penstock/tensor/weight_formats.def"
  PENSTOCK_CHECK(false);
}

constexpr int kMaxWords = 48;

// The places of a block's words in a panel, by their places in the block.
struct WordOrder {
  uint8_t places[kMaxWords] = {};
};
constexpr WordOrder OrderOf(WeightFormat format) {
  WordOrder order;
  const bool is_k4_to_6 =
      format == WeightFormat::kQ4_K || format == WeightFormat::kQ5_K || format == WeightFormat::kQ6_K;
  const int num_low = is_k4_to_6 ? 32 : 16;
  const int first_low = format == WeightFormat::kQ5_K || format == WeightFormat::kQ3_K ? 8 : 0;
  for (int second = 0; second < 2; ++second) {
    for (int quad = 0; quad < 8; ++quad) {
      const QuadWords words = QuadWordsOf(format, second, quad);
      for (int i = 0; i < num_low / 16; ++i) {
        order.places[first_low + num_low / 2 * second + 8 * i + quad] = static_cast<uint8_t>(words.low + i);
      }
      if (words.high < 0) continue;
      const int high = format == WeightFormat::kQ6_K ? 32 + 8 * second + quad : quad;
      order.places[high] = static_cast<uint8_t>(words.high);
    }
  }
  return order;
}

// Returns where unit `unit` of a piece goes, counted from the piece on.
int64_t PlaceOf(WeightFormat format, const Piece& piece, int64_t unit) {
  static constexpr WordOrder kQ2 = OrderOf(WeightFormat::kQ2_K), kQ3 = OrderOf(WeightFormat::kQ3_K),
                             kQ4 = OrderOf(WeightFormat::kQ4_K), kQ5 = OrderOf(WeightFormat::kQ5_K),
                             kQ6 = OrderOf(WeightFormat::kQ6_K);
  if (piece.unit_bytes != 4) return unit;
  switch (format) {
    case WeightFormat::kQ2_K: return kQ2.places[unit];
    case WeightFormat::kQ3_K: return kQ3.places[unit];
    case WeightFormat::kQ4_K: return kQ4.places[unit];
    case WeightFormat::kQ5_K: return kQ5.places[unit];
    case WeightFormat::kQ6_K: return kQ6.places[unit];
    default: return unit;
  }
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

// Writes a unit of one block for all outputs. `Unit` is a piece's unit.
template <typename Unit>
void Interleave(const std::byte* source, int64_t row_bytes, int64_t num_cols, std::byte* target) {
  Unit line[kPanelCols] = {};
  for (int64_t col = 0; col < num_cols; ++col) std::memcpy(&line[col], source + col * row_bytes, sizeof(Unit));
  std::memcpy(target, line, sizeof(line));
}

typedef uint32_t Words4 __attribute__((vector_size(16)));

// Writes four units of four bytes of all outputs, which are 32. For whole blocks this takes two thirds of the time.
void InterleaveFourWords(const std::byte* source, int64_t row_bytes, std::byte* first, std::byte* second,
                         std::byte* third, std::byte* fourth) {
  for (int64_t col = 0; col < kPanelCols; col += 4) {
    // GCC 12 did not unroll a loop over the rows, and panels took three times as long.
    const auto words_of = [&](int64_t row) {
      Words4 words;
      std::memcpy(&words, source + row * row_bytes, 16);
      return words;
    };
    const Words4 row_0 = words_of(col), row_1 = words_of(col + 1);
    const Words4 row_2 = words_of(col + 2), row_3 = words_of(col + 3);
    const Words4 a = __builtin_shufflevector(row_0, row_1, 0, 4, 1, 5);
    const Words4 b = __builtin_shufflevector(row_2, row_3, 0, 4, 1, 5);
    const Words4 c = __builtin_shufflevector(row_0, row_1, 2, 6, 3, 7);
    const Words4 d = __builtin_shufflevector(row_2, row_3, 2, 6, 3, 7);
    const Words4 of_first = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    const Words4 of_second = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    const Words4 of_third = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    const Words4 of_fourth = __builtin_shufflevector(c, d, 2, 3, 6, 7);
    std::memcpy(first + 4 * col, &of_first, 16);
    std::memcpy(second + 4 * col, &of_second, 16);
    std::memcpy(third + 4 * col, &of_third, 16);
    std::memcpy(fourth + 4 * col, &of_fourth, 16);
  }
}

void InterleaveFifthBits(const std::byte* source, int64_t row_bytes, int64_t num_cols, std::byte* target) {
  uint32_t line[kPanelCols] = {};
  for (int64_t col = 0; col < num_cols; ++col) {
    uint32_t bits;
    std::memcpy(&bits, source + col * row_bytes, 4);
    line[col] = SpreadFifthBits(bits);
  }
  std::memcpy(target, line, sizeof(line));
}

// Interleaves a piece of one block. `target`: the piece in the panel.
void InterleavePiece(WeightFormat format, const Piece& piece, const std::byte* source, int64_t row_bytes,
                     int64_t num_cols, std::byte* target) {
  if (piece.are_fifth_bits) return InterleaveFifthBits(source, row_bytes, num_cols, target);
  const int64_t unit_bytes = piece.unit_bytes, count = piece.bytes / unit_bytes;
  const auto target_of = [&](int64_t unit) { return target + PlaceOf(format, piece, unit) * unit_bytes * kPanelCols; };
  int64_t unit = 0;
  for (; unit_bytes == 4 && num_cols == kPanelCols && unit + 4 <= count; unit += 4) {
    InterleaveFourWords(source + 4 * unit, row_bytes, target_of(unit), target_of(unit + 1), target_of(unit + 2),
                        target_of(unit + 3));
  }
  for (; unit < count; ++unit) {
    const std::byte* own = source + unit * unit_bytes;
    if (unit_bytes == 4) {
      Interleave<uint32_t>(own, row_bytes, num_cols, target_of(unit));
    } else if (unit_bytes == 2) {
      Interleave<uint16_t>(own, row_bytes, num_cols, target_of(unit));
    } else {
      Interleave<uint8_t>(own, row_bytes, num_cols, target_of(unit));
    }
  }
}

// Calls body(piece, offset, begin) for each piece: where it lies in the block and in the panel's, in bytes of an
// output.
template <class Body>
void ForEachPiece(WeightFormat format, const Body& body) {
  int64_t offset = 0;
  for (const Piece& piece : PiecesOf(format)) {
    body(piece, offset, piece.begin >= 0 ? int64_t{piece.begin} : offset);
    offset += piece.bytes;
  }
}

}  // namespace

void InterleaveBlocks(WeightFormat format, const std::byte* rows, int64_t num_cols, int64_t inner_dim,
                      std::byte* panel) {
  PENSTOCK_CHECK(num_cols <= kPanelCols);
  const auto row_bytes = static_cast<int64_t>(BlockRowBytes(format, inner_dim));
  for (int64_t block = 0; block < row_bytes; block += BlockBytes(format)) {
    ForEachPiece(format, [&](const Piece& piece, int64_t offset, int64_t begin) {
      InterleavePiece(format, piece, rows + block + offset, row_bytes, num_cols, panel + (block + begin) * kPanelCols);
    });
  }
}

void ExtractBlock(WeightFormat format, const std::byte* panel, int64_t block_idx, int64_t col, std::byte* target) {
  const std::byte* block = panel + block_idx * BlockBytes(format) * kPanelCols;
  ForEachPiece(format, [&](const Piece& piece, int64_t offset, int64_t begin) {
    const int64_t unit_bytes = piece.unit_bytes;
    for (int64_t unit = 0; unit < piece.bytes / unit_bytes; ++unit) {
      const std::byte* line = block + (begin + PlaceOf(format, piece, unit) * unit_bytes) * kPanelCols;
      std::memcpy(target + offset + unit * unit_bytes, line + col * unit_bytes, static_cast<size_t>(unit_bytes));
    }
    if (piece.are_fifth_bits) {
      uint32_t spread;
      std::memcpy(&spread, target + offset, 4);
      const uint32_t bits = GatherFifthBits(spread);
      std::memcpy(target + offset, &bits, 4);
    }
  });
}

}  // namespace penstock
