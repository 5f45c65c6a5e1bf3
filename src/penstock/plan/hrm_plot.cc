#include "penstock/plan/hrm_plot.h"

#include <algorithm>

#include <fmt/format.h>

#include "penstock/plan/log_plot.h"

namespace penstock {
namespace {

constexpr const char* kLevelColours[] = {"#1b6ca8", "#c0392b", "#7d6608", "#555555"};
constexpr const char* kPointColours[] = {"#6c3483", "#117a65", "#b9770e", "#34495e"};

using Style = LogPlot::Style;

LogPlot MakePlot(const Hrm& hrm, std::span<const HrmPoint> points, const std::string& title) {
  LogPlot::Axis x{.low = 1, .high = 1, .label = "operations per byte"};
  LogPlot::Axis y{.low = 1e300, .high = 0, .label = "operations per second"};
  const auto widen = [&](double ops_per_byte) {
    x.low = std::min(x.low, ops_per_byte);
    x.high = std::max(x.high, ops_per_byte);
  };
  for (const HrmLevel& level : hrm.levels()) {
    y.high = std::max(y.high, level.ops_per_s);
    if (level.ops_per_s > 0) widen(level.ops_per_s / level.bytes_per_s);
  }
  y.low = y.high;
  for (const HrmPoint& point : points) {
    widen(point.ops_per_byte_from);
    if (point.from != point.to) widen(hrm.SecondTurningPoint(point.to, point.ops_per_byte_to, point.from));
    y.low = std::min(y.low, RoofOf(hrm, point));
  }
  return LogPlot(title, x, y);
}

// Draws the line bytes_per_s * I up to the peak ops_per_s.
void DrawMemoryRoof(LogPlot& plot, double bytes_per_s, double ops_per_s, std::string_view colour, Style style) {
  const double last = std::min(plot.max_x(), ops_per_s / bytes_per_s);
  plot.Line(plot.min_x(), plot.min_x() * bytes_per_s, last, last * bytes_per_s, colour, style);
}

void DrawLevel(LogPlot& plot, const Hrm& hrm, size_t i) {
  const HrmLevel &level = hrm.levels()[i], &first = hrm.levels()[0];
  const std::string_view colour = kLevelColours[std::min(i, std::size(kLevelColours) - 1)];
  if (level.ops_per_s > 0) {
    DrawMemoryRoof(plot, level.bytes_per_s, level.ops_per_s, colour, Style::kSolid);
    plot.Line(level.ops_per_s / level.bytes_per_s, level.ops_per_s, plot.max_x(), level.ops_per_s, colour);
    plot.Legend(fmt::format("{}: {}, {}", level.name, LogPlot::Number(level.ops_per_s, "op/s"),
                            LogPlot::Number(level.bytes_per_s, "B/s")),
                colour);
  }
  if (i == 0) return;
  const double link = hrm.LinkRate(i, 0);
  DrawMemoryRoof(plot, link, first.ops_per_s, colour, Style::kDashed);
  plot.Legend(fmt::format("{} to {}: {} (dashed)", level.name, first.name, LogPlot::Number(link, "B/s")), colour);
}

void DrawPoint(LogPlot& plot, const Hrm& hrm, const HrmPoint& point, std::string_view colour) {
  const double roof = RoofOf(hrm, point);
  plot.VerticalLine(point.ops_per_byte_from, colour, Style::kDotted);
  plot.Dot(point.ops_per_byte_from, roof, colour);
  plot.LegendGap();
  plot.Legend(point.name, colour);
  plot.Legend(fmt::format("{:.3g} op/byte, {}", point.ops_per_byte_from, LogPlot::Number(roof, "op/s")), colour);
  if (point.from == point.to) return;
  const double p1 = hrm.FirstTurningPoint(point.to, point.from);
  const double p2 = hrm.SecondTurningPoint(point.to, point.ops_per_byte_to, point.from);
  const double link = hrm.LinkRate(point.from, point.to);
  if (p1 > 0) plot.Diamond(p1, link * p1, "P1", colour);
  plot.Diamond(p2, link * p2, "P2", colour);
  plot.Legend(p1 > 0 ? fmt::format("P1 {:.3g}, P2 {:.3g} op/byte", p1, p2) : fmt::format("P2 {:.3g} op/byte", p2),
              colour);
}

}  // namespace

double RoofOf(const Hrm& hrm, const HrmPoint& point) {
  return point.from == point.to ? hrm.LocalRoof(point.to, point.ops_per_byte_to)
                                : hrm.Roof(point.to, point.ops_per_byte_to, point.from, point.ops_per_byte_from);
}

std::string PlotHrm(const Hrm& hrm, std::span<const HrmPoint> points, const std::string& title) {
  LogPlot plot = MakePlot(hrm, points, title);
  for (size_t i = 0; i < hrm.levels().size(); ++i) DrawLevel(plot, hrm, i);
  for (size_t i = 0; i < points.size(); ++i) {
    DrawPoint(plot, hrm, points[i], kPointColours[i % std::size(kPointColours)]);
  }
  return plot.Svg();
}

}  // namespace penstock
