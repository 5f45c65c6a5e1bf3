// Proves that HQQ is never worse than round to nearest, and better on average. Proves that every build of the solver
// gives the bits of a plain solver of one group, and that codes are the nearest. Proves that scales and zeros survive
// their own quantisation, and fixes the results for constant, tiny, huge and broken groups.
#include "penstock/tensor/hqq.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

namespace penstock {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr const char* kKinds[] = {"gaussian", "heavy-tailed", "uniform"};

std::vector<float> RandomWeights(size_t kind, size_t count, float size, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> heavy(3);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> weights(count);
  for (float& weight : weights) {
    weight = size * (kind == 0 ? normal(random) : kind == 1 ? heavy(random) : uniform(random));
  }
  return weights;
}

std::vector<uint8_t> Encode(std::span<const float> weights, int bits, HqqGroup group) {
  std::vector<uint8_t> codes(weights.size());
  EncodeGroup(weights, CodeRange::OfBits(bits), group, codes.data());
  return codes;
}

double MeanError(std::span<const float> weights, int bits, HqqGroup group) {
  const std::vector<uint8_t> codes = Encode(weights, bits, group);
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += std::abs(static_cast<double>(weights[i]) - DequantiseHqq(codes[i], group));
  }
  return sum / static_cast<double>(weights.size());
}

std::vector<HqqGroup> Solve(std::span<const float> weights, int bits, const HqqSolver& solver) {
  std::vector<HqqGroup> groups((weights.size() + kHqqGroup - 1) / kHqqGroup);
  solver.solve(weights, bits, groups);
  return groups;
}

bool SameBits(HqqGroup a, HqqGroup b) {
  return std::bit_cast<std::array<uint32_t, 2>>(a) == std::bit_cast<std::array<uint32_t, 2>>(b);
}

// Returns about |x|^-0.3.
float PlainPower(float x) {
  const float offset = (127.0f - 0.043f) * (2 - 0.7f) * (1 << 23);
  const float bits = static_cast<float>(std::bit_cast<int32_t>(x));
  return std::bit_cast<float>(static_cast<int32_t>(offset - (1 - 0.7f) * bits));
}

// Solves one group of finite weights, step by step in scalars.
HqqGroup PlainSolve(std::span<const float> weights, int bits) {
  const HqqGroup nearest = RoundToNearestGroup(weights, bits);
  if (nearest.scale == 0) return nearest;
  const float levels = static_cast<float>((1 << bits) - 1);
  const float count = static_cast<float>(weights.size());
  float best_stretch = 1, best_zero = nearest.zero, best_error = FLT_MAX;
  float stretch = 1, zero = nearest.zero, beta = 5.0f;
  for (int iteration = 0; iteration <= 2 * 20 + 1; ++iteration, beta *= 1.01f) {
    if (iteration == 21) {  // restart from a clipped range
      stretch = 1.12f;
      zero = std::clamp(nearest.zero * 1.12f - levels / 2 * (1.12f - 1), -levels, 2 * levels);
      beta = 5.0f;
    }
    float error = 0, code_sum = 0, code_code = 0, pull_sum = 0, code_pull = 0;
    for (const float weight : weights) {
      const float exact = weight / nearest.scale * stretch + zero;
      const float code = std::nearbyint(std::clamp(exact, 0.0f, levels));
      const float residual = exact - code;
      const float pull =
          std::copysign(std::min(std::abs(residual), PlainPower(std::abs(residual)) * (1 / beta)), residual);
      error += std::abs(residual);
      code_sum += code;
      code_code += code * code;
      pull_sum += pull;
      code_pull += code * pull;
    }
    error /= stretch;
    if (error < best_error - best_error * (1.0f / 4096) - levels * count * (1.0f / (1 << 20))) {
      best_error = error;
      best_stretch = stretch;
      best_zero = zero;
    }
    const float variance = count * code_code - code_sum * code_sum;
    float slope = variance > 0 ? (count * code_pull - code_sum * pull_sum) / variance : 0;
    slope = std::clamp(slope, -0.5f, 1.0f);
    zero = std::clamp((zero + (slope * code_sum - pull_sum) / count) / (1 + slope), -levels, 2 * levels);
    stretch /= 1 + slope;
  }
  const float scale = nearest.scale / best_stretch;
  return scale >= FLT_MIN && scale <= FLT_MAX / (2 * levels) ? HqqGroup{scale, best_zero} : nearest;
}

