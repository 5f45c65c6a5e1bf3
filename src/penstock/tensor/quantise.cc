#include "penstock/tensor/quantise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/tensor/hqq.h"

namespace penstock {
namespace {

static_assert(kHqqBlock == 4 * kHqqGroup && kMetaGroup == 4 * kPanelCols);

// Rounds up, so that no code exceeds 127.
BF16 RoundUpToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits >> 16) + ((bits & 0xFFFF) != 0 ? 1 : 0))};
}

void QuantiseInt8Block(std::span<const float> rows, int64_t num_cols, int64_t inner_dim, int64_t first,
                       std::byte* block) {
  const int64_t count = std::min(kInt8Group, inner_dim - first);
  std::memset(block, 128, static_cast<size_t>(kInt8Group * kPanelCols));
  std::memset(block + kInt8Group * kPanelCols, 0, 2 * kPanelCols);
  for (int64_t col = 0; col < num_cols; ++col) {
    const float* w = rows.data() + col * inner_dim + first;
    float largest = 0, poison = 0;
    for (int64_t k = 0; k < count; ++k) {
      largest = std::max(largest, std::abs(w[k]));
      poison += w[k] * 0;
    }
    BF16 scale = RoundUpToBf16(largest / 127);
    if (std::isnan(poison)) scale = ToBF16(std::numeric_limits<float>::quiet_NaN());
    std::memcpy(block + kInt8Group * kPanelCols + 2 * col, &scale, sizeof(scale));
    const float divisor = ToFloat(scale);
    if (!(divisor > 0)) continue;
    for (int64_t k = 0; k < count; ++k) {
      const float code = std::nearbyint(w[k] / divisor);
      block[k / 4 * 4 * kPanelCols + 4 * col + k % 4] = static_cast<std::byte>(static_cast<int>(code) + 128);
    }
  }
}

void PutHqqCode(WeightFormat format, std::byte* group, int64_t col, int64_t k, uint8_t code) {
  const auto put = [&](int64_t offset, int64_t row, int64_t shift, int bits) {
    group[offset + row * 4 * kPanelCols + 4 * col + k % 4] |= static_cast<std::byte>(bits << shift);
  };
  if (format == WeightFormat::kHqq4) return put(0, k / 8, k / 4 % 2 * 4, code);
  put(0, k / 16, k / 4 % 4 * 2, code & 3);
  put(512, k / 32, k / 4 % 8, code >> 2);
}

// Rounds the scales, or the zeros, of a block to 8 bits: values[group * 32 + output]. Returns the rounded values.
std::array<float, kMetaGroup> RoundMeta(const std::array<float, kMetaGroup>& values, int64_t num_groups,
                                        std::byte* step_and_min, std::byte* codes) {
  std::array<uint8_t, kMetaGroup> meta_codes{};
  const size_t count = num_groups * kPanelCols;
  const MetaGroup meta = QuantiseMeta(std::span(values).first(count), meta_codes.data());
  std::memcpy(step_and_min, &meta.step, 4);
  std::memcpy(step_and_min + 4, &meta.min, 4);
  std::memcpy(codes, meta_codes.data(), kMetaGroup);
  std::array<float, kMetaGroup> rounded{};
  for (size_t i = 0; i < count; ++i) rounded[i] = DequantiseMeta(meta_codes[i], meta);
  return rounded;
}

void QuantiseHqqPanel(WeightFormat format, std::span<const float> rows, int64_t num_cols, int64_t inner_dim,
                      std::byte* target) {
  const int bits = format == WeightFormat::kHqq4 ? 4 : 3;
  const int64_t group_bytes = format == WeightFormat::kHqq4 ? kHqq4GroupBytes : kHqq3GroupBytes;
  const int64_t num_groups = (inner_dim + kHqqGroup - 1) / kHqqGroup;
  std::vector<HqqGroup> solved(num_cols * num_groups);
  for (int64_t col = 0; col < num_cols; ++col) {
    SolveHqq(rows.subspan(col * inner_dim, inner_dim), bits, std::span(solved).subspan(col * num_groups, num_groups));
  }
  for (int64_t first = 0; first < num_groups; first += 4) {
    const int64_t count = std::min<int64_t>(4, num_groups - first);
    std::array<float, kMetaGroup> scales, zeros;
    for (int64_t i = 0; i < kMetaGroup; ++i) {
      // Missing outputs of the panel repeat the last one, so they widen no range.
      const int64_t col = std::min(i % kPanelCols, num_cols - 1),
                    group = std::min(first + i / kPanelCols, num_groups - 1);
      const HqqGroup& g = solved[col * num_groups + group];
      scales[i] = g.scale;
      zeros[i] = g.zero;
    }
    std::memset(target, 0, static_cast<size_t>(kHqqHeaderBytes + count * group_bytes));
    const auto rounded_scales = RoundMeta(scales, count, target, target + 64);
    const auto rounded_zeros = RoundMeta(zeros, count, target + 8, target + 192);
    for (int64_t group = 0; group < count; ++group) {
      std::byte* data = target + kHqqHeaderBytes + group * group_bytes;
      const int64_t k = (first + group) * kHqqGroup, size = std::min(kHqqGroup, inner_dim - k);
      for (int64_t col = 0; col < num_cols; ++col) {
        std::array<uint8_t, kHqqGroup> codes;
        const size_t i = group * kPanelCols + col;
        EncodeGroup(rows.subspan(col * inner_dim + k, size), bits,
                    {.scale = rounded_scales[i], .zero = rounded_zeros[i]}, codes.data());
        for (int64_t j = 0; j < size; ++j) PutHqqCode(format, data, col, j, codes[j]);
      }
    }
    target += kHqqHeaderBytes + count * group_bytes;
  }
}

}  // namespace

void QuantisePanel(WeightFormat format, std::span<const float> rows, int64_t num_cols, int64_t inner_dim,
                   std::byte* target) {
  PENSTOCK_CHECK(!IsFloat(format) && num_cols >= 1 && num_cols <= kPanelCols);
  if (format != WeightFormat::kInt8) return QuantiseHqqPanel(format, rows, num_cols, inner_dim, target);
  for (int64_t first = 0; first < inner_dim; first += kInt8Group) {
    QuantiseInt8Block(rows, num_cols, inner_dim, first, target);
    target += kInt8BlockBytes;
  }
}

}  // namespace penstock
