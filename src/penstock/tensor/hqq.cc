#include "penstock/tensor/hqq.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cstring>
#include <limits>

#include "penstock/base/check.h"
#include "penstock/hardware/cpu_features.h"

// Vectors are passed only to inlined functions, so no ABI difference matters.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace penstock {
namespace {

// Groups are solved side by side, one in each lane of a vector. Each group's sums run over its weights in order;
// nothing is summed across lanes. Instruction sets differ only in the number of lanes, so all give the same bits. The
// code uses only +, -, *, /, comparisons and bit operations.
template <int kLanes>
struct Vectors;  // written out, as GCC 12 drops the attribute if the size depends on a parameter
template <>
struct Vectors<4> {
  using Floats = float __attribute__((vector_size(16)));
  using Ints = int32_t __attribute__((vector_size(16)));
};
template <>
struct Vectors<8> {
  using Floats = float __attribute__((vector_size(32)));
  using Ints = int32_t __attribute__((vector_size(32)));
};
template <>
struct Vectors<16> {
  using Floats = float __attribute__((vector_size(64)));
  using Ints = int32_t __attribute__((vector_size(64)));
};

// p, kappa and the number of iterations are the published ones, but beta is not. The published beta of 10 applies to
// residuals in units of weights. It shrinks their usual size (0.003) to nothing, so it only moves the zero by the mean
// residual. That lowers the mean absolute error of Gaussian groups by 4%. Here residuals are counted in steps, so that
// the size of the weights does not matter, and scales are solved for, too. Beta 5 then lowers the error by 8% at 4 bits
// and by 14% at 3 bits. At 3 bits, beta 10 lowers it by only 13%, because it is slower, and so does beta 3, because it
// shrinks too little.
constexpr int kIterations = 20;
// Solutions are local optima. Each group is solved from its whole range and from a range without the outer 11%, and the
// better solution wins. The demo model's perplexity on three held-out books rises by 1.1, 1.8 and 1.0% at 4 bits; from
// the whole range alone it rises by 2.5, 3.1 and 2.1%. Choosing by squared error gave no gain over the whole range
// alone. 4 and 6 starts gave 1.4, 2.0 and 1.1%.
constexpr float kStretches[] = {1.0f, 1.12f};
constexpr float kPower = 0.7f;
constexpr float kBeta = 5.0f;
constexpr float kKappa = 1.01f;
// A new solution must beat the best one by this fraction of its error and by this fraction of the levels per weight.
// Otherwise the rounding of scale and zero might undo the gain.
constexpr float kMinGain = 1.0f / 4096;
constexpr float kMinGainOfLevels = 1.0f / (1 << 20);

// A float's bits, read as an integer, are about (127 + log2) * 2^23, with an error between 0 and 0.086. The offset
// subtracts the middle of that error.
constexpr float kPowerOffset = (127.0f - 0.043f) * (2 - kPower) * (1 << 23);
constexpr float kRounder = 1 << 23;  // x + kRounder is x rounded to nearest even, plus 2^23, for 0 <= x < 2^23
constexpr int32_t kMagnitude = 0x7FFFFFFF;
constexpr int32_t kInfinityBits = 0x7F800000;

#define PENSTOCK_INLINE [[gnu::always_inline]] inline

float Levels(int bits) {
  PENSTOCK_CHECK(bits >= kHqqMinBits && bits <= kHqqMaxBits);
  return static_cast<float>((1 << bits) - 1);
}

HqqGroup RangeToGroup(float low, float high, float levels) {
  if (low > 0) low = std::min(low, high * 0.5f);
  if (high < 0) high = std::max(high, low * 0.5f);
  const float scale = high / levels - low / levels;  // high - low may overflow
  if (!(scale >= FLT_MIN)) return {.scale = 0, .zero = 0};
  return {.scale = scale, .zero = std::clamp((0 - low) / scale, -levels, 2 * levels)};
}

HqqGroup NearestGroup(std::span<const float> weights, CodeRange range) {
  PENSTOCK_CHECK(!weights.empty() && weights.size() <= kHqqGroup);
  float low = weights[0];
  float high = weights[0];
  for (const float weight : weights) {
    if (!std::isfinite(weight)) return {.scale = std::numeric_limits<float>::quiet_NaN(), .zero = 0};
    low = std::min(low, weight);
    high = std::max(high, weight);
  }
  if (range.is_symmetric) {
    high = std::max(high, -low);
    low = -high;
  }
  return RangeToGroup(low, high, static_cast<float>(range.levels));
}

// A batch of up to kLanes groups of one size, one in each lane. The whole solver is one class so that all of it is
// inlined into functions for one instruction set.
template <int kLanes>
class Batch {
 public:
  using Floats = typename Vectors<kLanes>::Floats;
  using Ints = typename Vectors<kLanes>::Ints;

