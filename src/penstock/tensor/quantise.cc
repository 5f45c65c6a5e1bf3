#include "penstock/tensor/quantise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/tensor/hqq.h"
#include "penstock/tensor/ternary.h"

namespace penstock {
namespace {

static_assert(kHqqBlock == 4 * kHqqGroup && kMetaGroup == 4 * kPanelCols && kHqqBlock == kInputBlock);

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

CodeRange RangeOf(WeightFormat format) { return {HqqLevels(format), format == WeightFormat::kTernary}; }

// Writes the codes of one output in one group, into bytes that are zeros.
void PutCodes(WeightFormat format, std::byte* header, int64_t group_idx, int64_t col, std::span<const uint8_t> codes) {
  std::byte* const group = header + kHqqHeaderBytes + group_idx * HqqGroupBytes(format);
  for (int64_t k = 0; k < std::ssize(codes); ++k) {
    const uint8_t code = codes[k];
    const auto put = [&](std::byte* rows, int64_t row, int64_t shift, int bits) {
      rows[row * 4 * kPanelCols + 4 * col + k % 4] |= static_cast<std::byte>(bits << shift);
    };
    if (format == WeightFormat::kTernary) {
      if (k >= 60) {
        put(header + kTernaryLastQuads, 0, 2 * group_idx, code);
      } else if (k % 20 < 4) {
        std::array<uint8_t, kDigitsOfByte> digits{};
        for (int64_t i = 0; i < kDigitsOfByte && k + 4 * i < std::ssize(codes); ++i) digits[i] = codes[k + 4 * i];
        put(group, k / 20, 0, ByteOfDigits(digits));
      }
    } else if (format == WeightFormat::kHqq4) {
      put(group, k / 8, k / 4 % 2 * 4, code);
    } else {
      put(group, k / 16, k / 4 % 4 * 2, code & 3);
      if (format == WeightFormat::kHqq3) put(group + 512, k / 32, k / 4 % 8, code >> 2);
    }
  }
}

using MetaValues = std::array<float, kMetaGroup>;

// Rounds the scales, or the zeros, of a block to 8 bits: values[group * 32 + output]. Returns the rounded values.
MetaValues RoundMeta(const MetaValues& values, int64_t num_groups, std::byte* step_and_min, std::byte* codes) {
  std::array<uint8_t, kMetaGroup> meta_codes{};
  const size_t count = num_groups * kPanelCols;
  const MetaGroup meta = QuantiseMeta(std::span(values).first(count), meta_codes.data());
  std::memcpy(step_and_min, &meta.step, 4);
  std::memcpy(step_and_min + 4, &meta.min, 4);
  std::memcpy(codes, meta_codes.data(), kMetaGroup);
  MetaValues rounded{};
  for (size_t i = 0; i < count; ++i) rounded[i] = DequantiseMeta(meta_codes[i], meta);
  return rounded;
}

// The weights of a panel, and how much their errors count; null: nothing is known.
struct HqqPanel {
  WeightFormat format;
  std::span<const float> rows;  // [num_cols, inner_dim]
  int64_t num_cols;
  int64_t inner_dim;
  const ErrorWeights* errors;
};

std::vector<HqqGroup> SolveGroups(const HqqPanel& panel, int64_t num_groups) {
  const CodeRange range = RangeOf(panel.format);
  const std::vector<float> alike(panel.errors == nullptr ? panel.inner_dim : 0, 1.0f);
  const std::span<const float> importance = panel.errors == nullptr ? alike : panel.errors->of_inputs();
  std::vector<HqqGroup> solved(panel.num_cols * num_groups);
  for (int64_t col = 0; col < panel.num_cols; ++col) {
    const auto row = panel.rows.subspan(col * panel.inner_dim, panel.inner_dim);
    const auto groups = std::span(solved).subspan(col * num_groups, num_groups);
    if (panel.errors == nullptr && !range.is_symmetric) {
      SolveHqq(row, std::bit_width(static_cast<unsigned>(range.levels)), groups);
      continue;
    }
    for (int64_t group = 0; group < num_groups; ++group) {
      const int64_t k = group * kHqqGroup, size = std::min(kHqqGroup, panel.inner_dim - k);
      groups[group] = FitGroup(row.subspan(k, size), importance.subspan(k, size), range);
    }
  }
  return solved;
}

// Writes the codes of the block of inputs from `first` on, each weight rounded for itself.
void PutNearestCodes(const HqqPanel& panel, int64_t first, const MetaValues& scales, const MetaValues& zeros,
                     std::byte* header) {
  for (int64_t k = first; k < std::min(first + kHqqBlock, panel.inner_dim); k += kHqqGroup) {
    const int64_t group = (k - first) / kHqqGroup, size = std::min(kHqqGroup, panel.inner_dim - k);
    for (int64_t col = 0; col < panel.num_cols; ++col) {
      std::array<uint8_t, kHqqGroup> codes;
      const size_t i = group * kPanelCols + col;
      EncodeGroup(panel.rows.subspan(col * panel.inner_dim + k, size), RangeOf(panel.format),
                  {.scale = scales[i], .zero = zeros[i]}, codes.data());
      PutCodes(panel.format, header, group, col, std::span(codes).first(size));
    }
  }
}

// The scales and zeros of a block for its 32 outputs x 4 groups, rounded as they are stored.
struct BlockMeta {
  MetaValues scales, zeros;

