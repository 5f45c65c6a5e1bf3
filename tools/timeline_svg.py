#!/usr/bin/env python3
"""Draws a few steps of a run as an SVG, from the Chrome trace that --trace wrote: a lane for attention, experts and disk.

    penstock bench --model MODEL --memory 160MiB --prefill 0 --decode 16 --batch-size 16 --trace trace.json
    tools/timeline_svg.py trace.json docs/timeline.svg --caption "penstock bench ..." --caption "Intel Xeon, 2 CPUs"

The tasks of host_compute fall into two lanes: experts (with the checksums of what was read), and all others. --first is
the first step that is drawn; without it the steps are taken whose time is closest to the median.
"""
import argparse
import json
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT = 900, 92, 66
TOP, LANE, GAP = 40, 30, 12
MIN_PIXELS = 0.7  # the least width that is drawn
SEAM = 0.8  # what a task that is wide enough leaves free at its end, so that neighbours can be told apart
LANES = (("attention", "att"), ("experts", "exp"), ("disk", "dsk"))
NOTES = ("attention: with router and sampling; experts: their matrices and checksums; disk: reads of experts; "
         "percent: busy, of the time shown")
STYLE = """
text{font:12px system-ui,sans-serif;fill:#24292f}.s{font-size:11px;fill:#57606a}
.b{fill:#eaeef2}.g{stroke:#8c959f;stroke-width:1;stroke-dasharray:3 3}.a{stroke:#57606a}
.att{fill:#2f6fb5}.exp{fill:#c2571a}.dsk{fill:#3f8a4d}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9aa4af}.b{fill:#2b3138}.g{stroke:#6e7681}.a{stroke:#9aa4af}
.att{fill:#6cabf0}.exp{fill:#f0945a}.dsk{fill:#6fc480}}
"""


def load(path):
    """Spans (begin, end) in seconds by lane, and those of the steps."""
    events = json.loads(path.read_text(encoding="utf-8"))
    track = {event["tid"]: event["args"]["name"] for event in events
             if event.get("ph") == "M" and event["name"] == "thread_name"}
    spans = {name: [] for name, _ in LANES}
    steps = []
    for event in events:
        if event.get("ph") != "X":
            continue
        span = (event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6)
        name = track[event["tid"]]
        if name == "steps":
            steps.append(span)
        elif name == "disk_to_dram":
            spans["disk"].append(span)
        elif name == "host_compute":
            spans["experts" if event["name"] in ("experts", "check", "dense ffn") else "attention"].append(span)
    return spans, sorted(steps)


def choose(steps, count):
    """The first of `count` steps in a row whose times differ least from the median."""
    times = sorted(end - begin for begin, end in steps)
    median = times[len(times) // 2]

    def distance(first):
        return sum(abs(end - begin - median) for begin, end in steps[first:first + count])

    return min(range(len(steps) // 4, len(steps) - count + 1), key=distance)


def merged(spans, begin, end, scale):
    """The parts of spans within the window, as pixels; narrow ones that lie close together are one."""
    parts = []
    for first, last in sorted(spans):
        if last <= begin or first >= end:
            continue
        x0, x1 = (max(first, begin) - begin) * scale, (min(last, end) - begin) * scale
        if parts and x0 - parts[-1][1] < MIN_PIXELS and min(x1 - x0, parts[-1][1] - parts[-1][0]) < 4 * SEAM:
            parts[-1][1] = max(parts[-1][1], x1)
        else:
            parts.append([x0, x1])
    return parts


def busy(spans, begin, end):
    total, reached = 0.0, begin
    for first, last in sorted(spans):
        first, last = max(first, reached), min(last, end)
        if last > first:
            total += last - first
            reached = last
    return total / (end - begin)


def tick_ms(length_ms):
    for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000):
        if length_ms / step <= 10:
            return step
    return 10000


def draw(spans, steps, args):
    first = choose(steps, args.steps) if args.first is None else args.first
    window = steps[first:first + args.steps]
    begin, end = window[0][0], window[-1][1]
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)
    bottom = TOP + len(LANES) * (LANE + GAP)
    captions = [NOTES, *args.caption]
    height = bottom + 28 + 16 * len(captions)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
           f"<title>{escape(args.title)}</title><style>{STYLE.strip()}</style>",
           f'<text x="{LEFT}" y="14">{escape(args.title)}</text>']
    for number, (step_begin, _) in enumerate(window):
        x = LEFT + (step_begin - begin) * scale
        out.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="22" y2="{bottom}"/>'
                   f'<text class="s" x="{x + 4:.1f}" y="32">pass {number + 1}</text>')
    for place, (name, style) in enumerate(LANES):
        y = TOP + place * (LANE + GAP)
        share = busy(spans[name], begin, end)
        out.append(f'<text x="{LEFT - 8}" y="{y + 20}" text-anchor="end">{name}</text>'
                   f'<rect class="b" x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{LANE}"/>'
                   f'<text class="s" x="{WIDTH - RIGHT + 8}" y="{y + 20}">{100 * share:.0f} %</text>')
        path = ""
        for x0, x1 in merged(spans[name], begin, end, scale):
            width = x1 - x0 - SEAM if x1 - x0 > 4 * SEAM else max(x1 - x0, MIN_PIXELS)
            path += f"M{LEFT + x0:.1f} {y}h{width:.1f}v{LANE}h-{width:.1f}z"
        out.append(f'<path class="{style}" d="{path}"/>')
    out.append(f'<line class="a" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    step = tick_ms((end - begin) * 1e3)
    for ms in range(0, int((end - begin) * 1e3) + 1, step):
        x = LEFT + ms * 1e-3 * scale
        out.append(f'<line class="a" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
                   f'<text class="s" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{ms} ms</text>')
    for line, text in enumerate(captions):
        out.append(f'<text class="s" x="8" y="{bottom + 38 + 16 * line}">{escape(text)}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=4, help="how many steps are drawn")
    parser.add_argument("--first", type=int, help="the first of them, from 0")
    parser.add_argument("--title", default="A run of Penstock, lane by lane")
    parser.add_argument("--caption", action="append", default=[], help="a line below it; may be repeated")
    args = parser.parse_args()
    spans, steps = load(args.trace)
    if args.steps < 1 or len(steps) < max(args.steps, args.steps + (args.first or 0)):
        sys.exit(f"timeline_svg: {args.trace} has {len(steps)} steps, fewer than are to be drawn")
    args.output.write_text(draw(spans, steps, args), encoding="utf-8")


if __name__ == "__main__":
    main()
