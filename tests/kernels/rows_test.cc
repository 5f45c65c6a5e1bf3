// Proves that normalisation, rotation, SwiGLU, combine and the conversions match the oracle and give the same bits on
// every instruction set. Proves that they work in place and neither write nor depend on anything outside their rows.
#include <cmath>
#include <limits>

#include "kernels/kernel_testing.h"
#include "penstock/testing/reference/reference.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kDims[] = {1, 2, 7, 15, 16, 17, 20, 33, 45, 60, 128, 255, 1024};
constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

void ExpectNear(std::span<const float> actual, std::span<const float> expected, double relative, double absolute) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], relative * std::abs(expected[i]) + absolute) << "element " << i;
  }
}

class RowsTest : public ::testing::TestWithParam<Isa> {
 protected:
  const KernelTable& table_ = KernelsFor(GetParam());
  const KernelTable& scalar_ = KernelsFor(Isa::kScalar);
};

TEST_P(RowsTest, RmsNorm) {
  for (const int64_t dim : kDims) {
    const int64_t stride = dim + 3;
    const std::vector<float> x = RandomFloats(4 * stride, 1), weight = RandomFloats(dim, 2);
    std::vector<float> y(x.size(), -1.0f), expected = y, scalar = y, in_place = x, alone = y;
    const auto args = [&](int64_t num_rows, const float* source, float* out) {
      return NormArgs{.num_rows = num_rows,
                      .dim = dim,
                      .x = source,
                      .x_stride = stride,
                      .weight = weight.data(),
                      .eps = 1e-5f,
                      .out = out,
                      .out_stride = stride};
    };
    table_.norm(args(4, x.data(), y.data()));
    scalar_.norm(args(4, x.data(), scalar.data()));
    reference::NormRows(args(4, x.data(), expected.data()));
    // All squares are positive, so their sum is within (dim/16 + 4) roundings; the root keeps half of them.
    ExpectNear(y, expected, (static_cast<double>(dim) / 16 + 10) * kEpsilon, 0);
    ExpectSameBits(y, scalar);
    for (int64_t row = 0; row < 4; ++row) {
      table_.norm(args(1, x.data() + row * stride, alone.data() + row * stride));
    }
    ExpectSameBits(y, alone);
    table_.norm(args(4, in_place.data(), in_place.data()));
    for (int64_t row = 0; row < 4; ++row) {
      ExpectSameBits(std::span(in_place).subspan(row * stride, dim), std::span(y).subspan(row * stride, dim));
    }
  }
}

TEST_P(RowsTest, LayerNorm) {
  for (const int64_t dim : kDims) {
    const int64_t stride = dim + 3;
    std::vector<float> x = RandomFloats(4 * stride, 1);
    for (float& value : x) value += 3;
    const std::vector<float> weight = RandomFloats(dim, 2), bias = RandomFloats(dim, 3);
    for (const bool has_bias : {false, true}) {
      std::vector<float> y(x.size(), -1.0f), expected = y, scalar = y;
      const auto args = [&](float* out) {
        return NormArgs{.num_rows = 4,
                        .dim = dim,
                        .x = x.data(),
                        .x_stride = stride,
                        .weight = weight.data(),
                        .eps = 1e-2f,
                        .out = out,
                        .out_stride = stride,
                        .norm = Norm::kLayer,
                        .bias = has_bias ? bias.data() : nullptr};
      };
      table_.norm(args(y.data()));
      scalar_.norm(args(scalar.data()));
      reference::NormRows(args(expected.data()));
      // The mean is off by some roundings of values below 8; dividing by at least the root of eps enlarges that.
      ExpectNear(y, expected, 0, (static_cast<double>(dim) / 16 + 10) * 80 * kEpsilon);
      ExpectSameBits(y, scalar);
    }
  }
}

