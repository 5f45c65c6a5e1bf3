#include "penstock/planner/hrm_plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr double kWidth = 900, kHeight = 560, kLeft = 90, kRight = 250, kTop = 50, kBottom = 60;
constexpr const char* kLevelColours[] = {"#1b6ca8", "#c0392b", "#7d6608", "#555555"};
constexpr const char* kPointColours[] = {"#6c3483", "#117a65", "#b9770e", "#34495e"};

std::string Number(double value, std::string_view unit) {
  constexpr std::string_view kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  while (value >= 1000 && prefix + 1 < std::size(kPrefixes)) value /= 1000, ++prefix;
  return fmt::format("{:.3g} {}{}", value, kPrefixes[prefix], unit);
}

class Plot {
 public:
  Plot(const Hrm& hrm, std::span<const HrmPoint> points) : hrm_(hrm) {
    double least_i = 1, most_i = 1, least_p = 1e300, most_p = 0;
    const auto widen = [&](double ops_per_byte) {
      least_i = std::min(least_i, ops_per_byte);
      most_i = std::max(most_i, ops_per_byte);
    };
    for (const HrmLevel& level : hrm.levels()) {
      most_p = std::max(most_p, level.ops_per_s);
      if (level.ops_per_s > 0) widen(level.ops_per_s / level.bytes_per_s);
    }
    for (const HrmPoint& point : points) {
      widen(point.ops_per_byte_from);
      if (point.from != point.to) widen(hrm.SecondTurningPoint(point.to, point.ops_per_byte_to, point.from));
      least_p = std::min(least_p, RoofOf(hrm, point));
    }
    x_ = {std::floor(std::log10(least_i) - 0.3), std::ceil(std::log10(most_i) + 0.3)};
    y_ = {std::floor(std::log10(std::min(least_p, most_p)) - 0.5), std::ceil(std::log10(most_p) + 0.2)};
  }

