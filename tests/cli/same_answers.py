#!/usr/bin/env python3
"""Proves that the output file, sorted by id, has the same bytes for every --memory, --batch-size and --threads.

--memory goes from the least accepted budget to all experts in DRAM.
"""
import argparse
import pathlib
import tempfile

import program


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--model", default=program.DEMO_MODEL)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=12)
    args = parser.parse_args()
    penstock = program.Penstock(args.penstock)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source = folder / "requests.jsonl"
        program.write_requests(source, args.requests, 1, args.max_tokens)
        expected = None
        plans = []
        for batch in (1, 3, 64):
            for threads in (1, 2):
                flags = ["--batch-size", batch, "--threads", threads]
                least = penstock.least_budget(args.model, source, *flags)
                for memory in (least, least + 3_000_000, least + 9_000_000, 512 << 20):
                    plans.append([*flags, "--memory", f"{memory}B"])
        for number, flags in enumerate(plans):
            output = folder / f"out{number}.jsonl"
            penstock.run_job(args.model, source, output, "--quiet", *flags)
            lines = program.sorted_by_id(output)
            if expected is None:
                expected = lines
                assert len(lines) == args.requests, len(lines)
            different = [i for i, (a, b) in enumerate(zip(expected, lines, strict=False)) if a != b]
            assert len(lines) == len(expected) and not different, f"{flags}: {len(different)} lines differ, {different[:3]}"
        print(f"{len(plans)} plans gave the same {len(expected)} lines")


if __name__ == "__main__":
    main()
