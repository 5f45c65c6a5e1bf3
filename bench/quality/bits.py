#!/usr/bin/env python3
"""Measures what bits cost: packs a model in each format and under several budgets of bits, and compares each store with the
model on a text. Prints a table, and draws the divergence against the bits.

    python3 bench/quality/bits.py --penstock build/release/src/penstock/cli/penstock --model models/penstock-demo \\
        --calibration novels.txt --text book.txt --plot docs/bits.svg [--gguf demo-Q2_K.gguf ...]

The text must not be one of those that the model is calibrated on. GGUF files of the same model are compared, too.
"""
import argparse
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

BUDGETS = (2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)
FORMATS = ("hqq2", "hqq3", "hqq4", "int8")


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
        if self.args.tokens_per_second:
            lines = self.penstock("bench", "--model", model, "--decode", 1, "--prefill", 64, "--json").splitlines()
            row["tokens_per_second"] = next(line["tokens_per_second"] for line in map(json.loads, lines)
                                            if line.get("kind") == "decode")
        print(f"| {name} | {row['bits']:.2f} | {row['divergence']:.4f} | {100 * row['same_best']:.1f} % | "
              f"{100 * row['perplexity']:+.2f} % | {100 * row['last_layer']:.2f} % |", flush=True)
        return row

    def run(self, folder):
        print("| store | bits of a weight | KL divergence | same best token | perplexity | error behind the last layer |\n"
              "| --- | --- | --- | --- | --- | --- |", flush=True)
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
            pack(f"`--bits {bits:g} --importance`", "bits and importance", "--bits", bits, "--importance", importance)
        for path in self.args.gguf:
            rows.append(self.measure(pathlib.Path(path).stem, "GGUF", path))
        return rows


def plot(rows, title):
    """An SVG of divergence (logarithmic) against bits."""
    width, height, left, right, top, bottom = 760, 440, 70, 20, 40, 50
    shown = [row for row in rows if row["divergence"] > 0]
    low = math.floor(math.log10(min(row["divergence"] for row in shown)))
    high = math.ceil(math.log10(max(row["divergence"] for row in shown)))
    first, last = math.floor(min(row["bits"] for row in shown)), math.ceil(max(row["bits"] for row in shown))

    def x(bits):
        return left + (bits - first) / (last - first) * (width - left - right)

    def y(divergence):
        return top + (high - math.log10(divergence)) / (high - low) * (height - top - bottom)

    colours = {"one format": "#c2410c", "bits and importance": "#1d4ed8", "GGUF": "#15803d"}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           'font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{left}" y="20" font-size="14">{title}</text>']
    for power in range(low, high + 1):
        height_of = f"{y(10 ** power):.1f}"
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{height_of}" y2="{height_of}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 8}" y="{y(10 ** power) + 4:.1f}" text-anchor="end">{10.0 ** power:g}</text>')
    for bits in range(first, last + 1):
        out.append(f'<line x1="{x(bits):.1f}" x2="{x(bits):.1f}" y1="{top}" y2="{height - bottom}" stroke="#eee"/>')
        out.append(f'<text x="{x(bits):.1f}" y="{height - bottom + 18}" text-anchor="middle">{bits}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">bits of a weight, with '
               'scales</text>')
    for kind, colour in colours.items():
        points = sorted((row["bits"], row["divergence"], row["name"]) for row in shown if row["kind"] == kind)
        if not points:
            continue
        if kind != "GGUF":
            path = " ".join(f"{x(bits):.1f},{y(divergence):.1f}" for bits, divergence, _ in points)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for bits, divergence, name in points:
            out.append(f'<circle cx="{x(bits):.1f}" cy="{y(divergence):.1f}" r="3.5" fill="{colour}"/>')
            if kind != "bits and importance":
                short = name.strip("`").replace("--quantize ", "")
                out.append(f'<text x="{x(bits) + 6:.1f}" y="{y(divergence) - 5:.1f}" fill="{colour}">{short}</text>')
        number = list(colours).index(kind)
        out.append(f'<text x="{width - right - 160}" y="{top + 16 + 16 * number}" fill="{colour}">{kind}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--calibration", required=True, help="text for penstock calibrate")
    parser.add_argument("--text", required=True, help="text on which the stores are compared with the model")
    parser.add_argument("--bits", type=float, nargs="+", default=BUDGETS)
    parser.add_argument("--gguf", nargs="*", default=[], help="the same model, quantised by llama.cpp")
    parser.add_argument("--tokens-per-second", action="store_true", help="measure decoding of one sequence, too")
    parser.add_argument("--plot", help="SVG to write")
    parser.add_argument("--json", help="file for the rows")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = Bench(args).run(pathlib.Path(folder))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        title = f"Divergence of {pathlib.Path(args.model).name} from its own bf16 weights (nats)"
        pathlib.Path(args.plot).write_text(plot(rows, title), encoding="utf-8")


if __name__ == "__main__":
    main()
