#!/usr/bin/env python3
"""Proves that shards of a job, joined by `merge`, have the bytes of a run of the whole job, in the order of the input.

One shard reads standard input, one takes --shard from a file of options, and one is stopped and resumed.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import program


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--model", default=program.DEMO_MODEL)
    parser.add_argument("--requests", type=int, default=17)
    parser.add_argument("--max-tokens", type=int, default=8)
    args = parser.parse_args()
    penstock = program.Penstock(args.penstock)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source = folder / "requests.jsonl"
        program.write_requests(source, args.requests, 1, args.max_tokens)
        whole, merged = folder / "whole.jsonl", folder / "merged.jsonl"
        flags = ["--quiet", "--max-tokens", args.max_tokens]
        penstock.run_job(args.model, source, whole, *flags)

        parts = [folder / f"part{number}.jsonl" for number in (1, 2, 3)]
        with open(source, "rb") as pipe:
            subprocess.run(penstock.command("run", "--model", args.model, "--input", "-", "--output", parts[0],
                                            "--shard", "1/3", *flags), stdin=pipe, check=True)
        options = folder / "options"
        options.write_text("shard = 2/3\n", encoding="utf-8")
        penstock.run_job(args.model, source, parts[1], "--options-file", options, *flags)
        penstock.run_job(args.model, source, parts[2], "--shard", "3/3", *flags)
        lines = parts[2].read_bytes().splitlines(keepends=True)
        parts[2].write_bytes(b"".join(lines[:2]) + lines[2][:20])  # as after a kill
        merge = ["merge", "--output", merged, *reversed(parts)]
        done = penstock.run(*merge)
        assert done.returncode == 4 and "shard 3 of 3 is not finished" in done.stderr, done.stderr
        assert not merged.exists(), "an output of an unfinished job"
        penstock.run_job(args.model, source, parts[2], "--shard", "3/3", "--resume", *flags)

        done = penstock.run(*merge)
        assert done.returncode == 0, done.stderr
        assert done.stderr == f"penstock: {args.requests} results of 3 shards are in {merged}, 0 failed\n", done.stderr
        with open(merged, "rb") as file:
            ids = [json.loads(line)["custom_id"] for line in file]
        assert ids == [f"r{number}" for number in range(args.requests)], ids
        assert program.sorted_by_id(merged) == program.sorted_by_id(whole), "other bytes than those of the whole job"
        print(f"3 shards gave the {args.requests} lines of the whole job")


if __name__ == "__main__":
    main()
