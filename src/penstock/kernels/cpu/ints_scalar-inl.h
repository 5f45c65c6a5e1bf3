// Sixteen lanes of int32 and their products of codes: the definition that the other instruction sets follow.
#pragma once

#include "penstock/kernels/cpu/vec_scalar-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

struct ScalarInts {
  using Vec = ScalarVec;
  static constexpr int kRows = ScalarVec::kPanelRows;

  // Unsigned bytes, four neighbours for each lane.
  struct Codes {
    uint8_t bytes[64];
  };
  int32_t lanes[16];

  static ScalarInts Zero() { return {}; }
  static Codes Load(const std::byte* source) {
    Codes result;
    __builtin_memcpy(result.bytes, source, 64);
    return result;
  }
  static void Store(const Codes& codes, std::byte* target) { __builtin_memcpy(target, codes.bytes, 64); }
  static Codes And(const Codes& codes, int mask) {
    Codes result;
    for (int j = 0; j < 64; ++j) result.bytes[j] = static_cast<uint8_t>(codes.bytes[j] & mask);
    return result;
  }
  static Codes Or(const Codes& a, const Codes& b) {
    Codes result;
    for (int j = 0; j < 64; ++j) result.bytes[j] = a.bytes[j] | b.bytes[j];
    return result;
  }
  // Shifts may move bits in from a neighbouring byte; And() removes them.
  static Codes ShiftRight(const Codes& codes, int count) {
    Codes result;
    for (int j = 0; j < 64; ++j) result.bytes[j] = static_cast<uint8_t>(codes.bytes[j] >> count);
    return result;
  }
  static Codes ShiftLeft(const Codes& codes, int count) {
    Codes result;
    for (int j = 0; j < 64; ++j) result.bytes[j] = static_cast<uint8_t>(codes.bytes[j] << count);
    return result;
  }

  // Returns 3 / 256 of each code, rounded down: the first digit (tensor/ternary.h).
  static Codes FirstDigit(const Codes& codes) {
    Codes result;
    for (int j = 0; j < 64; ++j) result.bytes[j] = static_cast<uint8_t>(3 * codes.bytes[j] >> 8);
    return result;
  }
  // Returns 3 times each code, modulo 256: the next digit becomes the first.
  static Codes Triple(const Codes& codes) {
    Codes result;
    for (int j = 0; j < 64; ++j) result.bytes[j] = static_cast<uint8_t>(3 * codes.bytes[j]);
    return result;
  }
  static Codes Xor(const Codes& codes, int mask) {
    Codes result;
    for (int j = 0; j < 64; ++j) result.bytes[j] = static_cast<uint8_t>(codes.bytes[j] ^ mask);
    return result;
  }
  // Returns table[code] for codes below 16.
  static Codes Lookup(const uint8_t* table, const Codes& codes) {
    Codes result;
    for (int j = 0; j < 64; ++j) result.bytes[j] = table[codes.bytes[j]];
    return result;
  }
  // Returns codes - offset, modulo 256.
  static Codes Subtract(const Codes& codes, int offset) {
    Codes result;
    for (int j = 0; j < 64; ++j) result.bytes[j] = static_cast<uint8_t>(codes.bytes[j] - offset);
    return result;
  }

