// Proves that the GEMMs match the oracle within the error bound of their sums. Proves that the bits of an output depend
// only on its row of x and its weights. They do not depend on the instruction set, the other rows and columns, the
// strides, or the type that stores float weights.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/emulated_avx512bf16.h"
#include "kernels/kernel_testing.h"
#include "penstock/testing/reference/reference.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kInnerDims[] = {1, 2, 7, 31, 64, 65, 127, 128, 129, 192, 256, 257, 320, 511, 1100};
constexpr int64_t kRowCounts[] = {1, 2, 3, 5, 6, 7, 11, 12, 13, 25, 64};

struct Shape {
  int64_t num_rows;
  int64_t num_cols;
  int64_t inner_dim;
};

// Formats of rows and weights that are multiplied together.
struct Kind {
  RowFormat x_format;
  WeightFormat w_format;
};
// Every format of weights with the rows that it is multiplied by, and rows rounded to bf16 with some.
const std::vector<Kind> kKinds = [] {
  std::vector<Kind> kinds = {{RowFormat::kBF16, WeightFormat::kBF16},
                             {RowFormat::kBF16, WeightFormat::kQ4_K},
                             {RowFormat::kBF16, WeightFormat::kFp8},
                             {RowFormat::kBF16, WeightFormat::kInt8},
                             {RowFormat::kBF16, WeightFormat::kHqq3}};
  for (const WeightFormatTraits& format : kWeightFormats) {
    kinds.push_back({RowFormat::kF32, format.value});
    if (MultipliesInt8Rows(format.value)) kinds.push_back({RowFormat::kInt8, format.value});
  }
  return kinds;
}();

using PrepareRowsFunction = void (*)(const PrepareRowsArgs&);
using GemmFunction = void (*)(const GemmArgs&);

// Data of one shape; rows of x and of y are padded by `stride_extra` elements.
struct GemmData {
  GemmData(const Shape& s, const Kind& k, int64_t stride_extra = 0)
      : shape(s),
        kind(k),
        source_stride(s.inner_dim + stride_extra),
        x_stride_bytes(RowBytes(k.x_format, s.inner_dim) + 64 * stride_extra),
        y_stride(s.num_cols + stride_extra),
        source(RandomFloats(s.num_rows * source_stride, 1)),
        w(RandomPacked(k.w_format, s.num_cols, s.inner_dim, 2)),
        bias(RandomFloats(s.num_cols, 3)) {}

  AlignedBytes Rows(PrepareRowsFunction prepare_rows) const {
    AlignedBytes rows(static_cast<uint64_t>(shape.num_rows * x_stride_bytes));
    prepare_rows({.num_rows = shape.num_rows,
                  .dim = shape.inner_dim,
                  .first = 0,
                  .count = shape.inner_dim,
                  .source = source.data(),
                  .source_stride = source_stride,
                  .format = kind.x_format,
                  .target = rows.data(),
                  .target_stride_bytes = x_stride_bytes});
    return rows;
  }
  GemmArgs Args(const AlignedBytes& rows, float* y) const {
    return {.num_rows = shape.num_rows,
            .num_cols = shape.num_cols,
            .inner_dim = shape.inner_dim,
            .x_format = kind.x_format,
            .x = rows.data(),
            .x_stride_bytes = x_stride_bytes,
            .w_format = kind.w_format,
            .w = w.data(),
            .panel_bytes = static_cast<int64_t>(PanelBytes(kind.w_format, shape.inner_dim)),
            .bias = bias.data(),
            .y = y,
            .y_stride = y_stride};
  }
  std::vector<float> NewOutput() const { return std::vector<float>(shape.num_rows * y_stride, -1.0f); }
  std::vector<float> Run(PrepareRowsFunction prepare_rows, GemmFunction gemm) const {
    const AlignedBytes rows = Rows(prepare_rows);
    std::vector<float> y = NewOutput();
    gemm(Args(rows, y.data()));
    return y;
  }
  std::vector<float> Run(const KernelTable& table) const { return Run(table.prepare_rows, table.gemm); }

