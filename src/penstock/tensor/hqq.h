// Half-quadratic quantisation (Badri and Shaji, 2023): weights as codes of a few bits, w ~= (code - zero) * scale for
// each group of 64, where scale and zero are sought without any data but the weights. Pure functions; they fix no
// layout.
//
// Groups are packed thus: SolveHqq finds scales and zeros, QuantiseMeta rounds these to 8 bits, and EncodeGroup makes
// the codes with the rounded ones, which then bear a part of their rounding.
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

// What all weights of a group share. The zero lies in [-levels, 2 * levels], levels = 2^bits - 1, so that groups far
// from 0 (all weights alike, say) cannot stretch the range that their neighbours' zeros are rounded in.
//   scale 0: no weight is larger than 2 * levels * FLT_MIN; all codes are 0 and stand for 0.
//   scale NaN: some weight is NaN or infinite; all codes are 0 and stand for NaN.
struct HqqGroup {
  float scale;
  float zero;
};

inline float DequantiseHqq(uint8_t code, HqqGroup group) {
  return (static_cast<float>(code) - group.zero) * group.scale;
}

// Round to nearest over the range of the weights, the baseline. In all functions: 1 <= weights.size() <= 64, and bits
// in [kHqqMinBits, kHqqMaxBits].
HqqGroup RoundToNearestGroup(std::span<const float> weights, int bits);

// HQQ of consecutive groups of 64 weights, the last of which may be shorter. The mean absolute error of a group is
// never above round to nearest's. Sixteen groups are solved together: pass as many as there are. REQUIRES:
// groups.size() == ceil(weights.size() / 64).
void SolveHqq(std::span<const float> weights, int bits, std::span<HqqGroup> groups);

// SolveHqq of one group: for tests and odd ends, as sixteen cost the same time.
HqqGroup SolveHqqGroup(std::span<const float> weights, int bits);

// codes[i] = weights[i] / scale + zero, rounded to nearest (ties to even) and clamped to the levels; 0 if that is NaN.
void EncodeGroup(std::span<const float> weights, int bits, HqqGroup group, uint8_t* codes);

// SolveHqq as built for one instruction set. All give equal bits.
struct HqqSolver {
  std::string_view name;
  void (*solve)(std::span<const float> weights, int bits, std::span<HqqGroup> groups);
};

// Those that this CPU can run; SolveHqq is the last of them.
std::span<const HqqSolver> HqqSolvers();

// Up to 128 scales, or zeros, as 8-bit codes: value ~= min + code * step.
// If a value is NaN or infinite, so is all that it shares a meta group with: step and min are NaN, all codes 0.
struct MetaGroup {
  float step;
  float min;
};
MetaGroup QuantiseMeta(std::span<const float> values, uint8_t* codes);  // REQUIRES: 1 <= values.size() <= kMetaGroup

// Kernels compute exactly this.
inline float DequantiseMeta(uint8_t code, MetaGroup meta) {
  return std::fma(static_cast<float>(code), meta.step, meta.min);
}

}  // namespace penstock
