#!/usr/bin/env python3
"""Proves that requests that are costly to hold, to parse or to answer stay within --memory + 32 MiB, too.

Each kind of request runs with the least budget that is accepted for it. Kinds with long answers get half as much again:
with the least budget most time would go into reading experts, and what answers hold is the same.
"""
import argparse
import json
import pathlib
import tempfile

import program

ALLOWANCE = 32 << 20
LONG_ANSWERS = ("many choices", "log-probabilities", "log-probabilities of several answers")
GOOD = '{"prompt": "hi", "max_tokens": 2}'


def kinds():
    """Yields name, [(line, number of times)], flags."""
    def line(**fields):
        return json.dumps(fields, separators=(",", ":"))
    yield "waiting turns", [(line(turns=["Hi there.", "x " * 15_000], max_tokens=4), 130)], ("--batch-size", 64)
    yield "turns that cannot fit", [(line(turns=["Hi there.", "x" * 1_000_000], max_tokens=4), 130)], ("--batch-size", 64)
    yield "a list of a million ids", [(line(prompt=[1] * 1_000_000), 1), (GOOD, 1)], ()
    yield "many keys", [(line(prompt="hi", max_tokens=2, x={f"k{i}": 1 for i in range(100_000)}), 1)], ()
    yield "many lists", [('{"prompt":"hi","max_tokens":2,"x":[' + ",".join(["[]"] * 300_000) + "]}", 1)], ()
    yield "a text of 4 MB", [(line(prompt="some words here " * 250_000), 1), (GOOD, 1)], ()
    yield "a text of one letter", [(line(prompt="a" * 100_000), 1), (GOOD, 1)], ()
    yield "a line that is too long", [('{"prompt":"' + "x" * 17_000_000 + '"}', 1), (GOOD, 1)], ()
    yield "many requests", [(GOOD.replace("2", "0"), 200_000)], ()  # each is refused
    yield "many choices", [(line(prompt="some words here " * 100, logprobs=20, choices=[f" word {i} of many" for i in
                                                                                        range(200)]), 8)], ()
    yield "log-probabilities", [(line(messages=[{"role": "user", "content": "Tell me"}], max_tokens=1500, ignore_eos=True,
                                      logprobs=True, top_logprobs=20), 2)], ("--batch-size", 2)
    yield "log-probabilities of several answers", [(line(prompt="Tell me", max_tokens=400, ignore_eos=True, logprobs=20,
                                                         n=8), 4)], ("--batch-size", 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    penstock = program.Penstock(parser.parse_args().penstock)
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "requests.jsonl"
        for number, (name, lines, flags) in enumerate(kinds()):
            num_requests = 0
            with open(source, "w", encoding="utf-8") as file:
                for line, count in lines:
                    num_requests += count
                    for _ in range(count):
                        file.write(line + "\n")
            budget = penstock.least_budget(program.DEMO_MODEL, source, *flags)
            if name in LONG_ANSWERS:
                budget += budget // 2
            output = pathlib.Path(folder) / f"{number}.jsonl"
            code, peak, stderr = program.peak_rss(penstock.command(
                "run", "--model", program.DEMO_MODEL, "--input", source, "--output", output, "--memory", f"{budget}B",
                *flags))
            assert code in (0, 8), f"{name}: exit {code}: {stderr[-1000:]}"
            with open(output, "rb") as file:
                num_results = sum(1 for _ in file)
            assert num_results == num_requests, f"{name}: {num_requests} requests, {num_results} results"
            print(f"{name}: budget {budget / 2**20:.1f} MiB, peak {peak / 2**20:.1f} MiB, {(peak - budget) / 2**20:+.1f} "
                  f"MiB", flush=True)
            assert peak - budget <= ALLOWANCE, f"{name}: {peak - budget} bytes over a budget of {budget}"


if __name__ == "__main__":
    main()
