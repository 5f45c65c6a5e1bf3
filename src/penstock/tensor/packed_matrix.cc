#include "penstock/tensor/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/tensor/block_formats.h"
#include "penstock/tensor/block_panels.h"
#include "penstock/tensor/ternary.h"

namespace penstock {
namespace {

// Rows are gathered in blocks that fit the L1 cache. Reading 32 whole rows element by element would touch 32 pages at a
// time.
constexpr int64_t kBlockInputs = 64;

// `Element` is the moved unit: a pair of bf16 as one word, or one f16 or f32.
template <typename Element>
void Transpose(const std::byte* source, int64_t num_cols, int64_t num_elements, std::byte* target) {
  const int64_t row_bytes = num_elements * static_cast<int64_t>(sizeof(Element));
  Element block[kPanelCols][kBlockInputs];
  Element line[kPanelCols];
  std::memset(block, 0, sizeof(block));
  for (int64_t first = 0; first < num_elements; first += kBlockInputs) {
    const int64_t count = std::min(kBlockInputs, num_elements - first);
    for (int64_t col = 0; col < num_cols; ++col) {
      std::memcpy(block[col], source + col * row_bytes + first * static_cast<int64_t>(sizeof(Element)),
                  static_cast<size_t>(count) * sizeof(Element));
    }
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t col = 0; col < kPanelCols; ++col) line[col] = block[col][i];
      std::memcpy(target, line, sizeof(line));
      target += sizeof(line);
    }
  }
}

// Converts any dtype to any other, element by element, for cases without a fast path.
void PackConverted(Dtype dtype, const std::byte* source, int64_t num_cols, int64_t inner_dim, WeightFormat format,
                   std::byte* target) {
  const int64_t element_bytes = static_cast<int64_t>(SizeOf(dtype));
  const uint64_t target_bytes = SizeOf(DtypeOf(format));
  std::memset(target, 0, PanelBytes(format, inner_dim));
  for (int64_t k = 0; k < inner_dim; ++k) {
    for (int64_t col = 0; col < num_cols; ++col) {
      const std::byte* element = source + (col * inner_dim + k) * element_bytes;
      const int64_t place =
          format == WeightFormat::kBF16 ? k / 2 * 2 * kPanelCols + 2 * col + k % 2 : k * kPanelCols + col;
      std::byte* to = target + place * static_cast<int64_t>(target_bytes);
      if (DtypeOf(format) == dtype) {
        std::memcpy(to, element, target_bytes);
      } else if (format == WeightFormat::kBF16) {
        ToBF16s(dtype, element, 1, to);
      } else {
        PENSTOCK_CHECK(format == WeightFormat::kF32);
        float value;
        ToFloats(dtype, element, {&value, 1});
        std::memcpy(to, &value, sizeof(value));
      }
    }
  }
}

// Returns the code of (output, input) in one block of a quantised panel.
uint32_t Int8Code(const std::byte* block, int64_t col, int64_t k) {
  return static_cast<uint32_t>(block[k / 4 * 4 * kPanelCols + 4 * col + k % 4]);
}

uint32_t TernaryCode(const std::byte* header, int64_t group_idx, int64_t col, int64_t k) {
  if (k >= 60) return static_cast<uint32_t>(header[kTernaryLastQuads + 4 * col + k % 4]) >> (2 * group_idx) & 3;
  const std::byte* group = header + kHqqHeaderBytes + group_idx * kTernaryGroupBytes;
  const auto byte = static_cast<uint8_t>(group[k / 20 * 4 * kPanelCols + 4 * col + k % 4]);
  return DigitOf(byte, static_cast<int>(k % 20 / 4));
}

uint32_t HqqCode(WeightFormat format, const std::byte* header, int64_t group_idx, int64_t col, int64_t k) {
  if (format == WeightFormat::kTernary) return TernaryCode(header, group_idx, col, k);
  const std::byte* group = header + kHqqHeaderBytes + group_idx * HqqGroupBytes(format);
  const auto byte = [&](int64_t offset, int64_t row, int64_t j) {
    return static_cast<uint32_t>(group[offset + row * 4 * kPanelCols + 4 * col + j]);
  };
  if (format == WeightFormat::kHqq4) return byte(0, k / 8, k % 4) >> (k / 4 % 2 * 4) & 15;
  const uint32_t low = byte(0, k / 16, k % 4) >> (k / 4 % 4 * 2) & 3;
  if (format == WeightFormat::kHqq2) return low;
  return low | (byte(512, k / 32, k % 4) >> (k / 4 % 8) & 1) << 2;
}

float MetaValue(const std::byte* header, int64_t first_float, int64_t first_code, int64_t group, int64_t col) {
  float step, min;
  std::memcpy(&step, header + 4 * first_float, 4);
  std::memcpy(&min, header + 4 * first_float + 4, 4);
  const auto code = static_cast<float>(static_cast<uint8_t>(header[first_code + group * kPanelCols + col]));
  return std::fma(code, step, min);
}

}  // namespace

