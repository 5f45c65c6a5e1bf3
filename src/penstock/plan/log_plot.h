// Line plots with logarithmic axes and a legend beside them, as SVG.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

class LogPlot {
 public:
  struct Axis {
    double low = 0;  // > 0
    double high = 0;
    std::string label;
  };
  enum class Style { kSolid, kDashed, kDotted };

  // Widens the axes to whole decades, at least `headroom` of a decade beyond the values.
  LogPlot(const std::string& title, const Axis& x, const Axis& y, double headroom = 0.2);

  double max_x() const;
  double min_x() const;

  // Draws a line between two points, given as values. Parts outside the axes are clipped.
  void Line(double x1, double y1, double x2, double y2, std::string_view colour, Style style = Style::kSolid);
  // Draws a line over the whole height.
  void VerticalLine(double x, std::string_view colour, Style style);
  void Dot(double x, double y, std::string_view colour);
  void Diamond(double x, double y, const std::string& name, std::string_view colour);
  // Legend() adds a line to the legend; LegendGap() leaves a gap before the next line.
  void Legend(const std::string& text, std::string_view colour);
  void LegendGap() { legend_y_ += 8; }

  std::string Svg() const { return svg_ + "</svg>\n"; }

  // Returns the value with three digits and a prefix of the unit: "12.9 GB/s".
  static std::string Number(double value, std::string_view unit);

 private:
  struct Range {
    double low = 0, high = 0;  // exponents of 10
  };
  static std::vector<double> Ticks(const Range& range);
  double X(double value) const;
  double Y(double value) const;
  void Text(double x, double y, const std::string& text, std::string_view attributes = "");
  void DrawAxes(const std::string& x_label, const std::string& y_label);

  Range x_, y_;
  std::string svg_;
  double legend_y_ = 0;
};

}  // namespace penstock
