#!/usr/bin/env python3
"""Runs the benchmarks of the server at a small size. They must count every request, and print what they promise.

The GGUF file that they measure must have the tokens of the folder whose vocabulary it copies. A server of Penstock stands in
for llama.cpp's, whose flags it takes.

Usage: benches.py --penstock PROGRAM
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import environment

environment.enter()

import service  # noqa: E402

BENCH = environment.ROOT / "bench" / "server"
MAKE_MODEL = environment.ROOT / "tools" / "synth" / "make_model.py"
DIMS = {"model-dim": 64, "expert-dim": 64, "num-layers": 2, "num-heads": 4, "num-kv-heads": 2, "num-experts": 4,
        "num-topk": 2, "vocab-size": 4096}
TEXTS = ("Once upon a time there was an old king.", "  two  spaces\n\nand lines\t", "naïve café, 1234567 — 東京 🦊",
         "don't <s> </s> [PAD1]")

# Takes llama.cpp's flags, and becomes a server of Penstock.
STAND_IN = """#!{python}
import os, sys
flags = dict(zip(sys.argv[1:], sys.argv[2:]))
os.execv("{penstock}", ["{penstock}", "serve", "--memory", "64MiB", "--batch-size", flags["--parallel"],
                        *(word for name in ("--model", "--threads", "--host", "--port") for word in (name, flags[name]))])
"""


def output_of(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          timeout=service.program.HANG_S)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


def tokens_of(penstock, model, text):
    return output_of(penstock, "tokenize", "--model", model, "--text", text)


def check_vocabulary(penstock, gguf, report):
    with report.check("a GGUF file of make_model.py has the folder's tokens"):
        for text in TEXTS:
            found, wanted = tokens_of(penstock, gguf, text), tokens_of(penstock, service.MODEL, text)
            assert found == wanted, (text, found, wanted)


def check_load(penstock, report):
    with report.check("load.py counts all requests, those of clients that leave, too"):
        found = json.loads(output_of(
            sys.executable, BENCH / "load.py", "--penstock", penstock, "--model", service.MODEL, "--memory", "64MiB",
            "--clients", 12, "--places", 4, "--tokens", 8, "--leaving", 0.4))
        assert found["statuses"] == {"200": 12}, found
        assert set(found["ends"]) == {"complete", "left"} and sum(found["ends"].values()) == 12, found
        assert found["ratio"] > 0 and found["ratio_to_cut_answers"] > 0 and found["peak_mib"] > 1, found


def check_peers(penstock, gguf, folder, report):
    with report.check("peers.py compares two servers"):
        server = folder / "llama-server"
        server.write_text(STAND_IN.format(python=sys.executable, penstock=penstock), encoding="utf-8")
        server.chmod(0o755)
        printed = output_of(
            sys.executable, BENCH / "peers.py", "--penstock", penstock, "--llama-server", server, "--gguf", gguf,
            "--clients", "1,3", "--rounds", 2, "--asks", 2, "--words", 5, "--tokens", 4)
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines()[2:]]
        names = [[clients, what] for clients in "13" for what in ("tokens/s", "first token, s")]
        assert [row[:2] for row in rows] == names, rows
        for row in rows:
            assert all(re.fullmatch(r"[\d.]+ \([\d.]+-[\d.]+\)", cell) for cell in row[2:4]) and float(row[4]) > 0, row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", type=pathlib.Path, required=True)
    args = parser.parse_args()
    penstock = args.penstock.resolve()
    report = service.Report()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        gguf = folder / "small.gguf"
        output_of(sys.executable, MAKE_MODEL, "--family", "mixtral", "--tokenizer-from", service.MODEL,
                  "--gguf", "q8_0", gguf, *(word for dim, value in DIMS.items() for word in (f"--{dim}", value)))
        check_vocabulary(penstock, gguf, report)
        check_load(penstock, report)
        check_peers(penstock, gguf, folder, report)
    report.end()


if __name__ == "__main__":
    main()