TEST(Hqq, ThePowerIsWithinFourPerCent) {
  for (float x = 1e-6f; x < 1e6f; x *= 1.001f) ASSERT_NEAR(PlainPower(x) / std::pow(x, -0.3), 1, 0.04) << x;
}

RC_GTEST_PROP(Hqq, EverySolverGivesTheBitsOfThePlainOne, (uint32_t seed)) {
  std::mt19937 random(seed);
  const int bits = kHqqMinBits + static_cast<int>(random() % (kHqqMaxBits - kHqqMinBits + 1));
  const size_t count = 1 + random() % (40 * kHqqGroup);
  const float size = std::ldexp(1.0f, static_cast<int>(random() % 200) - 100);
  std::vector<float> weights = RandomWeights(random() % 3, count, size, random);
  for (size_t start = 0; start + kHqqGroup <= count; start += kHqqGroup) {
    const float value = weights[start];
    if (random() % 8 == 0) std::fill_n(weights.begin() + start, kHqqGroup, value);
    if (random() % 8 == 0) std::fill_n(weights.begin() + start, kHqqGroup - 1, 0.0f);
    if (random() % 8 == 0) std::for_each_n(weights.begin() + start, kHqqGroup, [=](float& w) { w += 5 * value; });
  }
  for (const HqqSolver& solver : HqqSolvers()) {
    const std::vector<HqqGroup> groups = Solve(weights, bits, solver);
    for (size_t i = 0; i < groups.size(); ++i) {
      const size_t start = i * kHqqGroup;
      const std::span<const float> group =
          std::span(weights).subspan(start, std::min<size_t>(kHqqGroup, count - start));
      RC_ASSERT(SameBits(groups[i], PlainSolve(group, bits)));
      RC_ASSERT(SameBits(groups[i], SolveHqqGroup(group, bits)));
    }
  }
}

TEST(Hqq, NamesItsSolvers) {
  EXPECT_EQ(HqqSolvers().front().name, "plain");
  for (const HqqSolver& solver : HqqSolvers())
    std::printf("solver: %.*s\n", static_cast<int>(solver.name.size()), solver.name.data());
}

RC_GTEST_PROP(Hqq, NeverWorseThanRoundToNearest, (uint32_t seed)) {
  std::mt19937 random(seed);
  const int bits = kHqqMinBits + static_cast<int>(random() % (kHqqMaxBits - kHqqMinBits + 1));
  const float size = std::ldexp(1.0f, static_cast<int>(random() % 240) - 120);
  std::vector<float> weights = RandomWeights(random() % 3, 1 + random() % kHqqGroup, size, random);
  const float offset = random() % 4 == 0 ? 4 * weights[0] : 0;
  for (float& weight : weights) weight += offset;
  const HqqGroup nearest = RoundToNearestGroup(weights, bits);
  const HqqGroup solved = SolveHqqGroup(weights, bits);
  RC_ASSERT(MeanError(weights, bits, solved) <= MeanError(weights, bits, nearest));
  const float levels = static_cast<float>((1 << bits) - 1);
  for (const HqqGroup group : {nearest, solved}) {
    RC_ASSERT(group.scale >= 0 && group.zero >= -levels && group.zero <= 2 * levels);
    for (const uint8_t code : Encode(weights, bits, group)) RC_ASSERT(code <= levels);
  }
  // Round to nearest is off by at most half a step plus its own rounding. Only groups of tiny weights have a scale of
  // 0.
  const float max = nearest.scale > 0 ? nearest.scale * (0.5f + levels * 1e-6f) : 2 * levels * FLT_MIN;
  const std::vector<uint8_t> codes = Encode(weights, bits, nearest);
  for (size_t i = 0; i < weights.size(); ++i) {
    RC_ASSERT(std::abs(DequantiseHqq(codes[i], nearest) - weights[i]) <= max);
  }
}