TEST_P(RowsTest, RopeTurnsInterleavedPairs) {
  const std::vector<float> x = RandomFloats(2 * 9, 1), cos = RandomFloats(3, 2), sin = RandomFloats(3, 3);
  std::vector<float> y = x, expected = x;
  const auto args = [&](std::vector<float>& values) {
    return RopeArgs{.num_heads = 2,
                    .rotary_dim = 6,
                    .x = values.data(),
                    .head_stride = 9,
                    .cos = cos.data(),
                    .sin = sin.data(),
                    .is_interleaved = true};
  };
  table_.rope(args(y));
  reference::Rope(args(expected));
  ExpectNear(y, expected, 2 * kEpsilon, 8 * kEpsilon);
  for (const size_t i : {6, 7, 8, 15, 16, 17}) EXPECT_EQ(y[i], x[i]);
  EXPECT_NE(y[1], x[1]);
}

TEST_P(RowsTest, RopeRotatesWhatItShouldAndNothingElse) {
  for (const int64_t half : kDims) {
    const int64_t stride = 2 * half + 5;
    const std::vector<float> x = RandomFloats(3 * stride, 1);
    std::vector<float> cos, sin;
    for (int64_t d = 0; d < half; ++d) {
      cos.push_back(static_cast<float>(std::cos(0.7 * static_cast<double>(d + 1))));
      sin.push_back(static_cast<float>(std::sin(0.7 * static_cast<double>(d + 1))));
    }
    std::vector<float> y = x, scalar = x, expected = x;
    const auto args = [&](std::vector<float>& values) {
      return RopeArgs{.num_heads = 3,
                      .rotary_dim = 2 * half,
                      .x = values.data(),
                      .head_stride = stride,
                      .cos = cos.data(),
                      .sin = sin.data()};
    };
    table_.rope(args(y));
    scalar_.rope(args(scalar));
    reference::Rope(args(expected));
    ExpectSameBits(y, scalar);
    // |a cos| + |b sin| <= 50 for this data, so two products and a sum are within 1.5 eps of that.
    ExpectNear(y, expected, 0, 1.5 * kEpsilon * 50);
    for (int64_t head = 0; head < 3; ++head) {
      ExpectSameBits(std::span(y).subspan(head * stride + 2 * half, 5),
                     std::span(x).subspan(head * stride + 2 * half, 5));
    }
  }
}

TEST_P(RowsTest, Swiglu) {
  for (const int64_t dim : kDims) {
    const int64_t stride = dim + 1;
    const std::vector<float> gate = RandomFloats(3 * stride, 1), up = RandomFloats(3 * stride, 2);
    std::vector<float> y(gate.size(), -1.0f), scalar = y, expected = y, in_place = gate;
    const auto args = [&](const float* gate_data, float* out) {
      return SwigluArgs{.num_rows = 3,
                        .dim = dim,
                        .gate = gate_data,
                        .gate_stride = stride,
                        .up = up.data(),
                        .up_stride = stride,
                        .out = out,
                        .out_stride = stride};
    };
    table_.swiglu(args(gate.data(), y.data()));
    scalar_.swiglu(args(gate.data(), scalar.data()));
    reference::Swiglu(args(gate.data(), expected.data()));
    ExpectSameBits(y, scalar);
    ExpectNear(y, expected, 5 * kEpsilon, 0);  // exp 2 ulp, then an addition, a division and a product
    table_.swiglu(args(in_place.data(), in_place.data()));
    ExpectSameBits(std::span(in_place).first(dim), std::span(y).first(dim));
  }
}

