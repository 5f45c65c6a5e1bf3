#!/usr/bin/env python3
"""Runs kernels_gemm_bench and prints a Markdown table: a line for each format of weights and each instruction set.

    python3 bench/kernels/gemm_table.py --isas avx2,avx512bf16 [--bench build/release/bench/kernels_gemm_bench]

One row of x is given as GB/s of weights and as a share of what memory delivers to one thread. More rows are given as
shares of the arithmetic peak. Both limits are measured right before and after each cell.
"""

import argparse
import json
import re
import subprocess
import sys

SHAPE = "2048x5632"
MANY_ROWS = (16, 64, 256)


def measure(bench, isa, seconds):
    """Returns {kind: {rows: counters}} of one thread; a kind is the formats of rows and weights, as "int8xq4_k"."""
    rows = "|".join(map(str, (1, *MANY_ROWS)))
    pattern = f"^{isa}/(int8x|f32xbf16|bf16xbf16).*/{SHAPE}/M:({rows})/threads:1/"
    output = subprocess.run([bench, f"--benchmark_filter={pattern}", f"--benchmark_min_time={seconds}",
                             "--benchmark_format=json"], check=True, stdout=subprocess.PIPE, text=True).stdout
    cells = {}
    for cell in json.loads(output)["benchmarks"]:
        _, kind, _, num_rows, *_ = cell["name"].split("/")
        cells.setdefault(kind, {})[int(re.sub("M:", "", num_rows))] = cell
    return cells


def share(cell, counter):
    return f"{cell[counter]:.0%}".replace("%", " %") if counter in cell else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", default="build/release/bench/kernels_gemm_bench")
    parser.add_argument("--isas", required=True, help="instruction sets, separated by commas")
    parser.add_argument("--seconds", type=float, default=0.05, help="of each cell")
    args = parser.parse_args()
    print("| instructions | rows x weights | 1 row, GB/s | share of memory |", end="")
    print("".join(f" {rows} rows, share of peak |" for rows in MANY_ROWS))
    print("| --- | --- | --- | --- |" + " --- |" * len(MANY_ROWS))
    for isa in args.isas.split(","):
        cells = measure(args.bench, isa, args.seconds)
        if not cells:
            sys.exit(f"this machine has no instructions '{isa}', or the benchmark does not know them")
        for kind, by_rows in cells.items():
            shares = "".join(f" {share(by_rows[rows], 'of_peak')} |" for rows in MANY_ROWS)
            print(f"| {isa} | {kind.replace('x', ' x ', 1)} | {by_rows[1]['GB/s']:.1f} |"
                  f" {share(by_rows[1], 'of_read')} |{shares}", flush=True)


if __name__ == "__main__":
    main()
