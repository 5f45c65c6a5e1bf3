#!/usr/bin/env python3
"""Compares plans with the runs of their policy files: tokens per second, and experts in memory.

Each budget is the least one for the store, and a share of the store's size. `plan --output` writes a policy file for a job
of random tokens; `run --policy` computes this job. Each round plans anew, because the speed of a shared disk changes within
minutes. The median of the rounds' ratios counts. A pause comes first: for some seconds the system has the memory at hand
that the run before has freed, and touches it many times as fast as other memory. Plans do not count on this.
"""

import argparse
import itertools
import json
import pathlib
import re
import statistics
import sys
import tempfile
import time

import auto_policy

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import penstock_program  # noqa: E402

SHARES = [0.2, 0.4, 0.6, 0.8, 1.0]


def least_budget(penstock, model, workload):
    refusal = penstock.finish("plan", "--model", model, "--workload", workload, "--memory", "1KiB").stderr
    return int(re.search(r"least budget is (\d+) bytes", refusal).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=penstock_program.DEFAULT)
    parser.add_argument("--model", required=True, action="append", help="a folder or a store; may be given several times")
    parser.add_argument("--job", default="64,64,32", help="requests, prompt tokens, new tokens (%(default)s)")
    parser.add_argument("--share", type=float, action="append", help=f"may be given several times ({SHARES})")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=20, metavar="SECONDS", help="before each round (%(default)s)")
    args = parser.parse_args()
    penstock = penstock_program.Program(args.penstock)
    num_requests, prompt_tokens, new_tokens = map(int, args.job.split(","))
    work = auto_policy.requests(num_requests, prompt_tokens, new_tokens)
    workload = f"prompt={prompt_tokens},gen={new_tokens},requests={num_requests}"
    print("| model | share | policy | planned tokens/s | run | run / planned | experts in memory: planned | run |\n"
          "| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        policy = pathlib.Path(folder) / "policy.json"
        for model, share in itertools.product(args.model, args.share or SHARES):
            budget = least_budget(penstock, model, workload) + int(auto_policy.size_of(model) * share)
            planned, rates, residents = [], [], set()
            for _ in range(args.rounds):
                time.sleep(args.pause)
                plan = penstock.json("plan", "--model", model, "--workload", workload, "--memory", f"{budget}B",
                                     "--output", policy)["choices"][0]
                run = penstock.job(model, work, "--policy", policy)
                planned.append(plan["predicted"]["generation_tokens_per_second"])
                rates.append(run["tokens_per_second"]["generation"])
                residents.add((f"{plan['memory']['pinned_experts']}/{plan['memory']['expert_slots']}",
                               f"{run['policy']['pinned_experts']}/{run['policy']['expert_slots']}"))
            ratios = sorted(rate / plan for rate, plan in zip(rates, planned, strict=True))
            chosen = json.loads(policy.read_text())
            print(f"| {pathlib.Path(model).name} | {share:.0%} | {chosen['schedule']}, N={chosen['batch_size']} | "
                  f"{statistics.median(planned):.1f} | {statistics.median(rates):.1f} | {statistics.median(ratios):.2f} "
                  f"({ratios[0]:.2f}-{ratios[-1]:.2f}) | {', '.join(p for p, _ in sorted(residents))} | "
                  f"{', '.join(r for _, r in sorted(residents))} |", flush=True)


if __name__ == "__main__":
    main()
