// Proves that the GEMMs compute what the oracle computes within the error bound of their sums, and that the bits of an
// output depend on its row of x, its row of w and nothing else: not on the instruction set, the other rows and columns,
// the strides, the alignment, or the type that stores the weights.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/emulated_avx512bf16.h"
#include "kernels/kernel_testing.h"
#include "penstock/kernels/reference/reference.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kInnerDims[] = {1, 2, 7, 15, 16, 17, 20, 31, 32, 33, 45, 60, 255, 1024};
constexpr int64_t kRowCounts[] = {1, 2, 3, 5, 6, 7, 17, 64};

struct Shape {
  int64_t num_rows;
  int64_t num_cols;
  int64_t inner_dim;
};

// Data for one shape; x and w are padded by `stride_extra` elements per row, y is not.
struct GemmData {
  GemmData(const Shape& s, Dtype w_dtype, int64_t stride_extra, int64_t misalignment)
      : shape(s),
        x_stride(s.inner_dim + stride_extra),
        w_stride(s.inner_dim + 2 * stride_extra),
        x(RandomFloats(s.num_rows * x_stride, 1)),
        x_bf16(ToBf16s(x)),
        w(w_dtype, RandomFloats(s.num_cols * w_stride, 2), misalignment),
        bias(RandomFloats(s.num_cols, 3)),
        dtype(w_dtype) {}

  GemmF32Args F32Args(float* y) const {
    return {.num_rows = shape.num_rows,
            .num_cols = shape.num_cols,
            .inner_dim = shape.inner_dim,
            .x = x.data(),
            .x_stride = x_stride,
            .w_dtype = dtype,
            .w = w.data(),
            .w_stride = w_stride,
            .bias = bias.data(),
            .y = y,
            .y_stride = shape.num_cols};
  }
  GemmBf16Args Bf16Args(float* y) const {
    return {.num_rows = shape.num_rows,
            .num_cols = shape.num_cols,
            .inner_dim = shape.inner_dim,
            .x = x_bf16.data(),
            .x_stride = x_stride,
            .w = w.data(),
            .w_stride = w_stride,
            .bias = bias.data(),
            .y = y,
            .y_stride = shape.num_cols};
  }
  std::vector<float> NewOutput() const {
    return std::vector<float>(static_cast<size_t>(shape.num_rows * shape.num_cols), -1.0f);
  }

  Shape shape;
  int64_t x_stride;
  int64_t w_stride;
  std::vector<float> x;
  std::vector<BF16> x_bf16;
  StoredValues w;
  std::vector<float> bias;
  Dtype dtype;
};

std::vector<float> RunF32(const KernelTable& table, const GemmData& data) {
  std::vector<float> y = data.NewOutput();
  table.gemm_f32(data.F32Args(y.data()));
  return y;
}

std::vector<float> RunBf16(const KernelTable& table, const GemmData& data) {
  std::vector<float> y = data.NewOutput();
  table.gemm_bf16(data.Bf16Args(y.data()));
  return y;
}

// |computed - exact| <= (steps + tree + bias) * eps/2 * sum |x||w|, doubled for the second-order terms.
void ExpectCloseToReference(const GemmData& data, std::span<const float> actual, bool is_bf16) {
  std::vector<float> expected = data.NewOutput();
  if (is_bf16) {
    reference::GemmBf16(data.Bf16Args(expected.data()));
  } else {
    reference::GemmF32(data.F32Args(expected.data()));
  }
  const auto [num_rows, num_cols, inner_dim] = data.shape;
  const double roundings = static_cast<double>(inner_dim) / 16 + 8;
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t col = 0; col < num_cols; ++col) {
      double magnitude = std::abs(data.bias[static_cast<size_t>(col)]);
      for (int64_t k = 0; k < inner_dim; ++k) {
        const size_t x_idx = static_cast<size_t>(row * data.x_stride + k);
        const double x = is_bf16 ? ToFloat(data.x_bf16[x_idx]) : data.x[x_idx];
        magnitude += std::abs(x * data.w.widened()[static_cast<size_t>(col * data.w_stride + k)]);
      }
      const size_t idx = static_cast<size_t>(row * num_cols + col);
      ASSERT_NEAR(actual[idx], expected[idx], roundings * std::numeric_limits<float>::epsilon() * magnitude)
          << "row " << row << " col " << col << " K " << inner_dim;
    }
  }
}