  // The next ones take codes as 16 words of 32 bits. Returns `count` bits of each word, from bit `first` on.
  static Codes Field(const Codes& codes, int first, int count) {
    return MapWords(codes, [&](uint32_t word) { return word >> first & ((uint32_t{1} << count) - 1); });
  }
  static Codes ShiftWordsLeft(const Codes& codes, int count) {
    return MapWords(codes, [&](uint32_t word) { return word << count; });
  }
  // Returns four fields of kBits bits, from bit `first` on, one in each byte.
  template <int kBits>
  static Codes Spread(const Codes& codes, int first) {
    return MapWords(codes, [&](uint32_t word) {
      uint32_t spread = 0;
      for (int i = 0; i < 4; ++i) spread |= (word >> (first + kBits * i) & ((1U << kBits) - 1)) << 8 * i;
      return spread;
    });
  }
  // Returns book[word].
  static Codes Entries(const uint32_t* book, const Codes& codes) {
    return MapWords(codes, [&](uint32_t word) { return book[word]; });
  }
  // Tells whether codebooks are looked up by permutes of bytes (ints_avx512-inl.h).
  static constexpr bool kHasBytePermutes = false;
  // Sets bit 7 of each byte so that the number of its bits is even. REQUIRES: bytes below 128.
  static Codes EvenBits(const Codes& codes) {
    Codes result;
    for (int j = 0; j < 64; ++j) {
      const unsigned own = codes.bytes[j], halves = own ^ own >> 4, pairs = halves ^ halves >> 2;
      result.bytes[j] = static_cast<uint8_t>(own | ((pairs ^ pairs >> 1) & 1) << 7);
    }
    return result;
  }
  // Negates byte i of a word if bit first + i of the same word in `signs` is set.
  static Codes Negate(const Codes& codes, const Codes& signs, int first) {
    Codes result;
    for (int j = 0; j < 64; ++j) {
      const bool is_negative = (signs.bytes[j / 4 * 4 + first / 8] >> (first % 8 + j % 4) & 1) != 0;
      result.bytes[j] = static_cast<uint8_t>(is_negative ? -codes.bytes[j] : codes.bytes[j]);
    }
    return result;
  }

  // Returns an int32 in all lanes.
  static ScalarInts Same(const std::byte* number) {
    int32_t value;
    __builtin_memcpy(&value, number, 4);
    ScalarInts result;
    for (int32_t& lane : result.lanes) lane = value;
    return result;
  }
  // Returns first * sums[0] + second * sums[1] in all lanes; `sums` are two neighbouring int16.
  static ScalarInts SumOfPair(const std::byte* sums, int first, int second) {
    int16_t pair[2];
    __builtin_memcpy(pair, sums, 4);
    ScalarInts result;
    for (int32_t& lane : result.lanes) lane = first * pair[0] + second * pair[1];
    return result;
  }

  // Tells whether DotInt8 multiplies codes as they are, so that its sum must start at -128 times the sum of x.
  static constexpr bool kDotsAreUnsigned = false;
  // Returns the start value for a sum of DotInt8. `code_offset` points to the row's offset (Int8RowGroup). Instruction
  // sets that multiply unsigned codes need it; this one does not.
  static ScalarInts StartInt8(const std::byte*) { return {}; }
  // Returns sum + (codes - 128) . x of each lane's four bytes; x are four signed bytes.
  static ScalarInts DotInt8(const Codes& codes, const std::byte* x, const ScalarInts& sum) {
    return Dot<128>(codes, x, sum);
  }
  // Returns sum + codes . x for codes below 128.
  static ScalarInts DotSmall(const Codes& codes, const std::byte* x, const ScalarInts& sum) {
    return Dot<0>(codes, x, sum);
  }

  // Tells whether products are added in 16 bits first (Pairs in ints_avx2-inl.h).
  static constexpr bool kAddsPairs = false;
  template <class V>
  V ToFloats() const {
    V result;
    for (int j = 0; j < 16; ++j) result.lanes[j] = static_cast<float>(lanes[j]);
    return result;
  }

 private:
  template <class Map>
  static Codes MapWords(const Codes& codes, const Map& map) {
    Codes result;
    for (int j = 0; j < 16; ++j) {
      uint32_t word;
      __builtin_memcpy(&word, codes.bytes + 4 * j, 4);
      word = map(word);
      __builtin_memcpy(result.bytes + 4 * j, &word, 4);
    }
    return result;
  }
  template <int kOffset>
  static ScalarInts Dot(const Codes& codes, const std::byte* x, const ScalarInts& sum) {
    ScalarInts result;
    for (int j = 0; j < 16; ++j) {
      int32_t total = sum.lanes[j];
      for (int i = 0; i < 4; ++i) total += (codes.bytes[4 * j + i] - kOffset) * static_cast<int8_t>(x[i]);
      result.lanes[j] = total;
    }
    return result;
  }
};

}  // namespace
}  // namespace penstock::kernels