TEST_P(RowsTest, GluOfOtherRules) {
  struct Case {
    GluRule rule;
    double (*activation)(double gate);
    double limit;         // of the activation, and of up
    double error_of_one;  // of y
  };
  constexpr double kNone = 1e30;
  const Case cases[] = {
      {kGeluTanhGlu, [](double g) { return g / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))); },
       kNone, 1e-5},
      {{.output_limit = 0.25f}, [](double g) { return g / (1 + std::exp(-g)); }, 0.25, 1e-6}};
  for (const Case& one : cases) {
    for (const int64_t dim : kDims) {
      const std::vector<float> gate = RandomFloats(dim, 1), up = RandomFloats(dim, 2);
      std::vector<float> y(gate.size()), scalar = y, expected = y;
      const auto args = [&](float* out) {
        return SwigluArgs{.num_rows = 1,
                          .dim = dim,
                          .gate = gate.data(),
                          .gate_stride = dim,
                          .up = up.data(),
                          .up_stride = dim,
                          .out = out,
                          .out_stride = dim,
                          .rule = one.rule};
      };
      table_.swiglu(args(y.data()));
      scalar_.swiglu(args(scalar.data()));
      reference::Swiglu(args(expected.data()));
      ExpectSameBits(y, scalar);
      for (size_t i = 0; i < gate.size(); ++i) {
        const double g = gate[i], u = up[i], scale = 1 + std::fabs(g * u);
        const double exact = std::min(one.limit, one.activation(g)) * std::clamp(u, -one.limit, one.limit);
        EXPECT_NEAR(expected[i], exact, 1e-6 * scale);
        EXPECT_NEAR(y[i], expected[i], one.error_of_one * scale);
      }
    }
  }
}

TEST_P(RowsTest, SoftCap) {
  for (const int64_t dim : kDims) {
    const std::vector<float> x = RandomFloats(dim, 3);
    std::vector<float> y = x, scalar = x, expected = x;
    table_.soft_cap(3, dim, y.data());
    scalar_.soft_cap(3, dim, scalar.data());
    reference::SoftCap(3, dim, expected.data());
    ExpectSameBits(y, scalar);
    ExpectNear(y, expected, 0, 8 * kEpsilon * 3);
  }
  std::vector<float> ends = {-1e30f, 1e30f, 0.0f};
  table_.soft_cap(30, 3, ends.data());
  EXPECT_EQ(ends, (std::vector<float>{-30, 30, 0}));
}

TEST_P(RowsTest, NormWithoutWeights) {
  for (const int64_t dim : kDims) {
    const std::vector<float> x = RandomFloats(dim, 1), ones(x.size(), 1.0f);
    std::vector<float> y(x.size()), expected = y;
    const auto args = [&](const float* weight, float* out) {
      return NormArgs{.num_rows = 1,
                      .dim = dim,
                      .x = x.data(),
                      .x_stride = dim,
                      .weight = weight,
                      .eps = 1e-6f,
                      .out = out,
                      .out_stride = dim};
    };
    table_.norm(args(nullptr, y.data()));
    table_.norm(args(ones.data(), expected.data()));
    ExpectSameBits(y, expected);
  }
}

TEST_P(RowsTest, SwigluOfLargeValuesStaysFinite) {
  const std::vector<float> gate = {-1000, -90, 90, 1000}, up(4, 2.0f);
  std::vector<float> y(4);
  table_.swiglu({.num_rows = 1,
                 .dim = 4,
                 .gate = gate.data(),
                 .gate_stride = 4,
                 .up = up.data(),
                 .up_stride = 4,
                 .out = y.data(),
                 .out_stride = 4});
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_NEAR(y[1], 0.0f, 1e-30f);
  EXPECT_EQ(y[2], 180.0f);
  EXPECT_EQ(y[3], 2000.0f);
}

TEST_P(RowsTest, Combine) {
  for (const int64_t dim : kDims) {
    const int64_t num_rows = 5, num_topk = 3;
    const std::vector<float> residual = RandomFloats(num_rows * dim, 1), z = RandomFloats(num_rows * num_topk * dim, 2);
    const std::vector<float> weights = RandomFloats(num_rows * num_topk, 3);
    std::vector<int64_t> assignments;
    for (int64_t i = 0; i < num_rows * num_topk; ++i) assignments.push_back(i * 7 % (num_rows * num_topk));
    std::vector<float> y(residual.size()), scalar = y, expected = y, in_place = residual;
    const auto args = [&](const float* source, float* out) {
      return CombineArgs{.num_rows = num_rows,
                         .dim = dim,
                         .num_topk = num_topk,
                         .residual = source,
                         .residual_stride = dim,
                         .z = z.data(),
                         .z_stride = dim,
                         .assignments = assignments.data(),
                         .weights = weights.data(),
                         .y = out,
                         .y_stride = dim};
    };
    table_.combine(args(residual.data(), y.data()));
    scalar_.combine(args(residual.data(), scalar.data()));
    reference::Combine(args(residual.data(), expected.data()));
    ExpectSameBits(y, scalar);
    // Three products of at most 30 * 30 and a residual of at most 30 for this data.
    ExpectNear(y, expected, 0, 4 * kEpsilon * 2730);
    table_.combine(args(in_place.data(), in_place.data()));
    ExpectSameBits(in_place, y);
  }
}

