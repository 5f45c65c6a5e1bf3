#include "penstock/tensor/dtype.h"

#include <cmath>
#include <cstring>

namespace penstock {
namespace {

template <typename T>
T Load(const std::byte* source, int64_t idx) {
  T value;
  std::memcpy(&value, source + idx * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float LoadFloat(Dtype dtype, const std::byte* source, int64_t idx) {
  switch (dtype) {
    case Dtype::kF32: return Load<float>(source, idx);
    case Dtype::kF16: return ToFloat(Load<F16>(source, idx));
    case Dtype::kBF16: return ToFloat(Load<BF16>(source, idx));
    case Dtype::kF8E4M3: return ToFloat(Load<F8E4M3>(source, idx));
    case Dtype::kU8: return Load<uint8_t>(source, idx);
    case Dtype::kI32: return static_cast<float>(Load<int32_t>(source, idx));
    case Dtype::kI64: return static_cast<float>(Load<int64_t>(source, idx));
  }
  return 0;
}

}  // namespace

std::string_view DtypeName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return "f32";
    case Dtype::kF16: return "f16";
    case Dtype::kBF16: return "bf16";
    case Dtype::kF8E4M3: return "f8_e4m3";
    case Dtype::kU8: return "u8";
    case Dtype::kI32: return "i32";
    case Dtype::kI64: return "i64";
  }
  return "unknown";
}

float ToFloat(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t exponent = x.bits >> 10 & 0x1F;
  const uint32_t mantissa = x.bits & 0x3FF;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  const uint32_t float_exponent = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | float_exponent << 23 | mantissa << 13);
}

void ToFloats(Dtype dtype, const std::byte* source, std::span<float> target) {
  for (size_t i = 0; i < target.size(); ++i) target[i] = LoadFloat(dtype, source, static_cast<int64_t>(i));
}

void ToBF16s(Dtype dtype, const std::byte* source, int64_t count, std::byte* target) {
  for (int64_t i = 0; i < count; ++i) {
    const BF16 rounded = dtype == Dtype::kBF16 ? Load<BF16>(source, i) : ToBF16(LoadFloat(dtype, source, i));
    std::memcpy(target + i * static_cast<int64_t>(sizeof(BF16)), &rounded, sizeof(BF16));
  }
}

}  // namespace penstock
