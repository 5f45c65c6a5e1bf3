// Decoding of compressed bf16 values (tensor/exponent_code.h), and the form that runs everywhere.
#pragma once

#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// The bits of the codes of a group: the low and the high one of each tier. A bit is set only where the tiers before
// hold their fourth code.
struct ExponentPlanes {
  uint64_t first[2], second[2], third[2];
};

inline uint64_t LoadWord(const std::byte* source) {
  uint64_t word;
  __builtin_memcpy(&word, source, sizeof(word));
  return word;
}

// Returns 64 bits of a tier from code `pos` on. `which`: 0 the low bits, 1 the high ones.
inline uint64_t TierBits(const std::byte* tier, uint64_t pos, int which) {
  const std::byte* word = tier + pos / 64 * 16 + 8 * which;
  const uint64_t shift = pos % 64;
  return LoadWord(word) >> shift | LoadWord(word + 16) << 1 << (63 - shift);
}

// `Form` has Deposit(bits, mask), which puts the lowest bits where `mask` has ones, and WriteGroup(planes, signs,
// target), which writes 64 values. Values with escapes may become anything.
template <class Form>
DecodedExponents DecodeExponents(const DecodeExponentsArgs& args) {
  const Form form(args.exponents);
  DecodedExponents decoded;
  for (int64_t group = 0; group < args.num_groups; ++group) {
    const std::byte* first = args.first + 16 * group;
    const std::byte* signs = args.signs + 64 * group;
    uint16_t* target = args.target + 64 * group;
    ExponentPlanes planes;
    planes.first[0] = LoadWord(first);
    planes.first[1] = LoadWord(first + 8);
    const uint64_t in_second = planes.first[0] & planes.first[1];
    planes.second[0] = Form::Deposit(TierBits(args.second, decoded.num_second, 0), in_second);
    planes.second[1] = Form::Deposit(TierBits(args.second, decoded.num_second, 1), in_second);
    decoded.num_second += static_cast<uint64_t>(__builtin_popcountll(in_second));
    const uint64_t in_third = planes.second[0] & planes.second[1];
    planes.third[0] = Form::Deposit(TierBits(args.third, decoded.num_third, 0), in_third);
    planes.third[1] = Form::Deposit(TierBits(args.third, decoded.num_third, 1), in_third);
    decoded.num_third += static_cast<uint64_t>(__builtin_popcountll(in_third));
    form.WriteGroup(planes, signs, target);
    for (uint64_t escaped = planes.third[0] & planes.third[1]; escaped != 0; escaped &= escaped - 1) {
      const int place = __builtin_ctzll(escaped);
      const auto sign = static_cast<unsigned>(signs[place]);
      const auto exponent = static_cast<unsigned>(args.escapes[decoded.num_escapes++]);
      target[place % 8 + place / 16 * 8 + place / 8 % 2 * 32] =
          static_cast<uint16_t>((sign & 0x80) << 8 | exponent << 7 | (sign & 0x7F));
    }
  }
  return decoded;
}

class ScalarExponents {
 public:
  explicit ScalarExponents(const uint8_t* exponents) : exponents_(exponents) {}

  static uint64_t Deposit(uint64_t bits, uint64_t mask) {
    uint64_t deposited = 0;
    for (; mask != 0; mask &= mask - 1, bits >>= 1) {
      if ((bits & 1) != 0) deposited |= mask & (0 - mask);
    }
    return deposited;
  }

  void WriteGroup(const ExponentPlanes& planes, const std::byte* signs, uint16_t* target) const {
    for (int value_idx = 0; value_idx < 64; ++value_idx) {
      const int place = value_idx % 8 + value_idx / 8 % 4 * 16 + value_idx / 32 * 8;
      const auto bit = [&](uint64_t plane) { return static_cast<unsigned>(plane >> place & 1); };
      const unsigned code = bit(planes.first[0]) + 2 * bit(planes.first[1]) + bit(planes.second[0]) +
                            2 * bit(planes.second[1]) + bit(planes.third[0]) + 2 * bit(planes.third[1]);
      const auto sign = static_cast<unsigned>(signs[place]);
      const unsigned exponent = code < 9 ? exponents_[code] : 0;
      target[value_idx] = static_cast<uint16_t>((sign & 0x80) << 8 | exponent << 7 | (sign & 0x7F));
    }
  }

 private:
  const uint8_t* exponents_;
};

}  // namespace
}  // namespace penstock::kernels
