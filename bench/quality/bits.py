#!/usr/bin/env python3
"""Measures what bits cost: packs a model in each format and under several budgets of bits, and compares each store with the
model on a text. Prints a table, and draws the divergence against the bits and against the speed.

    python3 bench/quality/bits.py --penstock build/release/src/penstock/cli/penstock --model models/penstock-demo \\
        --calibration novels.txt --text book.txt --memory 12MiB --json bits.json --plot docs/bits.svg \\
        [--gguf demo-Q2_K.gguf ...]
    python3 bench/quality/bits.py --from bits.json --plot docs/bits.svg

The text must not be one of those that the model is calibrated on. GGUF files of the same model are compared, too. --memory
measures how fast one sequence is decoded with so much memory. The second form only draws.
"""
import argparse
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

BUDGETS = (2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)
FORMATS = ("ternary", "hqq2", "hqq3", "hqq4", "int8")


class Bench:
    def __init__(self, args):
        self.args = args

    def penstock(self, *words):
        done = subprocess.run([self.args.penstock, *map(str, words)], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"penstock {' '.join(map(str, words))}:\n{done.stderr}")
        return done.stdout

    def measure(self, name, kind, model):
        """A row of the table: a model's bits of a weight, and how far its predictions are from the reference's."""
        report = json.loads(self.penstock("inspect", "--model", model, "--json"))
        parts = [report["kinds"][part] for part in ("attention", "dense FFNs", "shared FFNs", "experts")
                 if part in report["kinds"]]
        weights = sum(8 * part["bytes"] / part["bits_per_weight"] for part in parts)
        quality = json.loads(self.penstock("quality", "--model", model, "--reference", self.args.model, "--text",
                                           self.args.text, "--json"))
        row = {"name": name, "kind": kind, "bits": 8 * sum(part["bytes"] for part in parts) / weights,
               "divergence": quality["kl_divergence"]["mean"], "same_best": quality["same_best_token"],
               "perplexity": quality["perplexity"] / quality["reference_perplexity"] - 1,
               "last_layer": quality["layer_errors"][-1] if quality["layer_errors"] else math.nan}
        speed = ""
        if self.args.memory:
            row["memory"] = self.args.memory
            row["tokens_per_second"] = self.speed(model)
            speed = f" {row['tokens_per_second']:.0f} |"
        print(f"| {name} | {row['bits']:.2f} | {row['divergence']:.4f} | {100 * row['same_best']:.1f} % | "
              f"{100 * row['perplexity']:+.2f} % | {100 * row['last_layer']:.2f} % |{speed}", flush=True)
        return row

    def speed(self, model):
        """Tokens per second of one sequence: the best of three runs, which other work on the machine disturbs least."""
        found = []
        for _ in range(3):
            lines = self.penstock("bench", "--model", model, "--memory", self.args.memory, "--decode", 1, "--prefill", 64,
                                  "--json").splitlines()
            found.append(next(line["tokens_per_second"] for line in map(json.loads, lines) if line.get("kind") == "decode"))
        return max(found)

    def run(self, folder):
        head = ["store", "bits of a weight", "KL divergence", "same best token", "perplexity", "error behind the last layer"]
        head += [f"tokens/s in {self.args.memory}"] if self.args.memory else []
        print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}", flush=True)
        importance = folder / "importance.safetensors"
        self.penstock("calibrate", "--model", self.args.model, "--text", self.args.calibration, "--output", importance,
                      "--products")
        rows = []

        def pack(name, kind, *flags):
            store = folder / "store"
            self.penstock("pack", "--model", self.args.model, "--output", store, *flags)
            rows.append(self.measure(name, kind, store))
            shutil.rmtree(store)

        for weights in FORMATS:
            pack(f"`--quantize {weights}`", "one format", "--quantize", weights)
        for bits in self.args.bits:
            pack(f"`--bits {bits:g}`", "bits and importance", "--bits", bits, "--importance", importance)
        for path in self.args.gguf:
            rows.append(self.measure(pathlib.Path(path).stem.rsplit("-", 1)[-1], "GGUF", path))
        return rows


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 440, 70, 20, 40, 50
COLOURS = {"one format": "#c2410c", "bits and importance": "#1d4ed8", "GGUF": "#15803d"}