  PENSTOCK_INLINE void Load(const float* weights, int64_t size, int64_t num_groups, float levels) {
    size_ = size;
    levels_ = levels;
    std::memset(weights_, 0, sizeof(weights_));
    for (int64_t group = 0; group < num_groups; ++group) {
      for (int64_t i = 0; i < size; ++i) weights_[i][group] = weights[group * size + i];
    }
    StartFromNearest();
  }

  PENSTOCK_INLINE void Solve(std::span<HqqGroup> groups) const {
    Solution best = {.stretch = Floats{} + 1.0f, .zero = zero_, .error = Floats{} + FLT_MAX};
    for (const float start : kStretches) {
      Iterate(Floats{} + start, ClampZero(zero_ * start - levels_ / 2 * (start - 1)), best);
    }
    for (size_t lane = 0; lane < groups.size(); ++lane) {
      const float scale = scale_[lane] / best.stretch[lane];
      const bool usable = scale >= FLT_MIN && scale <= FLT_MAX / (2 * levels_);  // every code is finite
      groups[lane] = usable ? HqqGroup{scale, best.zero[lane]} : HqqGroup{scale_[lane], zero_[lane]};
    }
  }

 private:
  struct Solution {
    Floats stretch;
    Floats zero;
    Floats error;
  };
  struct Sums {
    Floats error = {};  // sum of |residual|
    Floats code = {};
    Floats code_code = {};
    Floats pull = {};  // sum of residual - shrink(residual)
    Floats code_pull = {};
  };

  PENSTOCK_INLINE Floats ClampZero(Floats zero) const {
    zero = zero > -levels_ ? zero : Floats{} - levels_;
    return zero < 2 * levels_ ? zero : Floats{} + 2 * levels_;
  }

  // Iterates from a start and keeps the best solution in `best`.
  PENSTOCK_INLINE void Iterate(Floats stretch, Floats zero, Solution& best) const {
    const float count = static_cast<float>(size_);
    float beta = kBeta;
    for (int iteration = 0; iteration <= kIterations; ++iteration) {
      const Sums sums = SumResiduals(stretch, zero, 1 / beta);
      const Floats error = sums.error / stretch;
      const Ints better = error < best.error - best.error * kMinGain - levels_ * count * kMinGainOfLevels;
      best.stretch = better ? stretch : best.stretch;
      best.zero = better ? zero : best.zero;
      best.error = better ? error : best.error;
      // Half-quadratic: without the shrunk residuals, the weights are (code - zero) + pull. The least-squares line
      // through them over the codes gives the new scale and zero.
      const Floats variance = count * sums.code_code - sums.code * sums.code;
      const Floats covariance = count * sums.code_pull - sums.code * sums.pull;
      Floats slope = variance > 0 ? covariance / variance : Floats{};
      slope = slope > -0.5f ? slope : Floats{} - 0.5f;
      slope = slope < 1.0f ? slope : Floats{} + 1.0f;
      zero = (zero + (slope * sums.code - sums.pull) / count) / (1 + slope);
      zero = ClampZero(zero);
      stretch /= 1 + slope;
      beta *= kKappa;
    }
  }

  // Sets scale and zero as round to nearest does, and the weights in steps of that scale. Lanes that hold a NaN or an
  // infinity continue as zeros.
  PENSTOCK_INLINE void StartFromNearest() {
    Ints broken = {};
    for (int64_t i = 0; i < size_; ++i) broken |= (Ints(weights_[i]) & kMagnitude) >= kInfinityBits;
    for (int64_t i = 0; i < size_; ++i) weights_[i] = Floats(Ints(weights_[i]) & ~broken);
    Floats low = weights_[0];
    Floats high = weights_[0];
    for (int64_t i = 1; i < size_; ++i) {
      low = weights_[i] < low ? weights_[i] : low;
      high = weights_[i] > high ? weights_[i] : high;
    }
    Floats step = {};
    for (int lane = 0; lane < kLanes; ++lane) {
      const HqqGroup group = RangeToGroup(low[lane], high[lane], levels_);
      scale_[lane] = broken[lane] != 0 ? std::numeric_limits<float>::quiet_NaN() : group.scale;
      zero_[lane] = group.zero;
      step[lane] = group.scale > 0 ? group.scale : 1.0f;
    }
    for (int64_t i = 0; i < size_; ++i) weights_[i] /= step;
  }

  // Returns |x|^(p - 1) within 4% for x > 0, using the float's bits as its logarithm. It is a threshold and need not be
  // exact. Finite at 0.
  PENSTOCK_INLINE static Floats PowerLessOne(const Floats& x) {
    const Floats logarithm = __builtin_convertvector(Ints(x), Floats);
    return Floats(__builtin_convertvector(kPowerOffset - (1 - kPower) * logarithm, Ints));
  }