  Shape shape;
  Kind kind;
  int64_t source_stride;
  int64_t x_stride_bytes;
  int64_t y_stride;
  std::vector<float> source;
  AlignedBytes w;
  std::vector<float> bias;
};

// |computed - exact| <= (number of roundings) * eps/2 * sum |x||w|, doubled for the second-order terms. An HQQ group
// has terms of codes and of zeros, which may cancel.
void ExpectCloseToReference(const GemmData& data, std::span<const float> actual) {
  const std::vector<float> expected = data.Run(reference::PrepareRows, reference::Gemm);
  const auto [num_rows, num_cols, inner_dim] = data.shape;
  const double roundings = static_cast<double>(inner_dim) + 8;
  std::vector<float> w(inner_dim);
  for (int64_t col = 0; col < num_cols; ++col) {
    UnpackColumn(data.kind.w_format, data.w.data(), col, inner_dim, w.data());
    double largest = 0;
    for (const float weight : w) largest = std::max(largest, std::abs(static_cast<double>(weight)));
    for (int64_t row = 0; row < num_rows; ++row) {
      double magnitude = std::abs(data.bias[col]);
      for (int64_t k = 0; k < inner_dim; ++k) {
        magnitude += std::abs(data.source[row * data.source_stride + k]) *
                     (data.kind.x_format == RowFormat::kInt8 ? 8 * largest : std::abs(static_cast<double>(w[k])));
      }
      const size_t idx = static_cast<size_t>(row * data.y_stride + col);
      ASSERT_NEAR(actual[idx], expected[idx], roundings * std::numeric_limits<float>::epsilon() * magnitude)
          << "row " << row << " col " << col << " K " << inner_dim << " " << TraitsOf(data.kind.w_format).name;
    }
  }
}

// The orders defined in kernel_table.h, written as plainly as possible.
float FloatSum(std::span<const float> x, std::span<const float> w) {
  float sum = 0;
  for (size_t i = 0; i < x.size(); i += 2) {
    const bool has_odd = i + 1 < x.size();
    sum = std::fma(has_odd ? x[i + 1] : 0, has_odd ? w[i + 1] : 0, sum);
    sum = std::fma(x[i], w[i], sum);
  }
  return sum;
}

class GemmTest : public ::testing::TestWithParam<Isa> {
 protected:
  const KernelTable& table_ = KernelsFor(GetParam());
};

TEST_P(GemmTest, FloatWeightsFollowTheOrderOfTheHeader) {
  for (const int64_t inner_dim : kInnerDims) {
    for (const Kind& kind : kKinds) {
      if (kind.x_format == RowFormat::kInt8) continue;
      const GemmData data({5, 9, inner_dim}, kind);
      const std::vector<float> y = data.Run(table_);
      std::vector<float> expected, w(static_cast<size_t>(inner_dim));
      for (int64_t row = 0; row < 5; ++row) {
        std::vector<float> x(data.source.begin() + row * inner_dim, data.source.begin() + (row + 1) * inner_dim);
        if (kind.x_format == RowFormat::kBF16) {
          for (float& value : x) value = ToFloat(ToBF16(value));
        }
        for (int64_t col = 0; col < 9; ++col) {
          UnpackColumn(kind.w_format, data.w.data(), col, inner_dim, w.data());
          if (kind.x_format == RowFormat::kBF16) {
            for (float& value : w) value = ToFloat(ToBF16(value));
          }
          expected.push_back(FloatSum(x, w) + data.bias[col]);
        }
      }
      ExpectSameBits(y, expected);
    }
  }
}

