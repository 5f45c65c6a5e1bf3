#include "penstock/tensor/output_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "penstock/tensor/dtype.h"

namespace penstock {
namespace {

void EncodeRow(CommFormat format, std::span<const float> row, std::byte* codes) {
  switch (format) {
    case CommFormat::kF32: std::memcpy(codes, row.data(), row.size_bytes()); return;
    case CommFormat::kBF16:
      for (size_t i = 0; i < row.size(); ++i) {
        const BF16 code = ToBF16(row[i]);
        std::memcpy(codes + i * sizeof(code), &code, sizeof(code));
      }
      return;
    case CommFormat::kInt8: break;
  }
  float max = 0;
  bool is_finite = true;
  for (const float value : row) {
    max = std::max(max, std::abs(value));
    is_finite = is_finite && std::isfinite(value);
  }
  const float scale = is_finite ? max / 127 : std::numeric_limits<float>::quiet_NaN();
  const float inverse = is_finite && scale > 0 ? 1 / scale : 0;
  const bool fits = std::isfinite(inverse);  // otherwise all values are next to nothing
  for (size_t i = 0; i < row.size(); ++i) {
    const float code = is_finite && fits ? std::clamp(std::nearbyint(row[i] * inverse), -127.0f, 127.0f) : 0;
    codes[i] = static_cast<std::byte>(static_cast<int8_t>(code));
  }
  std::memcpy(codes + row.size(), &scale, sizeof(scale));
}

void DecodeRow(CommFormat format, const std::byte* codes, std::span<float> row) {
  switch (format) {
    case CommFormat::kF32: std::memcpy(row.data(), codes, row.size_bytes()); return;
    case CommFormat::kBF16:
      for (size_t i = 0; i < row.size(); ++i) {
        BF16 code;
        std::memcpy(&code, codes + i * sizeof(code), sizeof(code));
        row[i] = ToFloat(code);
      }
      return;
    case CommFormat::kInt8: break;
  }
  float scale = 0;
  std::memcpy(&scale, codes + row.size(), sizeof(scale));
  for (size_t i = 0; i < row.size(); ++i) row[i] = scale * static_cast<float>(static_cast<int8_t>(codes[i]));
}

}  // namespace

int64_t OutputRowBytes(CommFormat format, int64_t dim) {
  switch (format) {
    case CommFormat::kF32: return dim * static_cast<int64_t>(sizeof(float));
    case CommFormat::kBF16: return dim * static_cast<int64_t>(sizeof(BF16));
    case CommFormat::kInt8: break;
  }
  return dim + static_cast<int64_t>(sizeof(float));
}

void EncodeOutputs(CommFormat format, std::span<const float> rows, int64_t dim, std::byte* codes) {
  const int64_t row_bytes = OutputRowBytes(format, dim);
  for (int64_t row = 0; row < std::ssize(rows) / dim; ++row) {
    EncodeRow(format, rows.subspan(row * dim, dim), codes + row * row_bytes);
  }
}

void DecodeOutputs(CommFormat format, std::span<float> rows, int64_t dim) {
  if (format == CommFormat::kF32) return;
  const int64_t row_bytes = OutputRowBytes(format, dim);
  const auto* const codes = reinterpret_cast<const std::byte*>(rows.data());
  // The last row comes first, because a row of floats is longer than its codes and covers codes of later rows.
  std::vector<std::byte> row_codes(row_bytes);
  for (int64_t row = std::ssize(rows) / dim - 1; row >= 0; --row) {
    std::memcpy(row_codes.data(), codes + row * row_bytes, row_codes.size());
    DecodeRow(format, row_codes.data(), rows.subspan(row * dim, dim));
  }
}

void RoundOutputs(CommFormat format, std::span<float> rows, int64_t dim) {
  if (format == CommFormat::kF32) return;
  std::vector<std::byte> codes(OutputRowBytes(format, dim));
  for (int64_t row = 0; row < std::ssize(rows) / dim; ++row) {
    EncodeRow(format, rows.subspan(row * dim, dim), codes.data());
    DecodeRow(format, codes.data(), rows.subspan(row * dim, dim));
  }
}

}  // namespace penstock