// Compares mean absolute errors over many groups, with exact and with quantised scales and zeros.
TEST(Hqq, BetterThanRoundToNearestOnAverage) {
  constexpr size_t kNumGroups = 8 * kMetaGroup;
  for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
    std::mt19937 random(7);
    const std::vector<float> weights = RandomWeights(kind, kNumGroups * kHqqGroup, 0.02f, random);
    for (const int bits : {4, 3}) {
      std::vector<HqqGroup> groups(kNumGroups);
      SolveHqq(weights, bits, groups);
      double nearest = 0, solved = 0, packed = 0;
      for (size_t start = 0; start < kNumGroups; start += kMetaGroup) {
        std::array<float, kMetaGroup> scales, zeros;
        std::array<uint8_t, kMetaGroup> scale_codes, zero_codes;
        for (size_t i = 0; i < kMetaGroup; ++i) {
          scales[i] = groups[start + i].scale;
          zeros[i] = groups[start + i].zero;
        }
        const MetaGroup meta_scale = QuantiseMeta(scales, scale_codes.data());
        const MetaGroup meta_zero = QuantiseMeta(zeros, zero_codes.data());
        for (size_t i = 0; i < kMetaGroup; ++i) {
          const auto group = std::span(weights).subspan((start + i) * kHqqGroup, kHqqGroup);
          nearest += MeanError(group, bits, RoundToNearestGroup(group, bits));
          solved += MeanError(group, bits, groups[start + i]);
          packed += MeanError(group, bits,
                              {DequantiseMeta(scale_codes[i], meta_scale), DequantiseMeta(zero_codes[i], meta_zero)});
        }
      }
      std::printf(
          "%-12s %d bits: mean absolute error %.4f of round to nearest's, %.4f with quantised scales and zeros\n",
          kKinds[kind], bits, solved / nearest, packed / nearest);
      EXPECT_LT(solved, nearest * (bits == 4 ? 0.93 : 0.88));
      EXPECT_LT(packed, nearest * (bits == 4 ? 0.96 : 0.91));
    }
  }
}

TEST(Hqq, ConstantGroupsStay) {
  for (const int bits : {2, 3, 4, 8}) {
    for (const float magnitude : {1e-30f, 1.2345e-3f, 1.0f, 77.7f, 3e38f, FLT_MAX}) {
      for (const float value : {magnitude, -magnitude}) {
        for (const size_t size : {1u, 5u, 64u}) {
          const std::vector<float> weights(size, value);
          const HqqGroup group = SolveHqqGroup(weights, bits);
          for (const uint8_t code : Encode(weights, bits, group)) {
            ASSERT_NEAR(DequantiseHqq(code, group) / value, 1, 1e-6) << value << " at " << bits << " bits";
          }
        }
      }
    }
  }
}

TEST(Hqq, TinyGroupsAreZero) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const std::vector<float>& weights :
       {std::vector<float>(64, 0.0f), std::vector<float>(64, -0.0f), {tiny, -tiny, 0}, {FLT_MIN, 0, -FLT_MIN}}) {
    for (const HqqGroup group : {SolveHqqGroup(weights, 4), RoundToNearestGroup(weights, 4)}) {
      EXPECT_TRUE(SameBits(group, {0, 0}));
      for (const uint8_t code : Encode(weights, 4, group)) EXPECT_EQ(code, 0);
    }
  }
}

TEST(Hqq, TheLargestRangeIsFinite) {
  std::vector<float> weights(64, 1.0f);
  weights[3] = FLT_MAX;
  weights[60] = -FLT_MAX;
  for (const int bits : {2, 4, 8}) {
    const HqqGroup group = SolveHqqGroup(weights, bits);
    for (const uint8_t code : Encode(weights, bits, group)) EXPECT_TRUE(std::isfinite(DequantiseHqq(code, group)));
    EXPECT_LE(MeanError(weights, bits, group), MeanError(weights, bits, RoundToNearestGroup(weights, bits)));
  }
}

