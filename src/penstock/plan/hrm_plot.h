// Pictures of the Hierarchical Roofline Model, as MoE-Lightning's Figures 4 and 5 are drawn.
#pragma once

#include <span>
#include <string>

#include "penstock/plan/hrm.h"

namespace penstock {

// A computation at one level of memory with its data at another, or at the same.
struct HrmPoint {
  std::string name;  // "experts of 64 sequences"
  size_t to = 0;
  double ops_per_byte_to = 0;
  size_t from = 0;  // `to`: all data lie where they are computed
  double ops_per_byte_from = 0;
};

// What the model allows for it, in operations per second.
double RoofOf(const Hrm& hrm, const HrmPoint& point);

// An SVG with both axes logarithmic: the roofs of every level, the roofs of the links, the points on them, and for
// points whose data move their turning points P1 and P2.
std::string PlotHrm(const Hrm& hrm, std::span<const HrmPoint> points, const std::string& title);

}  // namespace penstock