  std::string Draw(std::span<const HrmPoint> points, const std::string& title) {
    svg_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
        "<clipPath id=\"plot\"><rect x=\"{2}\" y=\"{3}\" width=\"{4}\" height=\"{5}\"/></clipPath>\n",
        kWidth, kHeight, kLeft, kTop, kWidth - kLeft - kRight, kHeight - kTop - kBottom);
    Text(kLeft, 26, title, "font-size=\"15\" font-weight=\"bold\"");
    Axes();
    for (size_t i = 0; i < hrm_.levels().size(); ++i) Level(i);
    for (size_t i = 0; i < points.size(); ++i) Point(points[i], kPointColours[i % std::size(kPointColours)]);
    return svg_ + "</svg>\n";
  }

 private:
  struct Range {
    double low = 0, high = 0;
  };

  double X(double ops_per_byte) const {
    return kLeft + (std::log10(ops_per_byte) - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight);
  }
  double Y(double ops_per_s) const {
    return kHeight - kBottom - (std::log10(ops_per_s) - y_.low) / (y_.high - y_.low) * (kHeight - kTop - kBottom);
  }
  void Text(double x, double y, const std::string& text, std::string_view attributes = "") {
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, EscapeXml(text));
  }
  void Line(double x1, double y1, double x2, double y2, std::string_view attributes) {
    svg_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" clip-path=\"url(#plot)\" {}/>\n",
                        x1, y1, x2, y2, attributes);
  }
  // Beside the plot, one below the other.
  void Legend(const std::string& text, std::string_view colour) {
    Text(kWidth - kRight + 14, legend_y_, text, fmt::format("fill=\"{}\"", colour));
    legend_y_ += 17;
  }

  void Axes() {
    for (double decade = x_.low; decade <= x_.high; ++decade) {
      const double x = X(std::pow(10, decade));
      Line(x, kTop, x, kHeight - kBottom, "stroke=\"#e5e5e5\"");
      Text(x, kHeight - kBottom + 18, fmt::format("{:g}", std::pow(10, decade)),
           "text-anchor=\"middle\" fill=\"#333\"");
    }
    for (double decade = y_.low; decade <= y_.high; ++decade) {
      const double y = Y(std::pow(10, decade));
      Line(kLeft, y, kWidth - kRight, y, "stroke=\"#e5e5e5\"");
      Text(kLeft - 8, y + 4, Number(std::pow(10, decade), ""), "text-anchor=\"end\" fill=\"#333\"");
    }
    Text((kLeft + kWidth - kRight) / 2, kHeight - 16, "operations per byte", "text-anchor=\"middle\" fill=\"#333\"");
    Text(18, (kTop + kHeight - kBottom) / 2, "operations per second",
         fmt::format("text-anchor=\"middle\" fill=\"#333\" transform=\"rotate(-90 18 {:.0f})\"",
                     (kTop + kHeight - kBottom) / 2));
  }

  // The line bytes_per_s * I up to where it meets a peak.
  void MemoryRoof(double bytes_per_s, double most_ops_per_s, std::string_view attributes) {
    const double first = std::pow(10, x_.low);
    const double last = std::min(std::pow(10, x_.high), most_ops_per_s / bytes_per_s);
    if (last > first) Line(X(first), Y(first * bytes_per_s), X(last), Y(last * bytes_per_s), attributes);
  }

  void Level(size_t i) {
    const HrmLevel& level = hrm_.levels()[i];
    const std::string_view colour = kLevelColours[std::min(i, std::size(kLevelColours) - 1)];
    if (level.ops_per_s > 0) {
      MemoryRoof(level.bytes_per_s, level.ops_per_s, fmt::format("stroke=\"{}\" stroke-width=\"2\"", colour));
      Line(X(level.ops_per_s / level.bytes_per_s), Y(level.ops_per_s), kWidth - kRight, Y(level.ops_per_s),
           fmt::format("stroke=\"{}\" stroke-width=\"2\"", colour));
      Legend(fmt::format("{}: {}, {}", level.name, Number(level.ops_per_s, "op/s"), Number(level.bytes_per_s, "B/s")),
             colour);
    }
    if (i == 0) return;
    const double link = hrm_.LinkRate(i, 0);
    MemoryRoof(link, hrm_.levels()[0].ops_per_s,
               fmt::format("stroke=\"{}\" stroke-width=\"1.5\" stroke-dasharray=\"6 4\"", colour));
    Legend(fmt::format("{} to {}: {} (dashed)", level.name, hrm_.levels()[0].name, Number(link, "B/s")), colour);
  }

  void Point(const HrmPoint& point, std::string_view colour) {
    const double roof = RoofOf(hrm_, point);
    const double x = X(point.ops_per_byte_from), y = Y(roof);
    Line(x, kTop, x, kHeight - kBottom, fmt::format("stroke=\"{}\" stroke-dasharray=\"2 3\"", colour));
    svg_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"/>\n", x, y, colour);
    legend_y_ += 8;
    Legend(point.name, colour);
    Legend(fmt::format("  {:.3g} op/byte, {}", point.ops_per_byte_from, Number(roof, "op/s")), colour);
    if (point.from == point.to) return;
    const double p1 = hrm_.FirstTurningPoint(point.to, point.from);
    const double p2 = hrm_.SecondTurningPoint(point.to, point.ops_per_byte_to, point.from);
    const double link = hrm_.LinkRate(point.from, point.to);
    if (p1 > 0) Mark("P1", p1, link * p1, colour);
    Mark("P2", p2, link * p2, colour);
    Legend(p1 > 0 ? fmt::format("  P1 {:.3g}, P2 {:.3g} op/byte", p1, p2) : fmt::format("  P2 {:.3g} op/byte", p2),
           colour);
  }

  void Mark(const std::string& name, double ops_per_byte, double ops_per_s, std::string_view colour) {
    const double x = X(ops_per_byte), y = Y(ops_per_s);
    svg_ += fmt::format("<path d=\"M{:.1f} {:.1f} l6 6 l-6 6 l-6 -6 z\" fill=\"white\" stroke=\"{}\"/>\n", x, y - 6,
                        colour);
    Text(x + 9, y - 5, name, fmt::format("fill=\"{}\"", colour));
  }

  const Hrm& hrm_;
  Range x_, y_;  // decades
  std::string svg_;
  double legend_y_ = kTop + 12;
};

}  // namespace

double RoofOf(const Hrm& hrm, const HrmPoint& point) {
  return point.from == point.to ? hrm.LocalRoof(point.to, point.ops_per_byte_to)
                                : hrm.Roof(point.to, point.ops_per_byte_to, point.from, point.ops_per_byte_from);
}

std::string PlotHrm(const Hrm& hrm, std::span<const HrmPoint> points, const std::string& title) {
  return Plot(hrm, points).Draw(points, title);
}

}  // namespace penstock