TEST_P(GemmTest, Int8WeightsFollowTheOrderOfTheHeader) {
  for (const int64_t inner_dim : kInnerDims) {
    const GemmData data({3, 40, inner_dim}, {RowFormat::kInt8, WeightFormat::kInt8});
    const AlignedBytes rows = data.Rows(reference::PrepareRows);
    const int64_t num_groups = (inner_dim + 127) / 128;
    std::vector<float> expected;
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t col = 0; col < 40; ++col) {
        float sum = 0;
        for (int64_t group = 0; group < num_groups; ++group) {
          const std::byte* x = rows.data() + row * data.x_stride_bytes;
          Int8RowGroup x_group;
          std::memcpy(&x_group, x + num_groups * 128 + group * 16, 16);
          const std::byte* w = data.w.data() + col / 32 * num_groups * 4160 + group * 4160;
          BF16 scale;
          std::memcpy(&scale, w + 4096 + 2 * (col % 32), 2);
          int32_t dot = 0;
          for (int64_t k = 0; k < 128; ++k) {
            const int code = static_cast<int>(w[k / 4 * 128 + col % 32 * 4 + k % 4]) - 128;
            dot += code * static_cast<int8_t>(x[group * 128 + k]);
          }
          sum = std::fma(static_cast<float>(dot), ToFloat(scale) * x_group.scale, sum);
        }
        expected.push_back(sum + data.bias[col]);
      }
    }
    ExpectSameBits(data.Run(table_), expected);
  }
}

// A group of weights that share a scale: w = code * scale + min.
struct PlainGroup {
  float scale = 0;
  float min = 0;
  std::vector<int> codes = {};
};

float HalfAt(const std::byte* block, int64_t offset) {
  F16 half;
  std::memcpy(&half, block + offset, 2);
  return ToFloat(half);
}

// Reads a block of a format of each kind: signed codes, codes with an offset, with minima or zero points, and groups of
// 16.
std::vector<PlainGroup> PlainGroups(WeightFormat format, const std::byte* block) {
  const auto byte = [&](int64_t i) { return static_cast<int>(block[i]); };
  std::vector<PlainGroup> groups;
  if (format == WeightFormat::kQ8_0) {
    PlainGroup& group = groups.emplace_back(PlainGroup{.scale = HalfAt(block, 0)});
    for (int64_t i = 0; i < 32; ++i) group.codes.push_back(static_cast<int8_t>(byte(2 + i)));
  } else if (format == WeightFormat::kQ4_0) {
    PlainGroup& group = groups.emplace_back(PlainGroup{.scale = HalfAt(block, 0)});
    for (int64_t i = 0; i < 32; ++i) group.codes.push_back((byte(2 + i % 16) >> (i / 16 * 4) & 15) - 8);
  } else if (format == WeightFormat::kU4) {
    const float scale = HalfAt(block, 0);
    PlainGroup& group = groups.emplace_back(PlainGroup{.scale = scale, .min = -scale * static_cast<float>(byte(2))});
    for (int64_t i = 0; i < 32; ++i) group.codes.push_back(byte(3 + i % 16) >> (i / 16 * 4) & 15);
  } else if (format == WeightFormat::kNvfp4) {
    float scale_of_scales;
    std::memcpy(&scale_of_scales, block, 4);
    for (int64_t g = 0; g < 16; ++g) {
      const float scale = ToFloat(F8E4M3{static_cast<uint8_t>(block[4 + g])});
      PlainGroup& group = groups.emplace_back(PlainGroup{.scale = scale_of_scales / 2 * scale});
      for (int64_t i = 0; i < 16; ++i) {
        group.codes.push_back(kE2M1Halves[byte(20 + g / 2 * 16 + i) >> (g % 2 * 4) & 15]);
      }
    }
  } else if (format == WeightFormat::kQ4_K) {
    const KGroups scales = ReadKGroups(block);
    for (int64_t g = 0; g < 8; ++g) {
      PlainGroup& group = groups.emplace_back(PlainGroup{.scale = scales.scales[g], .min = -scales.minima[g]});
      for (int64_t i = 0; i < 32; ++i) group.codes.push_back(byte(16 + g / 2 * 32 + i) >> (g % 2 * 4) & 15);
    }
  } else {
    for (int64_t g = 0; g < 16; ++g) {
      PlainGroup& group = groups.emplace_back(
          PlainGroup{.scale = HalfAt(block, 208) * static_cast<float>(static_cast<int8_t>(byte(192 + g)))});
      for (int64_t i = 16 * g; i < 16 * g + 16; ++i) {
        const int low = byte(i / 128 * 64 + i % 64) >> (i % 128 / 64 * 4) & 15;
        group.codes.push_back((low | (byte(128 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3) << 4) - 32);
      }
    }
  }
  return groups;
}

TEST_P(GemmTest, BlocksTimesCodesFollowTheOrderOfTheHeader) {
  for (const WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_K, WeightFormat::kQ6_K,
                                    WeightFormat::kU4, WeightFormat::kNvfp4}) {
    const int64_t inner_dim = 768;
    const bool has_minima = format == WeightFormat::kQ4_K || format == WeightFormat::kU4;
    const GemmData data({3, 40, inner_dim}, {RowFormat::kInt8, format});
    const AlignedBytes rows = data.Rows(reference::PrepareRows);
    std::vector<float> expected;
    for (int64_t row = 0; row < 3; ++row) {
      const std::byte* x = rows.data() + row * data.x_stride_bytes;
      for (int64_t col = 0; col < 40; ++col) {
        std::vector<PlainGroup> groups;
        for (int64_t block = 0; block < inner_dim / BlockElements(format); ++block) {
          std::byte bytes[kMaxBlockBytes];
          ExtractBlock(format, data.w.data() + col / 32 * PanelBytes(format, inner_dim), block, col % 32, bytes);
          for (PlainGroup& group : PlainGroups(format, bytes)) groups.push_back(std::move(group));
        }
        float sum = 0, part = 0;
        int64_t k = 0;
        for (const PlainGroup& group : groups) {
          int32_t dot = 0, x_sum = 0;
          for (const int code : group.codes) {
            dot += code * static_cast<int8_t>(x[k]);
            x_sum += static_cast<int8_t>(x[k]);
            ++k;
          }
          part = std::fma(static_cast<float>(dot), group.scale, part);
          if (has_minima) part = std::fma(static_cast<float>(x_sum), group.min, part);
          if (k % 128 != 0) continue;
          Int8RowGroup x_group;
          std::memcpy(&x_group, x + inner_dim + (k / 128 - 1) * 16, 16);
          sum = std::fma(part, x_group.scale, sum);
          part = 0;
        }
        expected.push_back(sum + data.bias[col]);
      }
    }
    ExpectSameBits(data.Run(table_), expected);
  }
}

