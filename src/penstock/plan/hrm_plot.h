// Plots of the Hierarchical Roofline Model, in the manner of MoE-Lightning's Figures 4 and 5.
#pragma once

#include <span>
#include <string>

#include "penstock/plan/hrm.h"

namespace penstock {

// A computation at one level of memory, with its data at the same level or another one.
struct HrmPoint {
  std::string name;  // "experts of 64 sequences"
  size_t to = 0;
  double ops_per_byte_to = 0;
  size_t from = 0;  // equal to `to`: all data lie at the level of the computation
  double ops_per_byte_from = 0;
};

// Returns the operations per second that the model allows for the point.
double RoofOf(const Hrm& hrm, const HrmPoint& point);

// Returns an SVG with two logarithmic axes. It shows the roofs of all levels and links, and the points on them. Points
// whose data move also show their turning points P1 and P2.
std::string PlotHrm(const Hrm& hrm, std::span<const HrmPoint> points, const std::string& title);

}  // namespace penstock
