// Half-quadratic quantisation (Badri and Shaji, 2023): weights as codes of a few bits, w ~= (code - zero) * scale for
// each group of 64. Scale and zero are found from the weights alone, without calibration data. Pure functions; they fix
// no layout.
//
// Packing has three steps. SolveHqq finds scales and zeros, and QuantiseMeta rounds them to 8 bits. EncodeGroup makes
// the codes with the rounded values, which corrects a part of the rounding.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

constexpr int64_t kHqqGroup = 64;
constexpr int kHqqMinBits = 2;
constexpr int kHqqMaxBits = 8;
constexpr int64_t kMetaGroup = 128;

// The values that all weights of a group share. The zero lies in [-levels, 2 * levels], levels = 2^bits - 1. Without
// this bound, a group whose weights all lie far from 0 would stretch the range in which its neighbours' zeros are
// rounded.
//   scale 0: no weight is larger than 2 * levels * FLT_MIN; all codes are 0 and mean 0.
//   scale NaN: some weight is NaN or infinite; all codes are 0 and mean NaN.
struct HqqGroup {
  float scale;
  float zero;
};

inline float DequantiseHqq(uint8_t code, HqqGroup group) {
  return (static_cast<float>(code) - group.zero) * group.scale;
}

// Rounds to nearest over the range of the weights; this is the baseline. All functions: 1 <= weights.size() <= 64, and
// bits in [kHqqMinBits, kHqqMaxBits].
HqqGroup RoundToNearestGroup(std::span<const float> weights, int bits);

// Solves HQQ for consecutive groups of 64 weights; the last group may be shorter. A group's mean absolute error is
// never above that of round to nearest. Sixteen groups are solved together, so pass many at once. REQUIRES:
// groups.size() == ceil(weights.size() / 64).
void SolveHqq(std::span<const float> weights, int bits, std::span<HqqGroup> groups);

// SolveHqq for one group, for tests and leftovers; sixteen groups take the same time.
HqqGroup SolveHqqGroup(std::span<const float> weights, int bits);

// The codes that a group may have.
struct CodeRange {
  int levels = 0;             // the largest code
  bool is_symmetric = false;  // every zero is levels / 2

  static constexpr CodeRange OfBits(int bits) { return {(1 << bits) - 1}; }
};

// Returns scale and zero with a small sum of importance[i] x squared error of weights[i]: the best of least-squares
// lines through several starts. A group with a NaN or an infinity gives a scale that is NaN. REQUIRES:
// importance.size() == weights.size() <= 64, and every importance is > 0.
HqqGroup FitGroup(std::span<const float> weights, std::span<const float> importance, CodeRange range);

// codes[i] = weights[i] / scale + zero, rounded to nearest (ties to even) and clamped to the range; 0 if that is NaN.
void EncodeGroup(std::span<const float> weights, CodeRange range, HqqGroup group, uint8_t* codes);

// SolveHqq as compiled for one instruction set. All solvers give equal bits.
struct HqqSolver {
  std::string_view name;
  void (*solve)(std::span<const float> weights, int bits, std::span<HqqGroup> groups);
};

// Returns the solvers that this CPU can run; SolveHqq uses the last one.
std::span<const HqqSolver> HqqSolvers();

// Up to 128 scales, or zeros, as 8-bit codes: value ~= min + code * step. If one value is NaN or infinite, the whole
// meta group becomes so: step and min are NaN, all codes 0.
struct MetaGroup {
  float step;
  float min;
};
MetaGroup QuantiseMeta(std::span<const float> values, uint8_t* codes);  // REQUIRES: 1 <= values.size() <= kMetaGroup

// Kernels compute exactly this expression.
inline float DequantiseMeta(uint8_t code, MetaGroup meta) {
  return std::fma(static_cast<float>(code), meta.step, meta.min);
}

}  // namespace penstock