TEST_P(GemmTest, PreparesTheRowsOfTheOracle) {
  for (const int64_t dim : kInnerDims) {
    GemmData data({4, 1, dim}, {RowFormat::kInt8, WeightFormat::kInt8}, 1);
    const int64_t last = dim - 1;
    data.source[last] = 0x1p-110f;  // row 0: ties and magnitudes of all sizes
    for (int64_t k = 0; k < dim; ++k) data.source[data.source_stride + k] = 0x1p-110f;
    data.source[2 * data.source_stride + last] = std::numeric_limits<float>::infinity();
    data.source[3 * data.source_stride] = std::nanf("");
    const AlignedBytes expected = data.Rows(reference::PrepareRows), actual = data.Rows(table_.prepare_rows);
    for (int64_t row = 0; row < 4; ++row) {
      const int64_t begin = row * data.x_stride_bytes, codes = (dim + 127) / 128 * 128;
      EXPECT_EQ(std::memcmp(actual.data() + begin, expected.data() + begin, static_cast<size_t>(codes)), 0) << dim;
      for (int64_t group = 0; group < codes / 128; ++group) {
        Int8RowGroup a, e;
        std::memcpy(&a, actual.data() + begin + codes + 16 * group, 16);
        std::memcpy(&e, expected.data() + begin + codes + 16 * group, 16);
        ExpectSameBits({&a.scale, 1}, {&e.scale, 1});
        EXPECT_EQ(a.code_offset, e.code_offset);
        const int64_t sums = begin + codes + codes / 128 * 16 + 16 * group;
        EXPECT_EQ(std::memcmp(actual.data() + sums, expected.data() + sums, 16), 0);
        ExpectSameBits(a.code_sums, e.code_sums);
      }
    }
    const std::vector<float> y = data.Run(table_);
    EXPECT_EQ(y[data.y_stride], data.bias[0]);
    EXPECT_TRUE(std::isnan(y[2 * data.y_stride]) && std::isnan(y[3 * data.y_stride]));
  }
}