  // Rounds them, and writes the header.
  void Store(CodeRange range, int64_t num_groups, std::byte* header) {
    scales = RoundMeta(scales, num_groups, header, header + 64);
    if (!range.is_symmetric) zeros = RoundMeta(zeros, num_groups, header + 8, header + 192);
  }
};

// A block whose weights make up for each other's errors. Values of its inputs lie as [input][32 outputs].
class CompensatedBlock {
 public:
  CompensatedBlock(const HqqPanel& panel, int64_t first, const ErrorWeights::Compensation& block)
      : range_(RangeOf(panel.format)),
        num_cols_(panel.num_cols),
        size_(std::ssize(block.order)),
        block_(&block),
        weights_(size_ * kPanelCols),
        errors_(size_ * kPanelCols),
        codes_(size_ * kPanelCols) {
    for (int64_t k = 0; k < size_; ++k) {
      for (int64_t col = 0; col < num_cols_; ++col) {
        weights_[k * kPanelCols + col] = panel.rows[col * panel.inner_dim + first + k];
      }
    }
  }

  // Chooses the codes.
  void Encode(const BlockMeta& meta);
  // Chooses each code once more, while the others stay.
  void Improve(const BlockMeta& meta);
  // Returns e^T H e of all outputs.
  double Error() const;
  // Gives each group the scale and zero with which the chosen codes err least.
  void Refit(BlockMeta& meta);
  // Returns the codes of one output in one group.
  std::vector<uint8_t> CodesOf(int64_t group, int64_t col) const {
    std::vector<uint8_t> codes;
    for (int64_t k = group * kHqqGroup; k < std::min((group + 1) * kHqqGroup, size_); ++k) {
      codes.push_back(codes_[k * kPanelCols + col]);
    }
    return codes;
  }

 private:
  using Row = std::array<float, kPanelCols>;

  // Adds H[k, first..end) x of the values, [input][32 outputs].
  void AddProduct(int64_t k, int64_t first, int64_t end, const float* values, Row& sums) const {
    for (int64_t i = first; i < end; ++i) {
      const float h = block_->h[k * size_ + i];
      for (int64_t col = 0; col < kPanelCols; ++col) sums[col] += h * values[i * kPanelCols + col];
    }
  }
  static HqqGroup GroupOf(const BlockMeta& meta, int64_t group, int64_t col) {
    return {.scale = meta.scales[group * kPanelCols + col], .zero = meta.zeros[group * kPanelCols + col]};
  }

  // Returns the scale and -zero x scale with which a group's codes err least, from sums under H. NaN: none.
  std::pair<double, double> SolveLine(double code_code, double code_one, double one_one, double code_wanted,
                                      double one_wanted) const {
    if (range_.is_symmetric) {
      const double zero = range_.levels / 2.0;
      const double scale =
          (code_wanted - zero * one_wanted) / (code_code - 2 * zero * code_one + zero * zero * one_one);
      return {scale, -zero * scale};
    }
    const double determinant = code_code * one_one - code_one * code_one;
    return {(code_wanted * one_one - one_wanted * code_one) / determinant,
            (one_wanted * code_code - code_wanted * code_one) / determinant};
  }