// The order written in kernel_table.h, in the plainest words.
float LaneDot(std::span<const float> x, std::span<const float> w) {
  float lanes[16] = {};
  const size_t padded = (x.size() + 15) / 16 * 16;
  for (size_t k = 0; k < padded; ++k) {
    lanes[k % 16] = std::fma(k < x.size() ? x[k] : 0, k < x.size() ? w[k] : 0, lanes[k % 16]);
  }
  for (const size_t half : {8, 4, 2, 1}) {
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

float LanePairDot(std::span<const float> x, std::span<const float> w) {
  float lanes[16] = {};
  const auto at = [&](std::span<const float> values, size_t k) { return k < values.size() ? values[k] : 0; };
  for (size_t i = 0; i < x.size(); i += 32) {
    for (size_t j = 0; j < 16; ++j) {
      lanes[j] = std::fma(at(x, i + 2 * j + 1), at(w, i + 2 * j + 1), lanes[j]);
      lanes[j] = std::fma(at(x, i + 2 * j), at(w, i + 2 * j), lanes[j]);
    }
  }
  for (const size_t half : {8, 4, 2, 1}) {
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

class GemmTest : public ::testing::TestWithParam<Isa> {
 protected:
  const KernelTable& table_ = KernelsFor(GetParam());
};

TEST_P(GemmTest, FollowsTheOrderOfTheHeader) {
  for (const int64_t inner_dim : kInnerDims) {
    const GemmData data({5, 9, inner_dim}, Dtype::kBF16, 0, 0);
    const std::vector<float> y_f32 = RunF32(table_, data), y_bf16 = RunBf16(table_, data);
    std::vector<float> f32_expected, bf16_expected;
    for (int64_t row = 0; row < 5; ++row) {
      std::vector<float> x_rounded;
      for (int64_t k = 0; k < inner_dim; ++k) x_rounded.push_back(ToFloat(data.x_bf16[row * inner_dim + k]));
      for (int64_t col = 0; col < 9; ++col) {
        const auto w = std::span(data.w.widened()).subspan(col * inner_dim, inner_dim);
        f32_expected.push_back(LaneDot(std::span(data.x).subspan(row * inner_dim, inner_dim), w) + data.bias[col]);
        bf16_expected.push_back(LanePairDot(x_rounded, w) + data.bias[col]);
      }
    }
    ExpectSameBits(y_f32, f32_expected);
    ExpectSameBits(y_bf16, bf16_expected);
  }
}

TEST_P(GemmTest, IsCloseToReferenceForAnyShapeStrideAndAlignment) {
  for (const int64_t num_rows : kRowCounts) {
    for (const int64_t inner_dim : kInnerDims) {
      const int64_t num_cols = 1 + (num_rows * 5 + inner_dim) % 23;
      for (const Dtype dtype : kAllDtypes) {
        const GemmData data({num_rows, num_cols, inner_dim}, dtype, inner_dim % 3, inner_dim % 4);
        ExpectCloseToReference(data, RunF32(table_, data), /*is_bf16=*/false);
        if (dtype == Dtype::kBF16) ExpectCloseToReference(data, RunBf16(table_, data), /*is_bf16=*/true);
      }
    }
  }
}

TEST_P(GemmTest, GivesTheBitsOfTheScalarKernels) {
  const KernelTable& scalar = KernelsFor(Isa::kScalar);
  for (const int64_t num_rows : kRowCounts) {
    for (const int64_t inner_dim : kInnerDims) {
      const GemmData data({num_rows, 1 + num_rows * inner_dim % 21, inner_dim}, Dtype::kBF16, 1, 2);
      ExpectSameBits(RunF32(table_, data), RunF32(scalar, data));
      ExpectSameBits(RunBf16(table_, data), RunBf16(scalar, data));
    }
  }
}

TEST_P(GemmTest, GivesTheSameBitsForEachStoredTypeOfTheSameWeights) {
  for (const int64_t inner_dim : kInnerDims) {
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
      const GemmData narrow({7, 13, inner_dim}, dtype, 0, 1);
      GemmData wide({7, 13, inner_dim}, Dtype::kF32, 0, 3);
      wide.w = StoredValues(Dtype::kF32, narrow.w.widened(), 3);
      ExpectSameBits(RunF32(table_, narrow), RunF32(table_, wide));
    }
  }
}

// Any rectangle of the result, computed by a call of its own, has the bits that the whole product has there.
TEST_P(GemmTest, AnySplitGivesTheBitsOfTheWhole) {
  std::mt19937 generator(4);
  for (const int64_t inner_dim : kInnerDims) {
    const GemmData data({33, 29, inner_dim}, Dtype::kBF16, 2, 2);
    const std::vector<float> whole_f32 = RunF32(table_, data), whole_bf16 = RunBf16(table_, data);
    for (int trial = 0; trial < 20; ++trial) {
      const int64_t row = generator() % 33, col = generator() % 29;
      const int64_t num_rows = 1 + generator() % (33 - row), num_cols = 1 + generator() % (29 - col);
      std::vector<float> y_f32 = whole_f32, y_bf16 = whole_bf16;
      const auto narrow = [&](auto args) {
        for (int64_t r = row; r < row + num_rows; ++r) std::fill_n(args.y + r * 29 + col, num_cols, -7.0f);
        args.num_rows = num_rows;
        args.num_cols = num_cols;
        args.x += row * args.x_stride;
        args.w += col * args.w_stride * 2;
        args.bias += col;
        args.y += row * 29 + col;
        return args;
      };
      table_.gemm_f32(narrow(data.F32Args(y_f32.data())));
      table_.gemm_bf16(narrow(data.Bf16Args(y_bf16.data())));
      ExpectSameBits(y_f32, whole_f32);
      ExpectSameBits(y_bf16, whole_bf16);
    }
  }
}

// More columns than one cache block of w holds, so that the outer loop runs more than once.
TEST_P(GemmTest, BlocksOfColumnsMeetWithoutGapOrOverlap) {
  const GemmData data({3, 150, 1500}, Dtype::kF32, 0, 0);
  const std::vector<float> y = RunF32(table_, data);
  ExpectCloseToReference(data, y, /*is_bf16=*/false);
  for (int64_t row = 0; row < 3; ++row) {
    std::vector<float> y_row(150);
    GemmF32Args args = data.F32Args(y_row.data());
    args.num_rows = 1;
    args.x += row * args.x_stride;
    table_.gemm_f32(args);
    ExpectSameBits(std::span(y).subspan(row * 150, 150), y_row);
  }
}

TEST_P(GemmTest, NoBiasAddsNothing) {
  GemmData data({4, 6, 40}, Dtype::kF32, 0, 0);
  std::fill(data.bias.begin(), data.bias.end(), 0.0f);
  const std::vector<float> expected = RunF32(table_, data);
  std::vector<float> y = data.NewOutput();
  GemmF32Args args = data.F32Args(y.data());
  args.bias = nullptr;
  table_.gemm_f32(args);
  ExpectSameBits(y, expected);
}

// Nothing beyond the last element of a row is multiplied: infinities there would give NaN.
TEST_P(GemmTest, PaddingOfRowsIsNotRead) {
  for (const int64_t inner_dim : {1, 17, 45}) {
    GemmData data({3, 5, inner_dim}, Dtype::kF32, 20, 0);
    std::vector<float> w = data.w.widened();
    for (size_t i = 0; i < w.size(); ++i) {
      if (static_cast<int64_t>(i) % data.w_stride >= inner_dim) w[i] = std::numeric_limits<float>::infinity();
    }
    const std::vector<float> expected = RunF32(table_, data);
    data.w = StoredValues(Dtype::kF32, w, 0);
    ExpectSameBits(RunF32(table_, data), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GemmTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

// The tiles of the AVX512-BF16 unit, with its instruction spelled out, so that machines without it test them too.
TEST(EmulatedAvx512Bf16Test, TilesGiveTheBitsOfTheScalarKernels) {
  const std::vector<Isa> isas = SupportedIsas();
  if (std::find(isas.begin(), isas.end(), Isa::kAvx512) == isas.end()) GTEST_SKIP() << "this machine has no AVX-512";
  for (const int64_t num_rows : kRowCounts) {
    for (const int64_t inner_dim : kInnerDims) {
      const GemmData data({num_rows, 1 + num_rows * inner_dim % 21, inner_dim}, Dtype::kBF16, 1, 2);
      std::vector<float> y = data.NewOutput();
      EmulatedAvx512Bf16Gemm(data.Bf16Args(y.data()));
      ExpectSameBits(y, RunBf16(KernelsFor(Isa::kScalar), data));
    }
  }
}

TEST(Avx512Bf16Test, InstructionGivesTheBitsOfTheEmulation) {
  if (BestIsa() != Isa::kAvx512Bf16)
    GTEST_SKIP() << "this machine has no AVX512-BF16; its best is " << IsaName(BestIsa());
  const GemmData data({17, 40, 1024}, Dtype::kBF16, 0, 0);
  std::vector<float> y = data.NewOutput();
  EmulatedAvx512Bf16Gemm(data.Bf16Args(y.data()));
  ExpectSameBits(RunBf16(KernelsFor(Isa::kAvx512Bf16), data), y);
}

}  // namespace
}  // namespace penstock::kernels
