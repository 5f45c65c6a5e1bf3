#!/usr/bin/env python3
"""Proves that --prefix-dir survives kill -9: answers never change, no file is damaged, and nothing is left over.

Processes that write to one folder are killed at random times, also two at once. Then a job runs to its end: its answers
are those of a run without a folder, it refuses no file, and it loads what the killed ones have kept.
"""
import argparse
import json
import pathlib
import random
import subprocess
import tempfile
import time

import program


def write_questions(path, seed):
    """Writes questions on three texts of about 300 tokens, greedy and sampled."""
    rng = random.Random(seed)
    words = "the fox and a hare went over hills until they found one old house where nobody had lived for years".split()
    texts = [" ".join(rng.choice(words) for _ in range(250)) for _ in range(3)]
    with open(path, "w", encoding="utf-8") as file:
        for number in range(24):
            line = {"id": f"q{number}", "prompt": f"{texts[number % 3]} {words[number % len(words)]} {number}",
                    "max_tokens": 8 + number, "temperature": 0.8 * (number % 2)}
            file.write(json.dumps(line) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    penstock = program.Penstock(args.penstock)
    num_kills = num_jobs = num_loaded = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source, prefixes = folder / "questions.jsonl", folder / "prefixes"
        write_questions(source, args.seed)
        flags = ["--memory", "48MiB", "--quiet", "--batch-size", 4, "--threads", 1]
        start = time.monotonic()
        penstock.run_job(program.DEMO_MODEL, source, folder / "cold.jsonl", *flags)
        whole_s = time.monotonic() - start
        expected = program.sorted_by_id(folder / "cold.jsonl")
        flags += ["--prefix-dir", prefixes, "--prefix-dir-size"]
        num_last = 0  # whole jobs after all kills
        while num_last < 2:
            # In a small folder, files also make room for others.
            is_over = num_kills >= args.kills  # then whole jobs follow, with room for all files
            flags_here = [*flags, "64MiB" if is_over else rng.choice(("1MiB", "64MiB"))]
            processes = [subprocess.Popen(
                penstock.command("run", "--model", program.DEMO_MODEL, "--input", source, "--output",
                                 folder / f"killed{num_kills}-{number}.jsonl", *flags_here),
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for number in range(0 if is_over else rng.choice((1, 2)))]
            time.sleep(0 if is_over else rng.uniform(0, 1.2 * whole_s))
            for process in processes:
                process.kill()
                _, stderr = process.communicate()
                assert process.returncode in (0, -9) and not stderr, stderr
                num_kills += 1
            if not is_over and rng.random() < 0.7:
                continue
            output, stats = folder / f"out{num_jobs}.jsonl", folder / "stats.json"
            penstock.run_job(program.DEMO_MODEL, source, output, *flags_here, "--stats", stats)
            assert program.sorted_by_id(output) == expected, "other answers than without a folder"
            counts = json.loads(stats.read_text())["prefix_dir"]
            assert counts["refused_files"] == 0, counts
            num_loaded += counts["loaded_prompt_tokens"]
            assert not list(prefixes.rglob("*.tmp")), "a file is left over"
            num_jobs += 1
            num_last += is_over
    assert num_loaded > 0
    print(f"{num_kills} kills, {num_jobs} whole jobs with the right answers, which loaded {num_loaded} prompt tokens")


if __name__ == "__main__":
    main()
