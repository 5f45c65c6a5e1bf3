#!/usr/bin/env python3
"""Compares the planner's choice with the best policy of every other schedule, each simulated whole: 40 cases of a
model, a machine and a job. Prints a table for docs/decisions/planning.md. Takes about twenty minutes on two cores."""
import argparse
import concurrent.futures
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import penstock_program  # noqa: E402

CONFIGS = penstock_program.ROOT / "tests/data/configs"
# Config, weights, machine.
SETTINGS = [("mixtral-8x7b", "hqq4", "rtx4090:dram=64GiB"),
            ("mixtral-8x7b", "bf16", "t4"),
            ("mixtral-8x7b", "hqq4", "none:dram=16GiB"),
            ("mixtral-8x22b", "hqq4", "l4:dram=128GiB"),
            ("mixtral-8x22b", "bf16", "rtx3090:dram=192GiB"),
            ("qwen3-30b-a3b", "int8", "l4:dram=64GiB"),
            ("qwen3-30b-a3b", "bf16", "t4:dram=48GiB"),
            ("qwen3-30b-a3b", "int8", "none:dram=16GiB"),
            ("qwen3-235b-a22b", "hqq4", "rtx4090:dram=96GiB"),
            ("phi-3.5-moe", "int8", "rtx4090:dram=32GiB")]
JOBS = ["prompt=256,gen=256,requests=1", "prompt=256,gen=128,requests=8", "prompt=1024,gen=32,requests=64",
        "mtbench:requests=504"]


def compare(penstock, setting, job):
    """Returns the choices of a case, the planner's first: names, predicted and simulated tokens per second."""
    config, weights, hardware = setting
    flags = ("--config", CONFIGS / f"{config}.json", "--weights", weights, "--hardware", hardware, "--workload", job)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "policy.json"
        for choice in penstock.json("plan", *flags)["choices"]:
            path.write_text(json.dumps(choice["policy"]))
            run = penstock.json("simulate", *flags, "--policy", path, "--device", choice["device"], "--schedule",
                                choice["policy"]["schedule"])["schedules"][0]
            rows.append((choice["policy"]["schedule"], choice["device"],
                         choice["predicted"]["generation_tokens_per_second"], run["tokens_per_second"]["generation"]))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", type=pathlib.Path, default=penstock_program.DEFAULT)
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    penstock = penstock_program.Program(args.penstock, args.verbose)
    print("| model, weights, machine | job | choice | tokens/s | predicted | best of the others | tokens/s | "
          "choice / best |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    quotients = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        cases = [(setting, job, pool.submit(compare, penstock, setting, job)) for setting in SETTINGS for job in JOBS]
        for setting, job, future in cases:
            choice, *others = future.result()
            best = max(others, key=lambda row: row[3])
            quotients.append(choice[3] / best[3])
            print(f"| {', '.join(setting)} | {job} | {choice[0]}, {choice[1]} | {choice[3]:.2f} | "
                  f"{choice[2] / choice[3] - 1:+.1%} | {best[0]}, {best[1]} | {best[3]:.2f} | {quotients[-1]:.3f} |",
                  flush=True)
    print(f"\n{sum(q >= 0.98 for q in quotients)} of {len(quotients)} choices are at least 0.98 of the best; "
          f"the least is {min(quotients):.3f}.")


if __name__ == "__main__":
    main()
