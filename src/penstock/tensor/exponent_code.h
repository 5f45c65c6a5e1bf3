// Lossless compression of bf16 values: their exponents become a prefix code, sign and mantissa stay as they are.
//
// Trained weights use few exponents: a dozen of the 256 hold nearly all of them, so that an exponent has about 2.6 bits
// of information. The code has three tiers of two bits. In each tier, three codes name an exponent and the fourth one
// says that the next tier follows; behind the third tier, that is the exponent itself, a byte:
//
//   the 3 most frequent exponents   2 bits
//   the next 3                      4 bits
//   the next 3                      6 bits
//   all others                      14 bits
//
// Values are coded in blocks of 16,384 (32 KiB), the last one of fewer. A block is complete in itself: it can be
// checked and decoded alone, and says where the next one begins. Within a block, 64 values are a group. All bits of one
// kind lie together, so that decoders work on 64 values at a time:
//
//   header    32 bytes (ExponentBlock)
//   first     for each group two words of 64 bits: the low and the high bits of the first tier's codes
//   signs     for each group 64 bytes: sign and mantissa of each value
//   second    the codes of the second tier, in the order of their values, in pairs of words as in `first`
//   third     likewise
//   escapes   the exponents that no code names, a byte each
//   zeros     up to a multiple of 32 bytes
//
// In a group, value 8 i + j of its first 32 is at place 16 i + j, and of its last 32 at place 16 i + 8 + j (j < 8). So
// interleaving two vectors of bytes within lanes of 16 bytes gives values in their order.
//
// A block that would not become smaller is stored: a header, and the values as they were.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"

namespace penstock {

inline constexpr int64_t kExponentGroup = 64;                        // values
inline constexpr uint64_t kExponentGroupBytes = 2 * kExponentGroup;  // before compression
inline constexpr uint64_t kExponentBlockBytes = 32 * kKiB;           // before compression
inline constexpr uint64_t kExponentHeaderBytes = 32, kExponentAlignment = 32;
inline constexpr int kExponentCodes = 9;  // exponents that codes name
// A decoder may read so many bytes from the start of a block whose header was accepted, whatever the block holds.
inline constexpr uint64_t kExponentScratchBytes = 48 * kKiB;

// Returns the place within a group of its value `value_idx`.
constexpr int64_t ExponentPlace(int64_t value_idx) {
  return value_idx % 8 + value_idx / 8 % 4 * 16 + value_idx / 32 * 8;
}

// The header of a block, in this order, little-endian.
struct ExponentBlock {
  uint32_t block_bytes = 0;  // with the header
  uint16_t num_second = 0;   // values whose code goes on in the second tier
  uint16_t num_third = 0;
  uint16_t num_escapes = 0;
  uint8_t is_coded = 0;                                // 0: stored
  std::array<uint8_t, kExponentCodes> exponents = {};  // by code, the most frequent one first
  uint32_t zero = 0;
  uint64_t xxh3 = 0;  // checksum of the values

  // Return the offsets of the parts of a coded block of `num_groups`, from the start of the block.
  static constexpr uint64_t first_offset() { return kExponentHeaderBytes; }
  static constexpr uint64_t signs_offset(int64_t num_groups) {
    return first_offset() + 16 * static_cast<uint64_t>(num_groups);
  }
  static constexpr uint64_t second_offset(int64_t num_groups) {
    return signs_offset(num_groups) + kExponentGroup * static_cast<uint64_t>(num_groups);
  }
  uint64_t third_offset(int64_t num_groups) const {
    return second_offset(num_groups) + 16 * CeilDiv(num_second, kExponentGroup);
  }
  uint64_t escapes_offset(int64_t num_groups) const {
    return third_offset(num_groups) + 16 * CeilDiv(num_third, kExponentGroup);
  }
};

// Parses the header of the block at the start of `bytes`, which may be anything. Returns nullopt when it cannot be a
// block of `num_groups` groups, or reaches beyond `bytes`. REQUIRES: 1 <= num_groups <= those of a whole block.
std::optional<ExponentBlock> ParseExponentBlock(std::span<const std::byte> bytes, int64_t num_groups);

// Appends one block. REQUIRES: `values` are whole groups, at least one and at most kExponentBlockBytes.
void AppendExponentBlock(std::span<const std::byte> values, std::vector<std::byte>& target);

// Returns the most bytes that values of this size may take. They do so if no block becomes smaller.
constexpr uint64_t MaxCompressedBytes(uint64_t value_bytes) {
  return value_bytes + CeilDiv(value_bytes, kExponentBlockBytes) * kExponentHeaderBytes;
}

// Values can be decoded in place, block by block, if the compressed bytes begin at least so far behind the target: no
// block is then written over a later one. If the values of a block reach into the block itself, it must be copied aside
// first. REQUIRES: compressed_bytes <= MaxCompressedBytes(value_bytes).
constexpr uint64_t InPlaceDistance(uint64_t value_bytes, uint64_t compressed_bytes) {
  return MaxCompressedBytes(value_bytes) - compressed_bytes;
}

}  // namespace penstock