class LabelPlaces:
    """Puts labels beside their points, each where it covers the fewest points and earlier labels."""

    def __init__(self, points):
        self.boxes = [(x - 4, y - 4, x + 4, y + 4) for x, y in points]

    def text(self, label, x, y, colour):
        width, places = 7 * len(label), []
        for right in (True, False):
            for base in (y - 5, y + 14, y + 4):
                left = x + 7 if right else x - 7 - width
                box = (left, base - 10, left + width, base + 2)
                covered = sum(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in self.boxes)
                places.append((covered, len(places), base, right, box))
        _, _, base, right, box = min(places)
        self.boxes.append(box)
        at = f'x="{x + 7:.1f}"' if right else f'x="{x - 7:.1f}" text-anchor="end"'
        return f'<text {at} y="{base:.1f}" fill="{colour}">{label}</text>'


def panel(rows, key, label, shift):
    """The elements of a plot of divergence (logarithmic) against a key of the rows, `shift` pixels to the right."""
    low = math.floor(math.log10(min(row["divergence"] for row in rows)))
    high = math.ceil(math.log10(max(row["divergence"] for row in rows)))
    largest = max(row[key] for row in rows)
    step = 10 ** math.floor(math.log10(largest / 2))
    step *= next(times for times in (1, 2, 5, 10) if largest / (times * step) <= 8)
    first = math.floor(min(row[key] for row in rows) / step)
    last = math.ceil(largest / step)

    def x(value):
        return LEFT + (value / step - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(divergence):
        return TOP + (high - math.log10(divergence)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [f'<g transform="translate({shift} 0)">']
    for power in range(low, high + 1):
        at = f"{y(10 ** power):.1f}"
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(10 ** power) + 4:.1f}" text-anchor="end">{10.0 ** power:g}</text>')
    for tick in range(first, last + 1):
        at = f"{x(tick * step):.1f}"
        out.append(f'<line x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>')
        out.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick * step:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{label}</text>')
    place = LabelPlaces([(x(row[key]), y(row["divergence"])) for row in rows])
    for kind, colour in COLOURS.items():
        points = sorted((row["bits"], row[key], row["divergence"], row["name"]) for row in rows if row["kind"] == kind)
        if kind != "GGUF" and points:
            path = " ".join(f"{x(value):.1f},{y(divergence):.1f}" for _, value, divergence, _ in points)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for bits, value, divergence, name in points:
            out.append(f'<circle cx="{x(value):.1f}" cy="{y(divergence):.1f}" r="3.5" fill="{colour}"/>')
            short = name.strip("`").replace("--quantize ", "") if kind != "bits and importance" else f"{bits:.2g}"
            if kind != "bits and importance" or key != "bits":
                out.append(place.text(short, x(value), y(divergence), colour))
    return [*out, "</g>"]


def plot(rows, title):
    """An SVG of divergence against bits and, where speeds were measured, against tokens per second."""
    shown = [row for row in rows if row["divergence"] > 0]
    fast = [row for row in shown if "tokens_per_second" in row]
    width = 2 * WIDTH if fast else WIDTH
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" '
           'font-size="12">',
           f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="14">{title}</text>',
           *panel(shown, "bits", "bits of a weight, with scales", 0)]
    if fast:
        label = f"tokens per second of one sequence, in {fast[0]['memory']} of memory"
        out += panel(fast, "tokens_per_second", label, WIDTH)
    for number, (kind, colour) in enumerate(COLOURS.items()):
        out.append(f'<text x="{WIDTH - RIGHT - 140}" y="{TOP + 16 + 16 * number}" fill="{colour}">{kind}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock")
    parser.add_argument("--model")
    parser.add_argument("--calibration", help="text for penstock calibrate")
    parser.add_argument("--text", help="text on which the stores are compared with the model")
    parser.add_argument("--bits", type=float, nargs="+", default=BUDGETS)
    parser.add_argument("--gguf", nargs="*", default=[], help="the same model, quantised by llama.cpp")
    parser.add_argument("--memory", help="measure decoding of one sequence in so much memory, too")
    parser.add_argument("--from", dest="from_json", help="a file of --json: draw its rows, and measure nothing")
    parser.add_argument("--plot", help="SVG to write")
    parser.add_argument("--json", help="file for the rows")
    args = parser.parse_args()
    if args.from_json:
        found = json.loads(pathlib.Path(args.from_json).read_text(encoding="utf-8"))
    else:
        missing = [name for name in ("penstock", "model", "calibration", "text") if not getattr(args, name)]
        if missing:
            parser.error(f"--{missing[0]} is required")
        with tempfile.TemporaryDirectory() as folder:
            found = {"model": pathlib.Path(args.model).name, "rows": Bench(args).run(pathlib.Path(folder))}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        title = f"Divergence of {found['model']} from its own bf16 weights (nats)"
        pathlib.Path(args.plot).write_text(plot(found["rows"], title), encoding="utf-8")


if __name__ == "__main__":
    main()