TEST_P(GemmTest, IsCloseToReferenceForAnyShapeAndStride) {
  for (const int64_t num_rows : kRowCounts) {
    for (const int64_t inner_dim : kInnerDims) {
      const int64_t num_cols = 1 + (num_rows * 5 + inner_dim) % 71;
      const Kind& kind = kKinds[(num_rows + inner_dim) % std::size(kKinds)];
      const GemmData data({num_rows, num_cols, inner_dim}, kind, inner_dim % 3);
      ExpectCloseToReference(data, data.Run(table_));
    }
  }
}

TEST_P(GemmTest, GivesTheBitsOfTheScalarKernels) {
  // The scalar kernels' results, in the order of the loops. Sanitizers slow them down the most, so they run only once.
  static std::vector<std::vector<float>> expected;
  const KernelTable& scalar = KernelsFor(Isa::kScalar);
  size_t i = 0;
  for (size_t row_idx = 0; row_idx < std::size(kRowCounts); ++row_idx) {
    for (size_t dim_idx = 0; dim_idx < std::size(kInnerDims); ++dim_idx) {
      const int64_t num_rows = kRowCounts[row_idx], inner_dim = kInnerDims[dim_idx];
      for (size_t kind_idx = 0; kind_idx < kKinds.size(); ++kind_idx) {
        // Every kind meets every number of rows with half of the numbers of inputs.
        if ((row_idx + dim_idx + kind_idx) % 2 != 0) continue;
        const Kind& kind = kKinds[kind_idx];
        const GemmData data({num_rows, 1 + num_rows * inner_dim % 45, inner_dim}, kind, 1);
        if (i == expected.size()) expected.push_back(data.Run(scalar));
        ASSERT_EQ(BitDifference(data.Run(table_), expected[i++]), "")
            << TraitsOf(kind.w_format).name << " M " << num_rows << " K " << inner_dim;
      }
    }
  }
}

// Kernels take rows in pairs of tiles, and in blocks of several hundred. The block formats here have scales for 32 and
// for 16 inputs, with and without minima.
TEST_P(GemmTest, GivesTheBitsOfTheScalarKernelsForManyRowsOfCodes) {
  constexpr WeightFormat kBlocks[] = {WeightFormat::kQ8_0, WeightFormat::kQ4_K, WeightFormat::kQ6_K,
                                      WeightFormat::kQ2_K};
  for (const int64_t num_rows : {17, 33, 270}) {
    for (const WeightFormatTraits& traits : kWeightFormats) {
      if (traits.kind != WeightKind::kCodes && !std::ranges::count(kBlocks, traits.value)) continue;
      const GemmData data({num_rows, 40, 1100}, {RowFormat::kInt8, traits.value}, 1);
      EXPECT_EQ(BitDifference(data.Run(table_), data.Run(KernelsFor(Isa::kScalar))), "")
          << traits.name << " M " << num_rows;
    }
  }
}