  CodeRange range_;
  int64_t num_cols_;
  int64_t size_;
  const ErrorWeights::Compensation* block_;
  std::vector<float> weights_;
  std::vector<float> errors_;  // of the weights: themselves less what their codes mean
  std::vector<uint8_t> codes_;
};

void CompensatedBlock::Encode(const BlockMeta& meta) {
  for (int64_t p = 0; p < size_; ++p) {
    const int64_t k = block_->order[p];
    Row moved;
    std::copy_n(weights_.begin() + k * kPanelCols, kPanelCols, moved.begin());
    for (int64_t q = 0; q < p; ++q) {
      const float pull = block_->pull[p * size_ + q];
      const float* const errors = errors_.data() + block_->order[q] * kPanelCols;
      for (int64_t col = 0; col < kPanelCols; ++col) moved[col] += pull * errors[col];
    }
    for (int64_t col = 0; col < num_cols_; ++col) {
      const HqqGroup own = GroupOf(meta, k / kHqqGroup, col);
      const int64_t i = k * kPanelCols + col;
      EncodeGroup({&moved[col], 1}, range_, own, &codes_[i]);
      errors_[i] = weights_[i] - DequantiseHqq(codes_[i], own);
    }
  }
}

void CompensatedBlock::Improve(const BlockMeta& meta) {
  std::vector<Row> products(size_);  // H e
  for (int64_t k = 0; k < size_; ++k) AddProduct(k, 0, size_, errors_.data(), products[k]);
  for (const int64_t k : block_->order) {
    const float own_h = block_->h[k * size_ + k];
    Row changes = {};
    for (int64_t col = 0; col < num_cols_; ++col) {
      const HqqGroup own = GroupOf(meta, k / kHqqGroup, col);
      const int64_t i = k * kPanelCols + col;
      const float wanted = weights_[i] - errors_[i] + products[k][col] / own_h;
      EncodeGroup({&wanted, 1}, range_, own, &codes_[i]);
      const float error = weights_[i] - DequantiseHqq(codes_[i], own);
      changes[col] = error - errors_[i];
      errors_[i] = error;
    }
    for (int64_t i = 0; i < size_; ++i) {
      const float h = block_->h[i * size_ + k];
      for (int64_t col = 0; col < kPanelCols; ++col) products[i][col] += h * changes[col];
    }
  }
}

double CompensatedBlock::Error() const {
  double sum = 0;
  for (int64_t k = 0; k < size_; ++k) {
    Row products = {};
    AddProduct(k, 0, size_, errors_.data(), products);
    for (int64_t col = 0; col < num_cols_; ++col) sum += double{products[col]} * errors_[k * kPanelCols + col];
  }
  return sum;
}

// One group after another: least squares for scale and -zero x scale, while the other groups stay.
void CompensatedBlock::Refit(BlockMeta& meta) {
  const int levels = range_.levels;
  std::vector<float> codes(codes_.begin(), codes_.end());
  for (int64_t first = 0; first < size_; first += kHqqGroup) {
    const int64_t group = first / kHqqGroup, end = std::min(first + kHqqGroup, size_);
    // The group must mean what it means now, plus all errors.
    std::vector<float> wanted(errors_);
    for (int64_t k = first; k < end; ++k) {
      for (int64_t col = 0; col < num_cols_; ++col) {
        wanted[k * kPanelCols + col] += DequantiseHqq(codes_[k * kPanelCols + col], GroupOf(meta, group, col));
      }
    }
    std::array<double, kPanelCols> code_code{}, code_one{}, code_wanted{}, one_wanted{};
    double one_one = 0;
    for (int64_t k = first; k < end; ++k) {
      Row of_codes = {}, of_wanted = {};
      AddProduct(k, first, end, codes.data(), of_codes);
      AddProduct(k, 0, size_, wanted.data(), of_wanted);
      for (int64_t i = first; i < end; ++i) one_one += block_->h[k * size_ + i];
      for (int64_t col = 0; col < num_cols_; ++col) {
        const double code = codes[k * kPanelCols + col];
        code_code[col] += code * of_codes[col];
        code_one[col] += of_codes[col];
        code_wanted[col] += code * of_wanted[col];
        one_wanted[col] += of_wanted[col];
      }
    }
    for (int64_t col = 0; col < num_cols_; ++col) {
      const size_t i = group * kPanelCols + col;
      const auto [scale, offset] = SolveLine(code_code[col], code_one[col], one_one, code_wanted[col], one_wanted[col]);
      const double zero = -offset / scale;
      // Also false for a NaN: all codes of the group are alike.
      if (!(scale > 0.3 * meta.scales[i] && scale < 3 * meta.scales[i] && zero > -levels && zero < 2 * levels))
        continue;
      meta.scales[i] = static_cast<float>(scale);
      meta.zeros[i] = static_cast<float>(zero);
      for (int64_t k = first; k < end; ++k) {
        const int64_t at = k * kPanelCols + col;
        errors_[at] = weights_[at] - DequantiseHqq(codes_[at], GroupOf(meta, group, col));
      }
    }
  }
}

// Writes a block as that of a few rounds of codes and new scales that errs least.
void PutCompensatedBlock(const HqqPanel& panel, int64_t first, const ErrorWeights::Compensation& block, BlockMeta meta,
                         int64_t num_groups, std::byte* target) {
  constexpr int kRounds = 3;
  CompensatedBlock work(panel, first, block);
  double least = std::numeric_limits<double>::max();
  std::array<std::byte, kHqqHeaderBytes> header;
  for (int round = 0; round < kRounds; ++round) {
    if (round > 0) work.Refit(meta);
    header.fill(std::byte{0});
    meta.Store(RangeOf(panel.format), num_groups, header.data());
    work.Encode(meta);
    work.Improve(meta);
    const double error = work.Error();
    if (!(error < least)) break;
    least = error;
    std::copy(header.begin(), header.end(), target);
    const int64_t group_bytes = HqqGroupBytes(panel.format);
    std::memset(target + kHqqHeaderBytes, 0, static_cast<size_t>(num_groups * group_bytes));
    for (int64_t group = 0; group < num_groups; ++group) {
      for (int64_t col = 0; col < panel.num_cols; ++col) {
        PutCodes(panel.format, target, group, col, work.CodesOf(group, col));
      }
    }
  }
}

void QuantiseHqqPanel(const HqqPanel& panel, std::byte* target) {
  const int64_t group_bytes = HqqGroupBytes(panel.format);
  const int64_t num_groups = (panel.inner_dim + kHqqGroup - 1) / kHqqGroup;
  const std::vector<HqqGroup> solved = SolveGroups(panel, num_groups);
  for (int64_t first = 0; first < num_groups; first += 4) {
    const int64_t count = std::min<int64_t>(4, num_groups - first);
    BlockMeta meta;
    for (int64_t i = 0; i < kMetaGroup; ++i) {
      // Missing outputs of the panel repeat the last one, so they widen no range.
      const int64_t col = std::min(i % kPanelCols, panel.num_cols - 1),
                    group = std::min(first + i / kPanelCols, num_groups - 1);
      const HqqGroup& g = solved[col * num_groups + group];
      meta.scales[i] = g.scale;
      meta.zeros[i] = g.zero;
    }
    const ErrorWeights::Compensation* const block =
        panel.errors == nullptr ? nullptr : panel.errors->compensation(first / 4);
    if (block != nullptr) {
      PutCompensatedBlock(panel, first * kHqqGroup, *block, meta, count, target);
    } else {
      std::memset(target, 0, static_cast<size_t>(kHqqHeaderBytes + count * group_bytes));
      meta.Store(RangeOf(panel.format), count, target);
      PutNearestCodes(panel, first * kHqqGroup, meta.scales, meta.zeros, target);
    }
    target += kHqqHeaderBytes + count * group_bytes;
  }
}

}  // namespace

void QuantisePanel(WeightFormat format, std::span<const float> rows, int64_t num_cols, int64_t inner_dim,
                   std::byte* target, const ErrorWeights* errors) {
  PENSTOCK_CHECK(IsCodes(format) && num_cols >= 1 && num_cols <= kPanelCols);
  if (IsHqq(format)) return QuantiseHqqPanel({format, rows, num_cols, inner_dim, errors}, target);
  for (int64_t first = 0; first < inner_dim; first += kInt8Group) {
    QuantiseInt8Block(rows, num_cols, inner_dim, first, target);
    target += kInt8BlockBytes;
  }
}

}  // namespace penstock
