#include "penstock/tensor/codebook_formats.h"

#include <bit>
#include <cstring>

#include "penstock/tensor/dtype.h"

namespace penstock {
namespace {

#include "penstock/tensor/codebooks.inc"

constexpr float kIq1Delta = 0.125f;

uint32_t Byte(const std::byte* source, int64_t idx) { return static_cast<uint32_t>(source[idx]); }
uint32_t Half(const std::byte* source, int64_t idx) { return Byte(source, 2 * idx) | Byte(source, 2 * idx + 1) << 8; }
uint32_t Word(const std::byte* source, int64_t idx) { return Half(source, 2 * idx) | Half(source, 2 * idx + 1) << 16; }
float LoadF16(const std::byte* source) { return ToFloat(F16{static_cast<uint16_t>(Half(source, 0))}); }
uint32_t Nibble(const std::byte* source, int64_t idx) { return Byte(source, idx / 2) >> (idx % 2 * 4) & 15; }

// Files store 7 of 8 signs. The eighth makes the number of minuses even.
uint32_t EightSigns(uint32_t seven) { return seven | (static_cast<uint32_t>(std::popcount(seven)) & 1) << 7; }

float Signed(float magnitude, uint32_t signs, int i) { return (signs >> i & 1) != 0 ? -magnitude : magnitude; }

void PutIq2(float scale, uint16_t entry, uint32_t signs, float* target) {
  for (int i = 0; i < 8; ++i) target[i] = Signed(scale * kIq2Values[entry >> 2 * i & 3], signs, i);
}

// Writes 8 weights of two entries.
void PutIq3(float scale, uint16_t first, uint16_t second, const uint8_t (&values)[8], uint32_t signs, float* target) {
  for (int i = 0; i < 8; ++i) {
    const uint16_t entry = i < 4 ? first : second;
    target[i] = Signed(scale * values[entry >> 3 * (i % 4) & 7], signs, i);
  }
}

void PutIq1(float scale, uint16_t entry, bool is_below, float* target) {
  const float delta = is_below ? -kIq1Delta : kIq1Delta;
  for (int i = 0; i < 8; ++i) target[i] = scale * (static_cast<float>(entry >> 2 * i & 3) - 1 + delta);
}

}  // namespace

// Every 32 weights have four entries in bytes, then a word with 4 x 7 signs and the scale.
void DequantiseIq2_Xxs(const std::byte* source, float* target) {
  const float scale_of_scales = LoadF16(source);
  for (int64_t group = 0; group < 8; ++group) {
    const std::byte* entries = source + 2 + 8 * group;
    const uint32_t word = Word(entries, 1);
    const float scale = scale_of_scales * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
    for (int64_t i = 0; i < 4; ++i) {
      PutIq2(scale, kIq2XxsBook[Byte(entries, i)], EightSigns(word >> 7 * i & 127), target + 32 * group + 8 * i);
    }
  }
}

// 8 weights have 9 bits of entry and 7 signs; 16 weights share a scale.
void DequantiseIq2_Xs(const std::byte* source, float* target) {
  const float scale_of_scales = LoadF16(source);
  const std::byte* scales = source + 2 + 64;
  for (int64_t i = 0; i < 32; ++i) {
    const uint32_t code = Half(source + 2, i);
    const float scale = scale_of_scales * (0.5f + static_cast<float>(Nibble(scales, i / 2))) * 0.25f;
    PutIq2(scale, kIq2XsBook[code & 511], EightSigns(code >> 9), target + 8 * i);
  }
}

// Low 8 bits of entries, signs, high 2 bits of entries, scales of 16 weights.
void DequantiseIq2_S(const std::byte* source, float* target) {
  const float scale_of_scales = LoadF16(source);
  const std::byte *low = source + 2, *signs = low + 32, *high = signs + 32, *scales = high + 8;
  for (int64_t i = 0; i < 32; ++i) {
    const uint32_t entry = Byte(low, i) | (Byte(high, i / 4) >> (i % 4 * 2) & 3) << 8;
    const float scale = scale_of_scales * (0.5f + static_cast<float>(Nibble(scales, i / 2))) * 0.25f;
    PutIq2(scale, kIq2SBook[entry], Byte(signs, i), target + 8 * i);
  }
}

// Entries of 4 weights, then for every 32 weights a word with 4 x 7 signs and the scale.
void DequantiseIq3_Xxs(const std::byte* source, float* target) {
  const float scale_of_scales = LoadF16(source);
  const std::byte *entries = source + 2, *words = entries + 64;
  for (int64_t i = 0; i < 32; ++i) {
    const uint32_t word = Word(words, i / 4);
    const float scale = scale_of_scales * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    PutIq3(scale, kIq3XxsBook[Byte(entries, 2 * i)], kIq3XxsBook[Byte(entries, 2 * i + 1)], kIq3XxsValues,
           EightSigns(word >> 7 * (i % 4) & 127), target + 8 * i);
  }
}

// Low 8 bits of entries of 4 weights, their ninth bits, signs, scales of 32 weights.
void DequantiseIq3_S(const std::byte* source, float* target) {
  const float scale_of_scales = LoadF16(source);
  const std::byte *low = source + 2, *high = low + 64, *signs = high + 8, *scales = signs + 32;
  const auto entry = [&](int64_t i) { return kIq3SBook[Byte(low, i) | (Byte(high, i / 8) >> (i % 8) & 1) << 8]; };
  for (int64_t i = 0; i < 32; ++i) {
    const float scale = scale_of_scales * static_cast<float>(1 + 2 * Nibble(scales, i / 4));
    PutIq3(scale, entry(2 * i), entry(2 * i + 1), kIq3SValues, Byte(signs, i), target + 8 * i);
  }
}

// Low 8 bits of entries; for every 32 weights 4 x 3 high bits, the scale, and whether the values lie lower or higher.
void DequantiseIq1_S(const std::byte* source, float* target) {
  const float scale_of_scales = LoadF16(source);
  const std::byte *low = source + 2, *highs = low + 32;
  for (int64_t i = 0; i < 32; ++i) {
    const uint32_t high = Half(highs, i / 4);
    const float scale = scale_of_scales * static_cast<float>(2 * (high >> 12 & 7) + 1);
    const uint32_t entry = Byte(low, i) | (high >> (i % 4 * 3) & 7) << 8;
    PutIq1(scale, kIq1Book[entry], (high & 0x8000) != 0, target + 8 * i);
  }
}

// As Iq1_S, with 4 bits for each entry and scales of 16 weights. The f16 scale lies in the upper 4 bits of four halves.
void DequantiseIq1_M(const std::byte* source, float* target) {
  const std::byte *highs = source + 32, *scales = highs + 16;
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= Half(scales, i) >> 12 << 4 * i;
  const float scale_of_scales = ToFloat(F16{static_cast<uint16_t>(bits)});
  for (int64_t i = 0; i < 32; ++i) {
    const uint32_t high = Nibble(highs, i), code = Half(scales, i / 8) >> (i / 2 % 4 * 3) & 7;
    const float scale = scale_of_scales * static_cast<float>(2 * code + 1);
    PutIq1(scale, kIq1Book[Byte(source, i) | (high & 7) << 8], (high & 8) != 0, target + 8 * i);
  }
}

// A byte holds five digits to base 3 as a fraction of 256: each is the integer part of 3 times what is left of the
// fraction. The last four bytes hold four digits each.
void DequantiseTq1_0(const std::byte* source, float* target) {
  constexpr uint32_t kPowers[] = {1, 3, 9, 27, 81};
  const float scale = LoadF16(source + 52);
  const auto put = [&](int64_t first_byte, int64_t num_bytes, int num_digits) {
    for (int digit = 0; digit < num_digits; ++digit) {
      for (int64_t i = 0; i < num_bytes; ++i) {
        const uint32_t fraction = Byte(source, first_byte + i) * kPowers[digit] & 255;
        *target++ = scale * (static_cast<float>(fraction * 3 >> 8) - 1);
      }
    }
  };
  put(0, 32, 5);
  put(32, 16, 5);
  put(48, 4, 4);
}

void DequantiseTq2_0(const std::byte* source, float* target) {
  const float scale = LoadF16(source + 64);
  for (int64_t i = 0; i < 256; ++i) {
    const uint32_t code = Byte(source, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    target[i] = scale * (static_cast<float>(code) - 1);
  }
}

}  // namespace penstock