// Some kernels add products of codes in 16 bits. These bytes are the largest codes of 5 and 6 bits, and finite scales.
// Codes of 8 bits become -128.
TEST_P(GemmTest, SumsOfTheLargestCodesDoNotOverflow) {
  for (const WeightFormatTraits& traits : kWeightFormats) {
    if (!MultipliesInt8Rows(traits.value)) continue;
    GemmData data({17, 40, 512}, {RowFormat::kInt8, traits.value});
    const uint64_t num_bytes = PackedBytes(traits.value, 40, 512);
    std::memset(data.w.data(), 0x3F, num_bytes);
    if (traits.value == WeightFormat::kInt8) {
      for (uint64_t block = 0; block < num_bytes; block += kInt8BlockBytes) std::memset(data.w.data() + block, 0, 4096);
    } else if (traits.value == WeightFormat::kQ8_0) {
      for (uint64_t block = 0; block < num_bytes; block += 1088) std::memset(data.w.data() + block + 64, 0, 1024);
    }
    for (size_t i = 0; i < data.source.size(); ++i) data.source[i] = i / 512 % 2 == 0 ? 1.0f : -1.0f;
    const std::vector<float> y = data.Run(table_);
    EXPECT_TRUE(std::ranges::all_of(y, [](float value) { return std::isfinite(value); })) << traits.name;
    EXPECT_EQ(BitDifference(y, data.Run(KernelsFor(Isa::kScalar))), "") << traits.name;
  }
}

TEST_P(GemmTest, GivesTheSameBitsForEachStoredTypeOfTheSameWeights) {
  for (const int64_t inner_dim : kInnerDims) {
    for (const WeightFormatTraits& traits : kWeightFormats) {
      if (traits.kind == WeightKind::kCodes || traits.value == WeightFormat::kF32) continue;
      const WeightFormat format = traits.value;
      const GemmData narrow({7, 13, inner_dim}, {RowFormat::kF32, format});
      GemmData wide({7, 13, inner_dim}, {RowFormat::kF32, WeightFormat::kF32});
      std::vector<float> values(13 * inner_dim);
      for (int64_t col = 0; col < 13; ++col) {
        UnpackColumn(format, narrow.w.data(), col, inner_dim, values.data() + col * inner_dim);
      }
      PackPanel(Dtype::kF32, reinterpret_cast<const std::byte*>(values.data()), 13, inner_dim, WeightFormat::kF32,
                wide.w.data());
      ExpectSameBits(narrow.Run(table_), wide.Run(table_));
    }
  }
}

TEST_P(GemmTest, PartsOfRowsCanBePreparedOneByOne) {
  for (const RowFormat format : {RowFormat::kF32, RowFormat::kBF16, RowFormat::kInt8}) {
    const GemmData data({3, 1, 700}, {format, format == RowFormat::kInt8 ? WeightFormat::kInt8 : WeightFormat::kBF16},
                        1);
    const AlignedBytes whole = data.Rows(table_.prepare_rows);
    AlignedBytes parts(static_cast<uint64_t>(3 * data.x_stride_bytes));
    for (const int64_t first : {256, 0, 640, 512}) {
      table_.prepare_rows({.num_rows = 3,
                           .dim = 700,
                           .first = first,
                           .count = first == 640   ? 60
                                    : first == 512 ? 128
                                                   : 256,
                           .source = data.source.data() + first,
                           .source_stride = data.source_stride,
                           .format = format,
                           .target = parts.data(),
                           .target_stride_bytes = data.x_stride_bytes});
    }
    EXPECT_EQ(std::memcmp(parts.data(), whole.data(), static_cast<size_t>(3 * data.x_stride_bytes)), 0);
  }
}

// Any rows and panels of the result, computed by a separate call, have the same bits as in the whole product.
TEST_P(GemmTest, AnySplitGivesTheBitsOfTheWhole) {
  std::mt19937 generator(4);
  for (const int64_t inner_dim : {1, 65, 320, 1100}) {
    for (const Kind& kind : kKinds) {
      const GemmData data({33, 93, inner_dim}, kind, 2);
      const std::vector<float> whole = data.Run(table_);
      const AlignedBytes rows = data.Rows(table_.prepare_rows);
      for (int trial = 0; trial < 10; ++trial) {
        const int64_t row = generator() % 33, num_rows = 1 + generator() % (33 - row);
        const int64_t col = generator() % 3 * 32, num_cols = 1 + generator() % (93 - col);
        std::vector<float> y = whole;
        for (int64_t r = row; r < row + num_rows; ++r)
          std::fill_n(y.begin() + r * data.y_stride + col, num_cols, -7.0f);
        GemmArgs args = data.Args(rows, y.data());
        args.num_rows = num_rows;
        args.num_cols = num_cols;
        args.x += row * args.x_stride_bytes;
        args.w += col / 32 * args.panel_bytes;
        args.bias += col;
        args.y += row * args.y_stride + col;
        args.prefetching = static_cast<Prefetching>(trial % kNumPrefetchings);
        table_.gemm(args);
        ASSERT_EQ(BitDifference(y, whole), "") << TraitsOf(kind.w_format).name << " K " << inner_dim;
      }
    }
  }
}

