#!/usr/bin/env python3
"""Proves that peak resident memory (VmHWM) stays within --memory + 32 MiB, for every accepted budget and every schedule.

The runs use all parts: prefill, decoding, experts from disk, sampling, traces. An emulated device holds its data in the
same memory, so its runs stay within --memory + --gpu-memory + 32 MiB. Exits with 77 (skipped) if the disk has no room for
a model of --synthesise.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import program

ALLOWANCE = 32 << 20  # for the program itself and its libraries
SCHEDULES = ("auto", "on-demand", "zigzag", "klotski", "hybrid", "zero", "device cgopipe", "device zigzag", "device klotski",
             "device hybrid",
             "device zero")


def synthesise(preset, folder):
    """Writes a random model with tools/synth; needs a Python with numpy. Skips the test if the disk has no room."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import numpy"], capture_output=True, check=False).returncode == 0:
            break
    else:
        raise AssertionError("numpy is missing (Debian: python3-numpy)")
    made = subprocess.run([python, program.ROOT / "tools/synth/make_model.py", "--preset", preset, "--output", folder,
                           "--tokenizer-from", program.DEMO_MODEL], capture_output=True, text=True, check=False)
    if made.returncode != 0 and "are needed on the disk of" in made.stderr:
        print(made.stderr.strip())
        sys.exit(77)
    assert made.returncode == 0, made.stderr[-1000:]
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--model", default=program.DEMO_MODEL)
    parser.add_argument("--synthesise", metavar="PRESET", help="a random model of tools/synth instead of --model")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=12)
    parser.add_argument("--budgets", type=int, default=10, help="number of budgets between the least and --largest")
    parser.add_argument("--largest", type=int, default=34 << 20, help="bytes")
    args = parser.parse_args()
    penstock = program.Penstock(args.penstock)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if args.synthesise:
            args.model = synthesise(args.synthesise, folder / "model")
        # The schedule auto plans with what a probe has kept, because small budgets have no room to measure.
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        probe = penstock.run("probe", "--model", args.model, "--seconds", 1)
        assert probe.returncode == 0, probe.stderr
        source = folder / "requests.jsonl"
        program.write_requests(source, args.requests, 1, args.max_tokens)
        worst = -ALLOWANCE
        for step in range(args.budgets):
            share = step / max(1, args.budgets - 1)
            schedule = SCHEDULES[step % len(SCHEDULES)]
            flags = ["--schedule", schedule.removeprefix("device ")]
            device_memory = 0
            if schedule.startswith("device "):
                flags += ["--device", "emulated:link=4GB/s", "--micro-batch-size", 8]
                device_memory = int(penstock.least_device_memory(args.model, source, "--memory", f"{args.largest}B",
                                                                 *flags) * 1.2)
                flags += ["--gpu-memory", f"{device_memory}B"]
            if step % 2 == 1:
                flags += ["--trace", folder / f"{step}.json", "--trace-html", folder / f"{step}.html",
                          "--record-routing", folder / f"{step}.routing"]
            least = penstock.least_budget(args.model, source, *flags)
            budget = int(least * (max(args.largest, least) / least) ** share)
            output = folder / f"{step}.out.jsonl"
            code, peak, stderr = program.peak_rss(
                penstock.command("run", "--model", args.model, "--input", source, "--output", output, "--memory",
                                 f"{budget}B",
                                 *flags))
            assert code == 0, f"budget {budget}: exit {code}: {stderr[-1000:]}"
            over = peak - budget - device_memory
            print(f"{schedule:14} budget {(budget + device_memory) / 2**20:8.1f} MiB, peak {peak / 2**20:8.1f} MiB, over "
                  f"{over / 2**20:+7.1f} MiB",
                  flush=True)
            assert over <= ALLOWANCE, f"{over} bytes over a budget of {budget}"
            worst = max(worst, over)
        print(f"at most {worst / 2**20:.1f} MiB over the budget")


if __name__ == "__main__":
    main()