// If each row's expert returns the row and the weights sum to one, their weighted sum is that row again.
TEST_P(RowsTest, CombineOfIdentityExpertsDoublesTheResidual) {
  const std::vector<float> x = RandomFloats(45, 1);
  const std::vector<int64_t> assignments = {0, 0};
  const std::vector<float> weights = {0.25f, 0.75f};
  std::vector<float> y(45), twice;
  table_.combine({.num_rows = 1,
                  .dim = 45,
                  .num_topk = 2,
                  .residual = x.data(),
                  .residual_stride = 45,
                  .z = x.data(),
                  .z_stride = 45,
                  .assignments = assignments.data(),
                  .weights = weights.data(),
                  .y = y.data(),
                  .y_stride = 45});
  for (const float value : x) twice.push_back(2 * value);
  ExpectNear(y, twice, kEpsilon, 0);
}

TEST_P(RowsTest, AddLeavesWhatFollowsAlone) {
  for (const int64_t dim : kDims) {
    const std::vector<float> source = RandomFloats(dim + 4, 1), target = RandomFloats(dim + 4, 2);
    for (const float scale : {1.0f, 0.22f}) {
      std::vector<float> y = target, expected = target;
      table_.add(source.data(), scale, dim, y.data());
      reference::Add(source.data(), scale, dim, expected.data());
      ExpectSameBits(y, expected);
    }
  }
}

TEST_P(RowsTest, RoundsToBf16LikeTheScalarFunction) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < 1ull << 32; bits += 0x7FFF) {  // covers ties, NaNs, infinities, subnormals
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (const uint32_t bits :
       {0x3F808000u, 0x3F818000u, 0x3F808001u, 0x7F7FFFFFu, 0x7F800001u, 0xFF800001u, 0x00008000u}) {
    x.push_back(std::bit_cast<float>(bits));
  }
  std::vector<BF16> y(x.size()), expected(x.size());
  table_.to_bf16(x.data(), static_cast<int64_t>(x.size()), y.data());
  reference::ToBf16(x.data(), static_cast<int64_t>(x.size()), expected.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i].bits, expected[i].bits) << "float with bits " << std::bit_cast<uint32_t>(x[i]);
  }
}

TEST_P(RowsTest, WidensEveryHalfAndBfloatExactly) {
  std::vector<std::byte> bytes(2 * 65536 + 1);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    std::memcpy(bytes.data() + 1 + 2 * bits, &half, 2);
  }
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
    std::vector<float> y(65536), expected(65536);
    table_.to_f32(dtype, bytes.data() + 1, 65536, y.data());
    reference::ToF32(dtype, bytes.data() + 1, 65536, expected.data());
    ExpectSameBits(y, expected);
  }
}

TEST_P(RowsTest, ConversionsOfAnyLengthStayInside) {
  const std::vector<float> x = RandomFloats(64, 1);
  for (const Dtype dtype : kAllDtypes) {
    const StoredValues stored(dtype, x, 1);
    for (int64_t count = 1; count <= 40; ++count) {
      std::vector<float> y(41, -1.0f), expected(41, -1.0f);
      table_.to_f32(dtype, stored.data(), count, y.data());
      reference::ToF32(dtype, stored.data(), count, expected.data());
      ExpectSameBits(y, expected);
      std::vector<BF16> rounded(41, BF16{7});
      table_.to_bf16(x.data(), count, rounded.data());
      EXPECT_EQ(rounded[count].bits, 7);
      EXPECT_EQ(rounded[count - 1].bits, ToBF16(x[count - 1]).bits);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RowsTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace penstock::kernels