TEST_P(GemmTest, NoBiasAddsNothing) {
  for (const Kind& kind : kKinds) {
    GemmData data({4, 6, 600}, kind);
    const AlignedBytes rows = data.Rows(table_.prepare_rows);
    std::vector<float> with_bias = data.NewOutput(), without = data.NewOutput();
    table_.gemm(data.Args(rows, with_bias.data()));
    GemmArgs args = data.Args(rows, without.data());
    args.bias = nullptr;
    table_.gemm(args);
    for (size_t i = 0; i < without.size(); ++i) without[i] += data.bias[i % 6];
    ExpectSameBits(without, with_bias);
  }
}

TEST_P(GemmTest, TouchesNothingBehindItsRowsWeightsBiasAndOutput) {
  for (const Kind& kind : kKinds) {
    for (const Shape& shape : {Shape{1, 9, 65}, Shape{7, 33, 257}, Shape{25, 40, 320}}) {
      const GemmData data(shape, kind);
      const AlignedBytes rows = data.Rows(table_.prepare_rows);
      std::vector<float> y = data.NewOutput();
      const GuardedBytes x(rows.data(), static_cast<uint64_t>(shape.num_rows * data.x_stride_bytes), 64);
      const GuardedBytes w(data.w.data(), PackedBytes(kind.w_format, shape.num_cols, shape.inner_dim), 64);
      const GuardedBytes bias(data.bias.data(), data.bias.size() * sizeof(float), sizeof(float));
      const GuardedBytes output(y.data(), y.size() * sizeof(float), sizeof(float));
      GemmArgs args = data.Args(rows, output.floats());
      args.x = x.data();
      args.w = w.data();
      args.bias = bias.floats();
      table_.gemm(args);
      std::copy_n(output.floats(), y.size(), y.begin());
      ExpectSameBits(y, data.Run(table_));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GemmTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

// Tests the tiles of the AVX512-BF16 unit, with its instruction spelled out, on machines without it, too.
TEST(EmulatedAvx512Bf16Test, TilesGiveTheBitsOfTheScalarKernels) {
  const std::vector<Isa> isas = SupportedIsas();
  if (std::find(isas.begin(), isas.end(), Isa::kAvx512) == isas.end()) GTEST_SKIP() << "this machine has no AVX-512";
  for (const int64_t num_rows : kRowCounts) {
    for (const int64_t inner_dim : kInnerDims) {
      const GemmData data({num_rows, 1 + num_rows * inner_dim % 45, inner_dim}, {RowFormat::kBF16, WeightFormat::kBF16},
                          1);
      ExpectSameBits(data.Run(EmulatedAvx512Bf16Rows, EmulatedAvx512Bf16Gemm), data.Run(KernelsFor(Isa::kScalar)));
    }
  }
}

TEST(Avx512Bf16Test, InstructionGivesTheBitsOfTheEmulation) {
  if (!SumsPairs(BestIsa())) GTEST_SKIP() << "this machine has no AVX512-BF16; its best is " << IsaName(BestIsa());
  const GemmData data({17, 40, 1024}, {RowFormat::kBF16, WeightFormat::kBF16});
  ExpectSameBits(data.Run(KernelsFor(Isa::kAvx512Bf16)), data.Run(EmulatedAvx512Bf16Rows, EmulatedAvx512Bf16Gemm));
}

}  // namespace
}  // namespace penstock::kernels
