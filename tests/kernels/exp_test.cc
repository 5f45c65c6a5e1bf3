// Proves that the exponential function is within 2 ulp of exp over its whole range, right at both ends of the range,
// and the same on every instruction set for every kind of float.
#include <cmath>
#include <limits>

#include "kernels/kernel_testing.h"

namespace penstock::kernels {
namespace {

std::vector<float> ExpOf(const KernelTable& table, std::span<const float> x) {
  std::vector<float> y(x.size());
  table.exp(x.data(), static_cast<int64_t>(x.size()), y.data());
  return y;
}

// Returns every 1999th float: both signs, subnormals, infinities and NaNs are among them.
std::vector<float> SweptFloats() {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < 1ull << 32; bits += 1999) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return values;
}

// Returns the distance in units of the last place of `exact`; for subnormals, in the unit of the smallest normal
// number.
double UlpError(float actual, double exact) {
  const double ulp = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 23);
  return std::abs(actual - exact) / ulp;
}

class ExpTest : public ::testing::TestWithParam<Isa> {
 protected:
  const KernelTable& table_ = KernelsFor(GetParam());
};

TEST_P(ExpTest, IsWithinTwoUlpWhereTheResultIsFinite) {
  std::vector<float> x;
  for (double value = -104; value < 88.7228; value += 0.00037) x.push_back(static_cast<float>(value));
  const std::vector<float> y = ExpOf(table_, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, UlpError(y[i], std::exp(static_cast<double>(x[i]))));
  EXPECT_LE(worst, 2.0);
  EXPECT_GT(worst, 0.4);  // rounding alone reaches 0.5: a smaller error would mean that nothing was compared
}

TEST_P(ExpTest, IsRightAtTheEnds) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0f,    -0.0f,  kInfinity, -kInfinity, 89.0f,  1e30f,
                                -104.0f, -1e30f, 88.72f,    -87.0f,     1e-30f, -1e-40f};
  const std::vector<float> y = ExpOf(table_, x);
  const std::vector<float> expected = {1, 1, kInfinity, 0, kInfinity, kInfinity, 0, 0};
  ExpectSameBits(std::span(y).first(expected.size()), expected);
  EXPECT_TRUE(std::isfinite(y[8]));
  EXPECT_GT(y[9], 0.0f);
  EXPECT_EQ(y[10], 1.0f);
  EXPECT_EQ(y[11], 1.0f);
  EXPECT_TRUE(std::isnan(ExpOf(table_, std::vector<float>{std::numeric_limits<float>::quiet_NaN()})[0]));
}

TEST_P(ExpTest, GivesTheBitsOfTheScalarKernelsForEveryKindOfFloat) {
  const std::vector<float> x = SweptFloats();
  ExpectSameBits(ExpOf(table_, x), ExpOf(KernelsFor(Isa::kScalar), x));
}

TEST_P(ExpTest, EachElementIsItsOwn) {
  const std::vector<float> x = RandomFloats(100, 1);
  const std::vector<float> whole = ExpOf(table_, x);
  for (size_t first = 0; first < 40; ++first) {
    for (const size_t count : {1, 7, 16, 17, 45}) {
      ExpectSameBits(ExpOf(table_, std::span(x).subspan(first, count)), std::span(whole).subspan(first, count));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, ExpTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace penstock::kernels
