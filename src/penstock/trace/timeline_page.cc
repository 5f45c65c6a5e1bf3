#include "penstock/trace/timeline_page.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr int kRowHeight = 36;  // pixels, also in kStyle
constexpr int kSliceHeight = 24;
// The number of colours in kStyle. The last one serves all names without a colour of their own.
constexpr size_t kNumColours = 12;

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --text: #1c2330; --faint: #667085; --line: #d9dee7; --page: #f5f6f8; --card: #fff;
  --busy: #cfdcf7; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e3e7ee; --faint: #98a2b3; --line: #313947; --page: #12161d; --card: #1a1f28; --busy: #2c3f68; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 110rem; margin: 0 auto; padding: 2rem 1.5rem 3rem; }
h1 { margin: 0; font-size: 1.5rem; font-weight: 600; overflow-wrap: anywhere; }
p { margin: .25rem 0 1rem; color: var(--faint); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.25rem;
  margin: 1rem 0; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem 0 .3rem 2rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
th:first-child { padding-left: 0; text-align: left; }
th { font-weight: 600; } thead th { color: var(--faint); font-size: .85em; font-weight: 500; }
thead .group { text-align: center; } small { color: var(--faint); }
.bar { padding: 0 .4rem; border-radius: 4px;
  background: linear-gradient(to right, var(--busy) var(--share), transparent var(--share)) no-repeat;
  box-shadow: inset 0 0 0 1px var(--line); display: inline-block; min-width: 6rem; }
ul { list-style: none; margin: 0 0 1rem; padding: 0; display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 3px; background: var(--c);
  margin-right: .5em; }
.lanes { display: grid; grid-template-columns: fit-content(14rem) minmax(20rem, 1fr); column-gap: .75rem; }
.names { padding-top: 24px; text-align: right; min-width: 0; }
.names div { line-height: 36px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.plot { position: relative; padding-top: 24px; overflow: hidden; }
.plot svg { display: block; width: 100%; position: relative; touch-action: pan-y; }
.plot i { position: absolute; top: 0; bottom: 0; border-left: 1px solid var(--line); padding-left: .35em;
  font: 12px/20px system-ui, sans-serif; font-variant-numeric: tabular-nums; color: var(--faint); white-space: nowrap; }
.row { fill: #808a9c; fill-opacity: .09; }
.slice { fill: var(--c); } .slice:nth-child(even) { fill-opacity: .8; } .slice:hover { fill-opacity: .6; }
#details { margin: .75rem 0 0; min-height: 1.5em; }
.c0 { --c: #4269d0; } .c1 { --c: #efb118; } .c2 { --c: #ff725c; } .c3 { --c: #3ca951; }
.c4 { --c: #a463f2; } .c5 { --c: #6cc5b0; } .c6 { --c: #ff8ab7; } .c7 { --c: #9c6b4e; }
.c8 { --c: #7fb2f5; } .c9 { --c: #a3ad2c; } .c10 { --c: #1798b5; } .c11 { --c: #9498a0; }
)css";

// Sets the ticks of the visible part, as Page::AppendTicks() does. The view is in microseconds.
constexpr std::string_view kScript = R"js(
(() => {
  const svg = document.querySelector('svg'), ticks = document.getElementById('ticks');
  if (!svg) return;
  const details = document.getElementById('details');
  const hint = 'Wheel zooms, dragging moves, a double click shows all. Point at a slice to read it.';
  const [, , span, height] = svg.getAttribute('viewBox').split(' ').map(Number);
  let left = 0, width = span, drag = null;
  const show = () => {
    left = Math.min(Math.max(left, 0), span - width);
    svg.setAttribute('viewBox', `${left} 0 ${width} ${height}`);
    const rough = width / Math.max(2, svg.clientWidth / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 5].find(factor => factor * power >= rough) || 10);
    const [unit, name] = step >= 1e5 ? [1e6, 's'] : step >= 100 ? [1e3, 'ms'] : [1, '\u00b5s'];
    const decimals = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
    ticks.replaceChildren();
    for (let n = Math.ceil(left / step); n * step < left + 0.96 * width; ++n) {
      const tick = document.createElement('i');
      tick.style.left = 100 * (n * step - left) / width + '%';
      tick.textContent = (n * step / unit).toFixed(decimals) + ' ' + name;
      ticks.append(tick);
    }
  };
  svg.addEventListener('wheel', event => {
    event.preventDefault();
    const box = svg.getBoundingClientRect(), place = (event.clientX - box.left) / box.width;
    const zoomed = Math.min(span, Math.max(span / 1e5, width * Math.exp(event.deltaY * 0.0015)));
    left += place * (width - zoomed) + event.deltaX / box.width * zoomed;
    width = zoomed;
    show();
  }, {passive: false});
  svg.addEventListener('pointerdown', event => {
    drag = {x: event.clientX, left};
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener('pointermove', event => {
    if (drag) {
      left = drag.left - (event.clientX - drag.x) / svg.clientWidth * width;
      show();
    } else {
      const title = event.target.querySelector(':scope > title');
      details.textContent = title ? title.textContent.replaceAll('\n', ' \u00b7 ') : hint;
    }
  });
  for (const end of ['pointerup', 'pointercancel']) svg.addEventListener(end, () => { drag = null; });
  svg.addEventListener('dblclick', () => { left = 0; width = span; show(); });
  addEventListener('resize', show);
  details.textContent = hint;
  show();
})();
)js";

// Returns three significant digits of a number >= 0: "0.0123", "4.56", "78.9", "12345".
std::string Digits(double value) {
  if (value >= 99.95) return fmt::format("{:.0f}", value);
  if (value >= 9.995) return fmt::format("{:.1f}", value);
  if (value >= 0.9995 || value == 0) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3g}", value);
}

std::string Seconds(double seconds) {
  if (seconds == 0) return "0 s";
  if (seconds >= 0.9995) return Digits(seconds) + " s";
  if (seconds >= 0.9995e-3) return Digits(seconds * 1e3) + " ms";
  return Digits(seconds * 1e6) + " µs";
}

std::string Count(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// Totals of a lane within the window.
struct LaneWindow {
  double busy_s = 0;
  double bubble_s = 0;  // the longest bubble
  double bubble_begin_s = 0;
  double last_end_s = 0;
};

struct NameWindow {
  double busy_s = 0;
  int64_t num_tasks = 0;
  size_t colour = 0;
};

// Writes the page. The slices of a lane do not overlap and are in the order of their ends.
class Page {
 public:
  Page(const TimelineRecord& record, std::string_view title, double window_s)
      : record_(record), title_(EscapeXml(title)) {
    SetWindow(window_s);
    Sum();
  }

  std::string Write() {
    Append(R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{0}</title>
<style>{1}</style>
</head>
<body>
<main>
<h1>{0}</h1>
)",
           title_, kStyle);
    AppendAbout();
    AppendTable();
    if (!shown_.empty()) AppendPlot();
    Append("</main>\n<script>{}</script>\n</body>\n</html>\n", kScript);
    return std::move(html_);
  }

 private:
  template <typename... Args>
  void Append(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(html_), format, std::forward<Args>(args)...);
  }

  double span_s() const { return end_s_ - begin_s_; }
  double ClippedBegin(const TaskSlice& slice) const { return std::max(slice.begin_s, begin_s_); }

  void SetWindow(double window_s) {
    const std::vector<TaskSlice>& slices = record_.slices;
    if (slices.empty()) return;
    double first_begin_s = slices.front().begin_s;
    end_s_ = slices.front().end_s;
    for (const TaskSlice& slice : slices) {
      first_begin_s = std::min(first_begin_s, slice.begin_s);
      end_s_ = std::max(end_s_, slice.end_s);
    }
    // Some tasks before dropped_until_s are unknown. In a simulation, where lanes run ahead, that can be the whole run.
    if (record_.dropped_until_s < end_s_) first_begin_s = std::max(first_begin_s, record_.dropped_until_s);
    begin_s_ = std::max(first_begin_s, end_s_ - window_s);
    if (end_s_ <= begin_s_) end_s_ = begin_s_ + 1e-9;  // no task took any time
    for (size_t i = 0; i < slices.size(); ++i) {
      const TaskSlice& slice = slices[(record_.oldest + i) % slices.size()];
      if (slice.end_s > begin_s_ || slice.begin_s >= begin_s_) shown_.push_back(&slice);
    }
  }

  void Sum() {
    lanes_.assign(record_.lanes.size(), {.last_end_s = begin_s_});
    const auto end_bubble = [](LaneWindow& lane, double now_s) {
      if (now_s - lane.last_end_s <= lane.bubble_s) return;
      lane.bubble_s = now_s - lane.last_end_s;
      lane.bubble_begin_s = lane.last_end_s;
    };
    for (const TaskSlice* slice : shown_) {
      const double busy_s = slice->end_s - ClippedBegin(*slice);
      LaneWindow& lane = lanes_[slice->lane];
      end_bubble(lane, ClippedBegin(*slice));
      lane.busy_s += busy_s;
      lane.last_end_s = slice->end_s;
      NameWindow& name = names_[slice->label.name];
      name.busy_s += busy_s;
      ++name.num_tasks;
    }
    for (LaneWindow& lane : lanes_) end_bubble(lane, end_s_);
    for (auto& [name, window] : names_) by_time_.emplace_back(name, &window);
    std::stable_sort(by_time_.begin(), by_time_.end(),
                     [](const auto& a, const auto& b) { return a.second->busy_s > b.second->busy_s; });
    for (size_t i = 0; i < by_time_.size(); ++i) by_time_[i].second->colour = std::min(i, kNumColours - 1);
  }

  void AppendAbout() {
    int64_t num_tasks = 0;
    for (const LaneUsage& lane : record_.lanes) num_tasks += lane.num_tasks;
    const std::string lanes = Count(static_cast<int64_t>(record_.lanes.size()), "lane");
    if (num_tasks == 0) return Append("<p>{}. No task has ended.</p>\n", lanes);
    Append("<p>{} on {} in {}. Shown: the last {}, from {} on, with {}.</p>\n", Count(num_tasks, "task"), lanes,
           Seconds(record_.last_end_s - record_.first_begin_s), Seconds(span_s()), Seconds(begin_s_),
           Count(static_cast<int64_t>(shown_.size()), "task"));
  }

  void AppendTable() {
    html_ += R"(<section>
<table>
<thead>
<tr><th></th><th class="group" colspan="6" scope="colgroup">whole run</th>)"
             R"(<th class="group" colspan="2" scope="colgroup">shown window</th></tr>
<tr><th scope="col">lane</th><th scope="col">tasks</th><th scope="col">busy</th><th scope="col">busy share</th>)"
             R"(<th scope="col">memory GB/s while busy</th><th scope="col">link GB/s while busy</th>)"
             R"(<th scope="col">GFLOP/s while busy</th><th scope="col">busy share</th>)"
             R"(<th scope="col">longest bubble</th></tr>
</thead>
<tbody>
)";
    const double total_s = record_.last_end_s - record_.first_begin_s;
    const auto bar = [](double part_s, double whole_s) {
      const std::string share = fmt::format("{:.1f}%", whole_s > 0 ? 100 * part_s / whole_s : 0);
      return fmt::format(R"(<td><span class="bar" style="--share: {0}">{0}</span></td>)", share);
    };
    for (size_t i = 0; i < lanes_.size(); ++i) {
      const LaneUsage& usage = record_.lanes[i];
      const LaneWindow& window = lanes_[i];
      const auto rate = [&](double amount) {
        return amount > 0 && usage.busy_s > 0 ? Digits(amount / usage.busy_s / 1e9) : std::string("–");
      };
      Append(R"(<tr><th scope="row">{}</th><td>{}</td><td>{:.3f} s</td>{}<td>{}</td><td>{}</td><td>{}</td>{})",
             EscapeXml(usage.name), usage.num_tasks, usage.busy_s, bar(usage.busy_s, total_s),
             rate(static_cast<double>(usage.cost.memory_bytes)), rate(static_cast<double>(usage.cost.link_bytes)),
             rate(usage.cost.flops), bar(window.busy_s, span_s()));
      if (window.bubble_s > 0) {
        Append("<td>{} <small>at {}</small></td></tr>\n", Seconds(window.bubble_s),
               Seconds(window.bubble_begin_s - begin_s_));
      } else {
        html_ += "<td>–</td></tr>\n";
      }
    }
    html_ += "</tbody>\n</table>\n</section>\n";
  }

  void AppendPlot() {
    html_ += "<section>\n<ul>\n";
    for (const auto& [name, window] : by_time_) {
      Append(R"(<li><span class="swatch c{}"></span>{} <small>{}, {}</small></li>)"
             "\n",
             window->colour, EscapeXml(name), Count(window->num_tasks, "task"), Seconds(window->busy_s));
    }
    html_ += "</ul>\n<div class=\"lanes\">\n<div class=\"names\">\n";
    for (const LaneUsage& lane : record_.lanes) Append("<div title=\"{0}\">{0}</div>\n", EscapeXml(lane.name));
    html_ += "</div>\n<div class=\"plot\">\n<div id=\"ticks\">";
    AppendTicks();
    const size_t height = lanes_.size() * kRowHeight;
    Append(
        "</div>\n"
        R"(<svg viewBox="0 0 {:.3f} {}" height="{}" preserveAspectRatio="none" role="img" aria-label="timeline">)"
        "\n",
        span_s() * 1e6, height, height);
    for (size_t i = 0; i < lanes_.size(); ++i) AppendLane(static_cast<LaneIdx>(i));
    html_ += "</svg>\n</div>\n</div>\n<p id=\"details\">Point at a slice to read it.</p>\n</section>\n";
  }

  void AppendTicks() {
    const double span_us = span_s() * 1e6;
    const double power = std::pow(10, std::floor(std::log10(span_us / 10)));
    double step_us = 10 * power;
    for (const double factor : {5, 2, 1}) {
      if (factor * power >= span_us / 10) step_us = factor * power;
    }
    const double unit_us = step_us >= 1e5 ? 1e6 : step_us >= 100 ? 1e3 : 1;
    const std::string_view unit = step_us >= 1e5 ? "s" : step_us >= 100 ? "ms" : "µs";
    const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step_us / unit_us) - 1e-9)));
    for (int i = 0; i * step_us < 0.96 * span_us; ++i) {
      Append(R"(<i style="left: {:.3f}%">{:.{}f} {}</i>)", 100 * i * step_us / span_us, i * step_us / unit_us, decimals,
             unit);
    }
  }

  void AppendLane(LaneIdx lane) {
    const int top = lane * kRowHeight;
    const int margin = (kRowHeight - kSliceHeight) / 2;
    Append(
        "<g>\n"
        R"(<rect class="row" x="0" y="{}" width="{:.3f}" height="{}"/>)"
        "\n",
        top + margin / 2, span_s() * 1e6, kRowHeight - margin);
    for (const TaskSlice* slice : shown_) {
      if (slice->lane != lane) continue;
      const double begin_s = ClippedBegin(*slice);
      Append(R"(<rect class="slice c{}" x="{:.3f}" y="{}" width="{:.3f}" height="{}"><title>)",
             names_.at(slice->label.name).colour, (begin_s - begin_s_) * 1e6, top + margin,
             (slice->end_s - begin_s) * 1e6, kSliceHeight);
      AppendTooltip(*slice);
      html_ += "</title></rect>\n";
    }
    html_ += "</g>\n";
  }

  void AppendTooltip(const TaskSlice& slice) {
    html_ += EscapeXml(slice.label.name);
    const auto append_index = [this](std::string_view name, int64_t idx) {
      if (idx >= 0) Append("\n{} {}", name, idx);
    };
    append_index("layer", slice.label.layer_idx);
    append_index("expert", slice.label.expert_idx);
    append_index("micro-batch", slice.label.micro_batch_idx);
    const double duration_s = slice.end_s - slice.begin_s;
    Append("\n{} at {}", Seconds(duration_s), Seconds(std::max(0.0, slice.begin_s - begin_s_)));
    const auto append_rate = [&](std::string_view prefix, double amount, std::string_view unit) {
      if (amount > 0 && duration_s > 0) Append("\n{}{} {}", prefix, Digits(amount / duration_s / 1e9), unit);
    };
    append_rate("memory ", static_cast<double>(slice.cost.memory_bytes), "GB/s");
    append_rate("link ", static_cast<double>(slice.cost.link_bytes), "GB/s");
    append_rate("", slice.cost.flops, "GFLOP/s");
  }

  const TimelineRecord& record_;
  const std::string title_;
  double begin_s_ = 0;  // begin of the shown window
  double end_s_ = 0;
  std::vector<const TaskSlice*> shown_;
  std::vector<LaneWindow> lanes_;
  std::map<std::string_view, NameWindow> names_;
  std::vector<std::pair<std::string_view, NameWindow*>> by_time_;  // longest time first
  std::string html_;
};

}  // namespace

std::string TimelinePage(const TimelineRecord& record, std::string_view title, double window_s) {
  return Page(record, title, window_s).Write();
}

}  // namespace penstock
