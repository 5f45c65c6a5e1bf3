#!/usr/bin/env python3
"""Proves that `run` neither loses nor repeats a result.

The job is killed with SIGKILL at random times and continued with --resume each time. It ends with exactly one result
per request and the bytes of an uninterrupted run.
"""
import argparse
import json
import pathlib
import random
import subprocess
import tempfile
import time

import program


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--model", default=program.DEMO_MODEL)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    penstock = program.Penstock(args.penstock)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source = folder / "requests.jsonl"
        program.write_requests(source, args.requests, args.seed, args.max_tokens)
        flags = ["--memory", "40MiB", "--quiet", "--batch-size", 4]
        start = time.monotonic()
        penstock.run_job(args.model, source, folder / "whole.jsonl", *flags)
        whole_s = time.monotonic() - start
        expected = program.sorted_by_id(folder / "whole.jsonl")
        ids = sorted(f"r{number}" for number in range(args.requests))

        num_kills = num_rounds = num_partial = 0
        while num_kills < args.kills:
            output = folder / f"killed{num_rounds}.jsonl"
            num_rounds += 1
            while True:
                process = subprocess.Popen(penstock.command("run", "--model", args.model, "--input", source, "--output",
                                                            output,
                                                            "--resume", *flags),
                                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                try:
                    # Long enough for progress on a machine that takes long to begin, short enough for many kills.
                    _, stderr = process.communicate(timeout=rng.uniform(0, whole_s / 4))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    num_kills += 1
                    num_partial += output.exists() and output.stat().st_size > 0
                    continue
                assert process.returncode == 0, f"exit {process.returncode}: {stderr.decode()}"
                break
            lines = program.sorted_by_id(output)
            assert sorted(json.loads(line)["custom_id"] for line in lines) == ids, "results are lost or doubled"
            assert lines == expected, "a resumed run gave other bytes"
        print(f"{num_kills} kills in {num_rounds} jobs, {num_partial} of them with results on disk: every job complete and "
              f"equal")


if __name__ == "__main__":
    main()
