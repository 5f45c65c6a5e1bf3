#include "penstock/plan/log_plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr double kWidth = 900, kHeight = 560, kLeft = 90, kRight = 250, kTop = 50, kBottom = 60;

std::string_view Dashes(LogPlot::Style style) {
  switch (style) {
    case LogPlot::Style::kSolid: return "";
    case LogPlot::Style::kDashed: return " stroke-dasharray=\"6 4\"";
    case LogPlot::Style::kDotted: return " stroke-dasharray=\"2 3\"";
  }
  return "";
}

}  // namespace

std::string LogPlot::Number(double value, std::string_view unit) {
  constexpr std::string_view kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  while (value >= 1000 && prefix + 1 < std::size(kPrefixes)) value /= 1000, ++prefix;
  return fmt::format("{:.3g} {}{}", value, kPrefixes[prefix], unit);
}

LogPlot::LogPlot(const std::string& title, const Axis& x, const Axis& y, double headroom) {
  const auto decades = [&](const Axis& axis) {
    return Range{std::floor(std::log10(axis.low) - headroom), std::ceil(std::log10(axis.high) + headroom)};
  };
  x_ = decades(x);
  y_ = decades(y);
  svg_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<clipPath id=\"plot\"><rect x=\"{2}\" y=\"{3}\" width=\"{4}\" height=\"{5}\"/></clipPath>\n",
      kWidth, kHeight, kLeft, kTop, kWidth - kLeft - kRight, kHeight - kTop - kBottom);
  Text(kLeft, 26, title, "font-size=\"15\" font-weight=\"bold\"");
  DrawAxes(x.label, y.label);
  legend_y_ = kTop + 12;
}

double LogPlot::max_x() const { return std::pow(10, x_.high); }
double LogPlot::min_x() const { return std::pow(10, x_.low); }

double LogPlot::X(double value) const {
  return kLeft + (std::log10(value) - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight);
}

double LogPlot::Y(double value) const {
  return kHeight - kBottom - (std::log10(value) - y_.low) / (y_.high - y_.low) * (kHeight - kTop - kBottom);
}

void LogPlot::Text(double x, double y, const std::string& text, std::string_view attributes) {
  svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, EscapeXml(text));
}

std::vector<double> LogPlot::Ticks(const Range& range) {
  std::vector<double> ticks;
  for (double decade = range.low; decade <= range.high; ++decade) {
    ticks.push_back(std::pow(10, decade));
    if (range.high - range.low > 3 || decade == range.high) continue;
    for (const double step : {2.0, 5.0}) ticks.push_back(step * std::pow(10, decade));
  }
  return ticks;
}

void LogPlot::DrawAxes(const std::string& x_label, const std::string& y_label) {
  constexpr std::string_view kGrid = "#e5e5e5";
  const auto label = [](double value) { return value < 1000 ? fmt::format("{:g}", value) : Number(value, ""); };
  for (const double value : Ticks(x_)) {
    VerticalLine(value, kGrid, Style::kSolid);
    Text(X(value), kHeight - kBottom + 18, label(value), "text-anchor=\"middle\" fill=\"#333\"");
  }
  for (const double value : Ticks(y_)) {
    Line(min_x(), value, max_x(), value, kGrid);
    Text(kLeft - 8, Y(value) + 4, label(value), "text-anchor=\"end\" fill=\"#333\"");
  }
  Text((kLeft + kWidth - kRight) / 2, kHeight - 16, x_label, "text-anchor=\"middle\" fill=\"#333\"");
  const double middle = (kTop + kHeight - kBottom) / 2;
  Text(18, middle, y_label,
       fmt::format("text-anchor=\"middle\" fill=\"#333\" transform=\"rotate(-90 18 {:.0f})\"", middle));
}

void LogPlot::Line(double x1, double y1, double x2, double y2, std::string_view colour, Style style) {
  svg_ += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" clip-path=\"url(#plot)\" stroke=\"{}\" "
      "stroke-width=\"{}\"{}/>\n",
      X(x1), Y(y1), X(x2), Y(y2), colour, colour.starts_with("#e") ? 1 : 2, Dashes(style));
}

void LogPlot::VerticalLine(double x, std::string_view colour, Style style) {
  Line(x, std::pow(10, y_.low), x, std::pow(10, y_.high), colour, style);
}

void LogPlot::Dot(double x, double y, std::string_view colour) {
  svg_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"/>\n", X(x), Y(y), colour);
}

void LogPlot::Diamond(double x, double y, const std::string& name, std::string_view colour) {
  svg_ += fmt::format("<path d=\"M{:.1f} {:.1f} l6 6 l-6 6 l-6 -6 z\" fill=\"white\" stroke=\"{}\"/>\n", X(x), Y(y) - 6,
                      colour);
  Text(X(x) + 9, Y(y) - 5, name, fmt::format("fill=\"{}\"", colour));
}

void LogPlot::Legend(const std::string& text, std::string_view colour) {
  Text(kWidth - kRight + 14, legend_y_, text, fmt::format("fill=\"{}\"", colour));
  legend_y_ += 17;
}

}  // namespace penstock
