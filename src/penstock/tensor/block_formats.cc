#include "penstock/tensor/block_formats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "penstock/base/check.h"
#include "penstock/tensor/codebook_formats.h"
#include "penstock/tensor/dtype.h"

namespace penstock {
namespace {

uint32_t Byte(const std::byte* source, int64_t idx) { return static_cast<uint32_t>(source[idx]); }
float SignedByte(const std::byte* source, int64_t idx) { return static_cast<float>(static_cast<int8_t>(source[idx])); }

float LoadF16(const std::byte* source) {
  return ToFloat(F16{static_cast<uint16_t>(Byte(source, 0) | Byte(source, 1) << 8)});
}

// Rounds to nearest, ties to even; NaN stays NaN.
void StoreF16(float x, std::byte* target) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t half = 0;
  if (magnitude > 0x7F800000) {
    half = 0x7E00;
  } else if (magnitude >= 0x477FF000) {  // 65520, half way from the largest f16 to the next power
    half = 0x7C00;
  } else if (magnitude < 0x38800000) {  // subnormal: one unit is the last bit of floats from 0.5 on
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    half = (magnitude + 0xFFF + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  }
  half |= bits >> 16 & 0x8000;
  target[0] = static_cast<std::byte>(half & 0xFF);
  target[1] = static_cast<std::byte>(half >> 8);
}

void DequantiseQ8_0(const std::byte* source, float* target) {
  const float scale = LoadF16(source);
  for (int64_t i = 0; i < 32; ++i) target[i] = SignedByte(source, 2 + i) * scale;
}

void DequantiseQ4_0(const std::byte* source, float* target) {
  const float scale = LoadF16(source);
  for (int64_t i = 0; i < 16; ++i) {
    const uint32_t codes = Byte(source, 2 + i);
    target[i] = scale * (static_cast<float>(codes & 15) - 8);
    target[i + 16] = scale * (static_cast<float>(codes >> 4) - 8);
  }
}

void DequantiseQ4_1(const std::byte* source, float* target) {
  const float scale = LoadF16(source), min = LoadF16(source + 2);
  for (int64_t i = 0; i < 16; ++i) {
    const uint32_t codes = Byte(source, 4 + i);
    target[i] = scale * static_cast<float>(codes & 15) + min;
    target[i + 16] = scale * static_cast<float>(codes >> 4) + min;
  }
}

// Returns weight i of a block of kQ5_0 or kQ5_1. Its fifth bit is bit i of the four bytes before the low bits.
float FiveBits(const std::byte* fifths, int64_t i) {
  const uint32_t low = Byte(fifths, 4 + i % 16) >> (i / 16 * 4) & 15;
  return static_cast<float>(low | (Byte(fifths, i / 8) >> (i % 8) & 1) << 4);
}

void DequantiseQ5_0(const std::byte* source, float* target) {
  const float scale = LoadF16(source);
  for (int64_t i = 0; i < 32; ++i) target[i] = scale * (FiveBits(source + 2, i) - 16);
}

void DequantiseQ5_1(const std::byte* source, float* target) {
  const float scale = LoadF16(source), min = LoadF16(source + 2);
  for (int64_t i = 0; i < 32; ++i) target[i] = scale * FiveBits(source + 4, i) + min;
}

// In every 64 weights, the low halves of 32 bytes hold the first 32 weights and the high halves the others.
void DequantiseQ4_K(const std::byte* source, float* target) {
  const KGroups groups = ReadKGroups(source);
  const std::byte* codes = source + 16;
  for (int64_t i = 0; i < 256; ++i) {
    const uint32_t code = Byte(codes, i / 64 * 32 + i % 32) >> (i / 32 % 2 * 4) & 15;
    target[i] = groups.scales[i / 32] * static_cast<float>(code) - groups.minima[i / 32];
  }
}

// As Q4_K, with a fifth bit: weight i of group g has it in bit g of byte i of 32.
void DequantiseQ5_K(const std::byte* source, float* target) {
  const KGroups groups = ReadKGroups(source);
  const std::byte* fifths = source + 16;
  const std::byte* codes = fifths + 32;
  for (int64_t i = 0; i < 256; ++i) {
    const uint32_t low = Byte(codes, i / 64 * 32 + i % 32) >> (i / 32 % 2 * 4) & 15;
    const uint32_t fifth = Byte(fifths, i % 32) >> (i / 32) & 1;
    target[i] = groups.scales[i / 32] * static_cast<float>(low | fifth << 4) - groups.minima[i / 32];
  }
}

// A block is two halves of 128 weights. In each half, weight i has its low 4 bits in byte i % 64 of 64, and its high 2
// bits in byte i % 32 of 32.
void DequantiseQ6_K(const std::byte* source, float* target) {
  const std::byte* low = source;
  const std::byte* high = low + 128;
  const std::byte* scales = high + 64;
  const float scale_of_scales = LoadF16(scales + 16);
  for (int64_t i = 0; i < 256; ++i) {
    const int64_t half = i / 128;
    const uint32_t low_bits = Byte(low, half * 64 + i % 64) >> (i % 128 / 64 * 4) & 15;
    const uint32_t high_bits = Byte(high, half * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    const float scale = scale_of_scales * SignedByte(scales, i / 16);
    target[i] = scale * (static_cast<float>(low_bits | high_bits << 4) - 32);
  }
}

// Bytes 0 to 7 hold the low 4 bits of scales 0 to 7, and of 8 to 15 in their high halves; bytes 8 to 11 hold the high 2
// bits of every fourth scale.
int Q3Scale(const std::byte* packed, int64_t i) {
  const uint32_t low = Byte(packed, i % 8) >> (i / 8 * 4) & 15, high = Byte(packed, 8 + i % 4) >> (i / 4 * 2) & 3;
  return static_cast<int>(low | high << 4) - 32;
}

// Two bytes hold the high 2 bits of the 8 scales, and four bytes their low 4 bits.
int Iq4Scale(const std::byte* packed, int64_t i) {
  const uint32_t high = Byte(packed, i / 4) >> (i % 4 * 2) & 3, low = Byte(packed, 2 + i / 2) >> (i % 2 * 4) & 15;
  return static_cast<int>(low | high << 4) - 32;
}

// Each half of 128 weights has 32 bytes of codes: weight i has 2 bits of byte i % 32.
uint32_t TwoBits(const std::byte* codes, int64_t i) {
  return Byte(codes, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
}

void DequantiseQ2_K(const std::byte* source, float* target) {
  const std::byte* codes = source + 16;
  const float scale_of_scales = LoadF16(codes + 64), scale_of_minima = LoadF16(codes + 66);
  for (int64_t i = 0; i < 256; ++i) {
    const uint32_t both = Byte(source, i / 16);
    const float scale = scale_of_scales * static_cast<float>(both & 15);
    const float min = scale_of_minima * static_cast<float>(both >> 4);
    target[i] = scale * static_cast<float>(TwoBits(codes, i)) - min;
  }
}

// The high bit of weight i of group g (32 weights) is bit g of byte i of 32; without it the code is 4 less.
void DequantiseQ3_K(const std::byte* source, float* target) {
  const std::byte* codes = source + 32;
  const float scale_of_scales = LoadF16(codes + 64 + 12);
  for (int64_t i = 0; i < 256; ++i) {
    const uint32_t high = Byte(source, i % 32) >> (i / 32) & 1;
    const float scale = scale_of_scales * static_cast<float>(Q3Scale(codes + 64, i / 16));
    target[i] = scale * (static_cast<float>(TwoBits(codes, i) | high << 2) - 4);
  }
}

// Writes 32 weights with codes in 16 bytes.
void DequantiseIq4(const std::byte* codes, float scale, float* target) {
  for (int64_t i = 0; i < 16; ++i) {
    target[i] = scale * static_cast<float>(kIq4Values[Byte(codes, i) & 15]);
    target[i + 16] = scale * static_cast<float>(kIq4Values[Byte(codes, i) >> 4]);
  }
}

void DequantiseIq4_Nl(const std::byte* source, float* target) { DequantiseIq4(source + 2, LoadF16(source), target); }

void DequantiseIq4_Xs(const std::byte* source, float* target) {
  const float scale = LoadF16(source);
  for (int64_t group = 0; group < 8; ++group) {
    DequantiseIq4(source + 8 + 16 * group, scale * static_cast<float>(Iq4Scale(source + 2, group)),
                  target + 32 * group);
  }
}

void DequantiseFp8(const std::byte* source, float* target) {
  float scale;
  std::memcpy(&scale, source, sizeof(scale));
  for (int64_t i = 0; i < 128; ++i) target[i] = ToFloat(F8E4M3{static_cast<uint8_t>(source[4 + i])}) * scale;
}

void DequantiseMxfp4(const std::byte* source, float* target) {
  const float scale = HalfPower(static_cast<uint8_t>(source[0]));
  for (int64_t i = 0; i < 16; ++i) {
    const uint32_t codes = Byte(source, 1 + i);
    target[i] = scale * static_cast<float>(kE2M1Halves[codes & 15]);
    target[i + 16] = scale * static_cast<float>(kE2M1Halves[codes >> 4]);
  }
}

// Every product of code and scale is exact, and so is every difference.
void DequantiseU4(const std::byte* source, float* target) {
  const float scale = LoadF16(source), min = -scale * static_cast<float>(Byte(source, 2));
  for (int64_t i = 0; i < 16; ++i) {
    const uint32_t codes = Byte(source, 3 + i);
    target[i] = scale * static_cast<float>(codes & 15) + min;
    target[i + 16] = scale * static_cast<float>(codes >> 4) + min;
  }
}

// The codes count halves. Halving the scale of scales changes no bit of the weights, unless they are subnormal.
void DequantiseNvfp4(const std::byte* source, float* target) {
  float scale_of_scales;
  std::memcpy(&scale_of_scales, source, sizeof(scale_of_scales));
  for (int64_t i = 0; i < 256; ++i) {
    const float scale = 0.5f * scale_of_scales * ToFloat(F8E4M3{static_cast<uint8_t>(source[4 + i / 16])});
    const uint32_t code = Byte(source, 20 + i / 32 * 16 + i % 16) >> (i % 32 / 16 * 4) & 15;
    target[i] = scale * static_cast<float>(kE2M1Halves[code]);
  }
}

void DequantiseBlock(WeightFormat format, const std::byte* source, float* target) {
#define PENSTOCK_BLOCK_FORMAT(block_format, ...) \
  if (format == WeightFormat::k##block_format) return Dequantise##block_format(source, target);
#include "penstock/tensor/weight_formats.def"
  PENSTOCK_CHECK(false);
}

// Returns 1 / scale, or 0 if there is no finite inverse: the scale is 0, NaN or infinite, or its inverse overflows.
float Inverse(float scale) {
  const float inverse = 1 / scale;
  return std::isfinite(inverse) ? inverse : 0;
}

void QuantiseQ8_0(const float* source, std::byte* target) {
  float largest = 0;
  for (int64_t i = 0; i < 32; ++i) {
    const float magnitude = std::abs(source[i]);
    if (magnitude > largest || std::isnan(magnitude)) largest = magnitude;  // a NaN stays once it is found
  }
  const float scale = largest / 127;
  const float inverse = Inverse(scale);
  StoreF16(scale, target);
  for (int64_t i = 0; i < 32; ++i) {
    const float code = std::round(source[i] * inverse);
    target[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::isnan(code) ? 0 : code));
  }
}

void QuantiseQ4_0(const float* source, std::byte* target) {
  float largest = source[0];  // largest by magnitude, with its sign; of equal ones the first
  for (int64_t i = 1; i < 32; ++i) {
    if (std::isnan(largest)) break;
    if (std::abs(source[i]) > std::abs(largest) || std::isnan(source[i])) largest = source[i];
  }
  const float scale = largest / -8;
  const float inverse = Inverse(scale);
  const auto encode = [inverse](float weight) {
    const float exact = weight * inverse + 8.5f;
    return std::isnan(exact) ? 0u : std::min(static_cast<uint32_t>(exact), 15u);
  };
  StoreF16(scale, target);
  for (int64_t i = 0; i < 16; ++i)
    target[2 + i] = static_cast<std::byte>(encode(source[i]) | encode(source[i + 16]) << 4);
}

int64_t NumBlocks(WeightFormat format, size_t num_bytes, size_t num_weights) {
  PENSTOCK_CHECK(IsBlocks(format));
  const int64_t num_blocks = static_cast<int64_t>(num_bytes) / BlockBytes(format);
  PENSTOCK_CHECK(static_cast<int64_t>(num_bytes) == num_blocks * BlockBytes(format));
  PENSTOCK_CHECK(static_cast<int64_t>(num_weights) == num_blocks * BlockElements(format));
  return num_blocks;
}

}  // namespace

// Bytes 0 to 3 hold the low 6 bits of scales 0 to 3, bytes 4 to 7 those of minima 0 to 3. Bytes 8 to 11 hold the low 4
// bits of scales and minima 4 to 7; their high 2 bits are the high bits of bytes 0 to 7.
KGroups ReadKGroups(const std::byte* block) {
  KGroups groups;
  const float scale = LoadF16(block), scale_of_minima = LoadF16(block + 2);
  const std::byte* packed = block + 4;
  for (int64_t i = 0; i < 4; ++i) {
    const uint32_t of_scale = Byte(packed, i), of_min = Byte(packed, i + 4), of_both = Byte(packed, i + 8);
    groups.scales[i] = scale * static_cast<float>(of_scale & 63);
    groups.minima[i] = scale_of_minima * static_cast<float>(of_min & 63);
    groups.scales[i + 4] = scale * static_cast<float>((of_both & 15) | of_scale >> 6 << 4);
    groups.minima[i + 4] = scale_of_minima * static_cast<float>(of_both >> 4 | of_min >> 6 << 4);
  }
  return groups;
}

float HalfPower(uint8_t power) {
  return std::bit_cast<float>(power < 2 ? 0x00200000u << power : static_cast<uint32_t>(power - 1) << 23);
}

void DequantiseBlocks(WeightFormat format, std::span<const std::byte> source, std::span<float> target) {
  const int64_t num_blocks = NumBlocks(format, source.size(), target.size());
  for (int64_t block = 0; block < num_blocks; ++block) {
    DequantiseBlock(format, source.data() + block * BlockBytes(format), target.data() + block * BlockElements(format));
  }
}

void DequantiseRow(WeightFormat format, const std::byte* row, std::span<float> target) {
  const size_t elements = BlockElements(format);
  for (; target.size() >= elements; target = target.subspan(elements)) {
    DequantiseBlock(format, row, target.data());
    row += BlockBytes(format);
  }
  if (target.empty()) return;
  float last[256];
  DequantiseBlock(format, row, last);
  std::copy_n(last, target.size(), target.data());
}

void QuantiseBlocks(WeightFormat format, std::span<const float> source, std::span<std::byte> target) {
  PENSTOCK_CHECK(format == WeightFormat::kQ8_0 || format == WeightFormat::kQ4_0);
  const int64_t num_blocks = NumBlocks(format, target.size(), source.size());
  for (int64_t block = 0; block < num_blocks; ++block) {
    const float* weights = source.data() + block * BlockElements(format);
    std::byte* bytes = target.data() + block * BlockBytes(format);
    format == WeightFormat::kQ8_0 ? QuantiseQ8_0(weights, bytes) : QuantiseQ4_0(weights, bytes);
  }
}

void MakeFp8Row(std::span<const std::byte> codes, std::span<const float> scales, int64_t group, std::byte* target) {
  constexpr size_t kCodes = 128;
  for (size_t first = 0; first < codes.size(); first += kCodes) {
    const std::span<const std::byte> own = codes.subspan(first, std::min(codes.size() - first, kCodes));
    std::memcpy(target, &scales[first / static_cast<size_t>(group)], sizeof(float));
    std::memset(std::copy(own.begin(), own.end(), target + sizeof(float)), 0, kCodes - own.size());
    target += sizeof(float) + kCodes;
  }
}

namespace {

// Reorders 32 codes of four bits: from neighbours in a byte to weights i and i + 16 in a byte.
void InterleaveHalves(const std::byte* codes, std::byte* target) {
  for (size_t i = 0; i < 16; ++i) {
    const int shift = i % 2 == 0 ? 0 : 4;
    const std::byte low = codes[i / 2] >> shift & std::byte{15}, high = codes[8 + i / 2] >> shift & std::byte{15};
    *target++ = low | high << 4;
  }
}

constexpr size_t kSmallCodeBytes = 16;  // of 32 codes of four bits

// Reorders 32 codes of a row, from byte `first` on. `missing` stands for two codes behind the row's last one.
void InterleaveFrom(std::span<const std::byte> codes, size_t first, std::byte missing, std::byte* target) {
  std::byte block[kSmallCodeBytes];
  const size_t begin = std::min(first, codes.size());
  const std::span<const std::byte> own = codes.subspan(begin, std::min(kSmallCodeBytes, codes.size() - begin));
  std::fill(std::copy(own.begin(), own.end(), block), std::end(block), missing);
  InterleaveHalves(block, target);
}

}  // namespace

void MakeMxfp4Row(std::span<const std::byte> codes, std::span<const std::byte> powers, std::byte* target) {
  PENSTOCK_CHECK(codes.size() == 16 * powers.size());
  for (size_t block = 0; block < powers.size(); ++block) {
    const std::byte* own = codes.data() + 16 * block;
    *target++ = powers[block];
    InterleaveHalves(own, target);
    target += 16;
  }
}

void MakeQ4_0Row(std::span<const std::byte> codes, std::span<const float> scales, int64_t group, std::byte* target) {
  for (size_t first = 0; first < codes.size(); first += kSmallCodeBytes) {
    StoreF16(scales[2 * first / static_cast<size_t>(group)], target);
    InterleaveFrom(codes, first, std::byte{0x88}, target + 2);
    target += 2 + kSmallCodeBytes;
  }
}

void MakeQ8_0Row(std::span<const std::byte> codes, std::span<const float> scales, int64_t group, std::byte* target) {
  constexpr size_t kCodes = 32;
  for (size_t first = 0; first < codes.size(); first += kCodes) {
    StoreF16(scales[first / static_cast<size_t>(group)], target);
    for (size_t i = 0; i < kCodes; ++i) {
      target[2 + i] = first + i < codes.size() ? codes[first + i] ^ std::byte{0x80} : std::byte{0};
    }
    target += 2 + kCodes;
  }
}

void MakeU4Row(std::span<const std::byte> codes, std::span<const float> scales, std::span<const uint8_t> zeros,
               int64_t group, std::byte* target) {
  for (size_t first = 0; first < codes.size(); first += kSmallCodeBytes) {
    const size_t idx = 2 * first / static_cast<size_t>(group);
    StoreF16(scales[idx], target);
    target[2] = static_cast<std::byte>(zeros[idx]);
    InterleaveFrom(codes, first, static_cast<std::byte>(17 * (zeros[idx] & 15)), target + 3);
    target += 3 + kSmallCodeBytes;
  }
}

void MakeNvfp4Row(std::span<const std::byte> codes, std::span<const std::byte> scales, float scale_of_scales,
                  std::byte* target) {
  constexpr size_t kScales = 16, kCodeBytes = 128;
  for (size_t first = 0; first < codes.size(); first += kCodeBytes) {
    std::memcpy(target, &scale_of_scales, sizeof(float));
    target += sizeof(float);
    const size_t first_scale = first / kCodeBytes * kScales;
    const std::span<const std::byte> own = scales.subspan(first_scale, std::min(kScales, scales.size() - first_scale));
    target = std::fill_n(std::copy(own.begin(), own.end(), target), kScales - own.size(), std::byte{0});
    for (size_t group = 0; group < kCodeBytes; group += kSmallCodeBytes) {
      InterleaveFrom(codes, first + group, std::byte{0}, target);
      target += kSmallCodeBytes;
    }
  }
}

}  // namespace penstock