  // Sums the residuals of the model code ~= weight * stretch + zero.
  PENSTOCK_INLINE Sums SumResiduals(const Floats& stretch, const Floats& zero, float inverse_beta) const {
    const Floats min_code = Floats{} + kRounder;
    const Floats max_code = Floats{} + (kRounder + levels_);
    Sums sums;
    for (int64_t i = 0; i < size_; ++i) {
      const Floats exact = weights_[i] * stretch + zero;
      Floats code = exact + kRounder;
      code = code > min_code ? code : min_code;
      code = code < max_code ? code : max_code;
      code -= kRounder;
      const Floats residual = exact - code;
      const Floats magnitude = Floats(Ints(residual) & kMagnitude);
      const Floats bound = PowerLessOne(magnitude) * inverse_beta;
      const Floats min = magnitude < bound ? magnitude : bound;
      const Floats pull = Floats(Ints(min) | (Ints(residual) & ~kMagnitude));
      sums.error += magnitude;
      sums.code += code;
      sums.code_code += code * code;
      sums.pull += pull;
      sums.code_pull += code * pull;
    }
    return sums;
  }

  Floats weights_[kHqqGroup];
  Floats scale_;
  Floats zero_;
  int64_t size_;
  float levels_;
};

template <int kLanes>
PENSTOCK_INLINE void SolveLanes(std::span<const float> weights, int bits, std::span<HqqGroup> groups) {
  const float levels = Levels(bits);
  PENSTOCK_CHECK(groups.size() == (weights.size() + kHqqGroup - 1) / kHqqGroup);
  Batch<kLanes> batch;
  for (size_t start = 0; start < weights.size();) {
    const size_t size = std::min<size_t>(kHqqGroup, weights.size() - start);
    const size_t num_groups = std::min<size_t>(kLanes, (weights.size() - start) / size);
    batch.Load(weights.data() + start, static_cast<int64_t>(size), static_cast<int64_t>(num_groups), levels);
    batch.Solve(groups.subspan(start / kHqqGroup, num_groups));
    start += size * num_groups;
  }
}

void SolvePlain(std::span<const float> weights, int bits, std::span<HqqGroup> groups) {
  SolveLanes<4>(weights, bits, groups);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void SolveAvx2(std::span<const float> weights, int bits, std::span<HqqGroup> groups) {
  SolveLanes<8>(weights, bits, groups);
}
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void SolveAvx512(std::span<const float> weights, int bits,
                                                                       std::span<HqqGroup> groups) {
  SolveLanes<16>(weights, bits, groups);
}
constexpr HqqSolver kSolvers[] = {{"plain", SolvePlain}, {"avx2", SolveAvx2}, {"avx512", SolveAvx512}};

size_t NumSolvers() {
  const CpuFeatures& cpu = MachineCpuFeatures();
  return cpu.avx512 ? 3 : cpu.avx2 ? 2 : 1;
}
#else
constexpr HqqSolver kSolvers[] = {{"plain", SolvePlain}};
size_t NumSolvers() { return 1; }
#endif

}  // namespace

std::span<const HqqSolver> HqqSolvers() {
  static const size_t num_solvers = NumSolvers();
  return std::span(kSolvers).first(num_solvers);
}

void SolveHqq(std::span<const float> weights, int bits, std::span<HqqGroup> groups) {
  HqqSolvers().back().solve(weights, bits, groups);
}

HqqGroup SolveHqqGroup(std::span<const float> weights, int bits) {
  PENSTOCK_CHECK(!weights.empty() && weights.size() <= kHqqGroup);
  HqqGroup group;
  SolveHqq(weights, bits, std::span(&group, 1));
  return group;
}

HqqGroup RoundToNearestGroup(std::span<const float> weights, int bits) {
  PENSTOCK_CHECK(bits >= kHqqMinBits && bits <= kHqqMaxBits);
  return NearestGroup(weights, CodeRange::OfBits(bits));
}

namespace {

// Shares of the range of a group from which FitGroup starts; 0.2 less if the range is symmetric.
constexpr float kFitRanges[] = {1.0f, 0.9f, 0.8f, 0.7f, 0.6f};
constexpr int kFitIterations = 4;

// Sums over a group, in lanes that compilers can turn into vectors.
struct FitSums {
  static constexpr int64_t kLanes = 8;
  double error = 0, code = 0, code_code = 0, weight = 0, code_weight = 0;