TEST(Hqq, BrokenGroupsAreNaNAndTheirNeighboursAreNot) {
  std::mt19937 random(3);
  const std::vector<float> whole = RandomWeights(0, 20 * kHqqGroup + 9, 0.1f, random);
  for (const float odd : {kNan, -kNan, kInf, -kInf}) {
    std::vector<float> weights = whole;
    weights[3 * kHqqGroup] = odd;
    weights[17 * kHqqGroup + 63] = odd;
    weights.back() = odd;
    for (const HqqSolver& solver : HqqSolvers()) {
      const std::vector<HqqGroup> expected = Solve(whole, 4, solver);
      const std::vector<HqqGroup> groups = Solve(weights, 4, solver);
      for (size_t i = 0; i < groups.size(); ++i) {
        const bool broken = i == 3 || i == 17 || i == 20;
        EXPECT_TRUE(SameBits(groups[i], broken ? HqqGroup{kNan, 0} : expected[i])) << solver.name << " group " << i;
      }
    }
    const std::span<const float> broken = std::span(weights).subspan(3 * kHqqGroup, kHqqGroup);
    const HqqGroup nearest = RoundToNearestGroup(broken, 4);
    EXPECT_TRUE(SameBits(nearest, {kNan, 0}));
    for (const uint8_t code : Encode(broken, 4, nearest)) {
      EXPECT_EQ(code, 0);
      EXPECT_TRUE(std::isnan(DequantiseHqq(code, nearest)));
    }
  }
}

TEST(Hqq, CodesAreTheNearestWithTiesToEven) {
  const std::vector<float> weights = {-100, -0.51f, -0.5f, 0.49f, 0.5f, 1.5f, 2.5f, 6.6f, 7.5f, 100, kNan, kInf, -kInf};
  EXPECT_EQ(Encode(weights, 3, {1, 0}), (std::vector<uint8_t>{0, 0, 0, 0, 0, 2, 2, 7, 7, 7, 0, 7, 0}));
  EXPECT_EQ(Encode(weights, 4, {0.5f, 3}), (std::vector<uint8_t>{0, 2, 2, 4, 4, 6, 8, 15, 15, 15, 0, 15, 0}));
  EXPECT_EQ(Encode(weights, 8, {kNan, 3}), std::vector<uint8_t>(weights.size()));
  EXPECT_EQ(Encode(weights, 8, {1, kNan}), std::vector<uint8_t>(weights.size()));
}

RC_GTEST_PROP(Hqq, MetaCodesAreTheNearest, (uint32_t seed)) {
  std::mt19937 random(seed);
  const float size = std::ldexp(1.0f, static_cast<int>(random() % 240) - 120);
  const std::vector<float> values = RandomWeights(random() % 3, 1 + random() % kMetaGroup, size, random);
  std::vector<uint8_t> codes(values.size());
  const MetaGroup meta = QuantiseMeta(values, codes.data());
  RC_ASSERT(meta.min == *std::min_element(values.begin(), values.end()));
  const double rounding = 1e-6 * (std::abs(meta.min) + 255.0 * meta.step);
  for (size_t i = 0; i < values.size(); ++i) {
    RC_ASSERT(DequantiseMeta(codes[i], meta) == std::fma(static_cast<float>(codes[i]), meta.step, meta.min));
    RC_ASSERT(std::abs(static_cast<double>(DequantiseMeta(codes[i], meta)) - values[i]) <= 0.5 * meta.step + rounding);
  }
}

TEST(Hqq, OddMetaGroups) {
  std::array<uint8_t, 3> codes = {9, 9, 9};
  MetaGroup meta = QuantiseMeta(std::array{0.3f, 0.3f, 0.3f}, codes.data());
  for (const uint8_t code : codes) EXPECT_EQ(DequantiseMeta(code, meta), 0.3f);
  meta = QuantiseMeta(std::array{-FLT_MAX, 0.0f, FLT_MAX}, codes.data());
  EXPECT_EQ(codes, (std::array<uint8_t, 3>{0, 128, 255}));
  EXPECT_TRUE(std::isfinite(DequantiseMeta(255, meta)));
  for (const float odd : {kNan, kInf, -kInf}) {
    for (size_t place = 0; place < 3; ++place) {
      std::array<float, 3> values = {1, 2, 3};
      values[place] = odd;
      meta = QuantiseMeta(values, codes.data());
      EXPECT_EQ(codes, (std::array<uint8_t, 3>{0, 0, 0}));
      for (const uint8_t code : codes) EXPECT_TRUE(std::isnan(DequantiseMeta(code, meta)));
    }
  }
}

}  // namespace
}  // namespace penstock