std::optional<WeightFormat> WeightFormatOf(std::string_view name) {
  for (const WeightFormatTraits& format : kWeightFormats) {
    if (format.name == name) return format.value;
  }
  return std::nullopt;
}

WeightFormat FormatOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return WeightFormat::kF32;
    case Dtype::kF16: return WeightFormat::kF16;
    case Dtype::kBF16: return WeightFormat::kBF16;
    default: break;
  }
  PENSTOCK_CHECK(false);
}

Dtype DtypeOf(WeightFormat format) {
  PENSTOCK_CHECK(IsFloat(format));
  return format == WeightFormat::kF32 ? Dtype::kF32 : format == WeightFormat::kF16 ? Dtype::kF16 : Dtype::kBF16;
}

uint64_t PanelBytes(WeightFormat format, int64_t inner_dim) {
  const auto k = static_cast<uint64_t>(inner_dim);
  switch (format) {
    case WeightFormat::kF32: return RoundUp(k, 2) * kPanelCols * 4;
    case WeightFormat::kF16:
    case WeightFormat::kBF16: return RoundUp(k, 2) * kPanelCols * 2;
    case WeightFormat::kInt8: return CeilDiv(k, kInt8Group) * kInt8BlockBytes;
    case WeightFormat::kHqq4:
    case WeightFormat::kHqq3:
    case WeightFormat::kHqq2:
    case WeightFormat::kTernary:
      return CeilDiv(k, kHqqBlock) * kHqqHeaderBytes + CeilDiv(k, 64) * static_cast<uint64_t>(HqqGroupBytes(format));
    default: return kPanelCols * BlockRowBytes(format, inner_dim);
  }
}

uint64_t PackedBytes(WeightFormat format, int64_t num_cols, int64_t inner_dim) {
  return static_cast<uint64_t>(NumPanels(num_cols)) * PanelBytes(format, inner_dim);
}

void PackPanel(Dtype dtype, const std::byte* source, int64_t num_cols, int64_t inner_dim, WeightFormat format,
               std::byte* target) {
  PENSTOCK_CHECK(IsFloat(format) && num_cols <= kPanelCols);
  if (DtypeOf(format) != dtype || inner_dim % 2 != 0) {
    return PackConverted(dtype, source, num_cols, inner_dim, format, target);
  }
  switch (dtype) {
    case Dtype::kF32: return Transpose<uint32_t>(source, num_cols, inner_dim, target);
    case Dtype::kF16: return Transpose<uint16_t>(source, num_cols, inner_dim, target);
    default: return Transpose<uint32_t>(source, num_cols, inner_dim / 2, target);
  }
}

void UnpackColumn(WeightFormat format, const std::byte* packed, int64_t col, int64_t inner_dim, float* target) {
  const std::byte* panel = packed + static_cast<uint64_t>(col / kPanelCols) * PanelBytes(format, inner_dim);
  col %= kPanelCols;
  if (IsBlocks(format)) {
    std::byte block[kMaxBlockBytes];
    for (int64_t k = 0; k < inner_dim; k += BlockElements(format)) {
      ExtractBlock(format, panel, k / BlockElements(format), col, block);
      DequantiseRow(format, block, {target + k, static_cast<size_t>(std::min(BlockElements(format), inner_dim - k))});
    }
    return;
  }
  for (int64_t k = 0; k < inner_dim; ++k) {
    switch (format) {
      case WeightFormat::kF32:
      case WeightFormat::kF16:
        ToFloats(DtypeOf(format), panel + (k * kPanelCols + col) * static_cast<int64_t>(SizeOf(DtypeOf(format))),
                 {target + k, 1});
        break;
      case WeightFormat::kBF16:
        ToFloats(Dtype::kBF16, panel + (k / 2 * 2 * kPanelCols + 2 * col + k % 2) * 2, {target + k, 1});
        break;
      case WeightFormat::kInt8: {
        const std::byte* block = panel + k / kInt8Group * kInt8BlockBytes;
        float scale;
        ToFloats(Dtype::kBF16, block + kInt8Group * kPanelCols + 2 * col, {&scale, 1});
        target[k] = (static_cast<float>(Int8Code(block, col, k % kInt8Group)) - 128) * scale;
        break;
      }
      case WeightFormat::kHqq4:
      case WeightFormat::kHqq3:
      case WeightFormat::kHqq2:
      case WeightFormat::kTernary: {
        const int64_t group_bytes = HqqGroupBytes(format);
        const std::byte* header = panel + k / kHqqBlock * (kHqqHeaderBytes + kHqqBlock / 64 * group_bytes);
        const int64_t group = k % kHqqBlock / 64;
        const float scale = MetaValue(header, 0, 64, group, col);
        const float zero = format == WeightFormat::kTernary ? 1 : MetaValue(header, 2, 192, group, col);
        const uint32_t code = HqqCode(format, header, group, col, k % 64);
        target[k] = (static_cast<float>(code) - zero) * scale;
        break;
      }
      default: break;
    }
  }
}

}  // namespace penstock