  FitSums(const float* weights, const float* importance, float scale, float zero, float levels) {
    float lanes[5][kLanes] = {};
    const float inverse = 1 / scale;
    for (int64_t i = 0; i < kHqqGroup; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const float w = weights[i + lane], d = importance[i + lane];
        float c = w * inverse + zero;
        c = c > 0 ? c : 0;
        c = (c < levels ? c : levels) + kRounder - kRounder;
        const float residual = (c - zero) * scale - w;
        lanes[0][lane] += d * residual * residual;
        lanes[1][lane] += d * c;
        lanes[2][lane] += d * c * c;
        lanes[3][lane] += d * w;
        lanes[4][lane] += d * c * w;
      }
    }
    double* const sums[] = {&error, &code, &code_code, &weight, &code_weight};
    for (int64_t sum = 0; sum < 5; ++sum) {
      for (const float value : lanes[sum]) *sums[sum] += value;
    }
  }
};

}  // namespace

HqqGroup FitGroup(std::span<const float> weights, std::span<const float> importance, CodeRange range) {
  const auto levels = static_cast<float>(range.levels);
  const HqqGroup nearest = NearestGroup(weights, range);
  if (!(nearest.scale > 0)) return nearest;
  // In steps of the nearest scale. Importances add up to 1; what is missing of a group counts nothing.
  float w[kHqqGroup] = {}, d[kHqqGroup] = {};
  double total = 0;
  for (const float value : importance) total += value;
  for (size_t i = 0; i < weights.size(); ++i) {
    w[i] = weights[i] / nearest.scale;
    d[i] = static_cast<float>(importance[i] / total);
  }
  const auto clamp_zero = [&](double zero) {
    return range.is_symmetric ? levels / 2 : static_cast<float>(std::clamp<double>(zero, -levels, 2 * levels));
  };
  HqqGroup best = {.scale = 1, .zero = nearest.zero};
  double least = std::numeric_limits<double>::max();
  for (const float share : kFitRanges) {
    // Three levels lie closer together than those of more bits.
    float scale = range.is_symmetric ? share - 0.2f : share;
    float zero = clamp_zero(levels / 2 - (levels / 2 - nearest.zero) / scale);
    for (int iteration = 0; iteration <= kFitIterations; ++iteration) {
      const FitSums sums(w, d, scale, zero, levels);
      if (sums.error < least) {
        least = sums.error;
        best = {.scale = scale, .zero = zero};
      }
      // The least-squares line of the weights over their codes, or that through the zero.
      double slope = 0;
      if (range.is_symmetric) {
        const double square = sums.code_code - zero * (2 * sums.code - zero);
        if (square > 0) slope = (sums.code_weight - zero * sums.weight) / square;
      } else if (const double variance = sums.code_code - sums.code * sums.code; variance > 0) {
        slope = (sums.code_weight - sums.code * sums.weight) / variance;
      }
      if (!(slope > 0.1 && slope < 10)) break;
      scale = static_cast<float>(slope);
      zero = clamp_zero(-(sums.weight - slope * sums.code) / slope);
    }
  }
  const float scale = best.scale * nearest.scale;
  const bool usable = scale >= FLT_MIN && scale <= FLT_MAX / (2 * levels);  // every code is finite
  return usable ? HqqGroup{scale, best.zero} : nearest;
}

void EncodeGroup(std::span<const float> weights, CodeRange range, HqqGroup group, uint8_t* codes) {
  const auto levels = static_cast<float>(range.levels);
  if (!(group.scale > 0)) {
    std::fill_n(codes, weights.size(), uint8_t{0});
    return;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const float exact = weights[i] / group.scale + group.zero;
    const float positive = exact > 0 ? exact : 0;  // 0 for a NaN, too
    const float code = positive < levels ? positive : levels;
    codes[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(code + kRounder));
  }
}

MetaGroup QuantiseMeta(std::span<const float> values, uint8_t* codes) {
  PENSTOCK_CHECK(!values.empty() && values.size() <= kMetaGroup);
  constexpr float kMaxCode = 255;
  float low = values[0];
  float high = values[0];
  bool finite = true;
  for (const float value : values) {
    finite = finite && std::isfinite(value);
    low = std::min(low, value);
    high = std::max(high, value);
  }
  std::fill_n(codes, values.size(), uint8_t{0});
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  if (!finite) return {.step = kNaN, .min = kNaN};
  const float step = high / kMaxCode - low / kMaxCode;  // high - low may overflow
  if (!(step > 0)) return {.step = 0, .min = low};
  for (size_t i = 0; i < values.size(); ++i) {
    const double exact = (static_cast<double>(values[i]) - low) / step;
    codes[i] = static_cast<uint8_t>(std::min(exact + 0.5, 255.0));
  }
  return {.step = step, .min = low};
}

}  // namespace penstock
