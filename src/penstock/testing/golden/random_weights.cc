#include "penstock/testing/golden/random_weights.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

namespace penstock::golden {
namespace {

constexpr uint64_t kIncrement = 0x9E3779B97F4A7C15;
constexpr int kFractionBits = 40;  // of a weight as an integer
constexpr __int128 kMillion = 1'000'000;
constexpr int64_t kSumStd = 37837;        // of the sum of four uniform 16-bit integers
constexpr int64_t kSumMean = 2 * 0xFFFF;  // of the same

// SplitMix64's finaliser.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

int64_t AboutNormal(uint64_t bits) {
  uint64_t sum = 0;
  for (int shift = 0; shift < 64; shift += 16) sum += bits >> shift & 0xFFFF;
  return static_cast<int64_t>(sum) - kSumMean;
}

// value * 2^kFractionBits / divisor, rounded down.
int64_t Scaled(int64_t value, __int128 divisor) {
  const __int128 product = static_cast<__int128>(value) * (__int128{1} << kFractionBits);
  const __int128 quotient = product / divisor;
  return static_cast<int64_t>(quotient - (product % divisor < 0 ? 1 : 0));
}

}  // namespace

int64_t RandomTensor::num_elements() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

F16 ToF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000;
  const int exponent = static_cast<int>(bits >> 23 & 0xFF) - 112;  // in a half's bias
  // Below the least normal half a unit is 2^-24, which takes more bits from the mantissa.
  const int dropped = exponent > 0 ? 13 : 14 - exponent;
  if (dropped > 24) return {static_cast<uint16_t>(sign)};
  const uint32_t mantissa = (bits & 0x7FFFFF) | (exponent > 0 ? 0 : 0x800000);
  const uint32_t kept = mantissa >> dropped;
  const uint32_t rest = mantissa & ((1u << dropped) - 1), half = 1u << (dropped - 1);
  const uint32_t up = rest > half || (rest == half && (kept & 1)) ? 1 : 0;
  // A carry out of the mantissa makes the exponent larger by one, up to infinity.
  const uint32_t magnitude = (exponent > 0 ? static_cast<uint32_t>(exponent) << 10 : 0) + kept + up;
  return {static_cast<uint16_t>(sign | (magnitude > 0x7C00 ? 0x7C00 : magnitude))};
}

std::string RandomBytes(uint64_t seed, const RandomTensor& tensor) {
  const uint64_t key = XXH3_64bits_withSeed(tensor.name.data(), tensor.name.size(), seed);
  const int64_t step = Scaled(tensor.std_millionths, kSumStd * kMillion);
  const int64_t mean = Scaled(tensor.mean_millionths, kMillion);
  const auto count = static_cast<uint64_t>(tensor.num_elements());
  std::string bytes(count * SizeOf(tensor.dtype), '\0');
  char* target = bytes.data();
  const auto append = [&](auto value) {
    std::memcpy(target, &value, sizeof(value));
    target += sizeof(value);
  };
  for (uint64_t i = 0; i < count; ++i) {
    const int64_t fixed_point = AboutNormal(Mix(key + (i + 1) * kIncrement)) * step + mean;
    const auto value = static_cast<float>(static_cast<double>(fixed_point) * 0x1p-40);
    switch (tensor.dtype) {
      case Dtype::kF16: append(ToF16(value)); break;
      case Dtype::kBF16: append(ToBF16(value)); break;
      default: append(value);
    }
  }
  return bytes;
}

}  // namespace penstock::golden
