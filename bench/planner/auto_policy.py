#!/usr/bin/env python3
"""Compares run --policy auto with policies given by hand: tokens per second of whole jobs, measured and predicted.

Each setting is a packed store, a budget as a share of its size, and a job of random tokens. The twelve policies by hand
combine schedules, batches and chunks of prompts; each is measured once. The best of several similar ones may only have been
lucky, so it is measured again, in alternation with the planner's.
"""

import argparse
import itertools
import json
import pathlib
import random
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import penstock_program  # noqa: E402

# Each job: share of the store, requests, prompt tokens, new tokens.
JOBS = ["0.5,32,64,16", "0.25,32,64,16", "0.5,8,64,12"]
BY_HAND = list(itertools.product(("klotski", "hybrid", "zigzag"), (1.0, 0.25), (256, 2048)))  # share of the requests at once


def requests(count, prompt_tokens, new_tokens):
    numbers = random.Random(1)
    return [{"prompt": [numbers.randrange(3, 4000) for _ in range(prompt_tokens)], "max_tokens": new_tokens,
             "ignore_eos": True} for _ in range(count)]


def measure(penstock, model, budget, job, *flags):
    """Generated tokens per second of computing, and the statistics; 0 for a policy that does not fit into the budget."""
    numbers = penstock.job(model, job, "--memory", f"{budget}B", "--kv-dtype", "int8", *flags)
    return (numbers["tokens_per_second"]["generation"], numbers) if numbers else (0, None)


def size_of(model):
    return sum(file.stat().st_size for file in pathlib.Path(model).iterdir())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=penstock_program.DEFAULT)
    parser.add_argument("--model", required=True, action="append", help="a packed store; may be given several times")
    parser.add_argument("--job", action="append", help="share of the store, requests, prompt tokens, new tokens; may be "
                        f"given several times ({' '.join(JOBS)})")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", help="JSON of all measurements")
    args = parser.parse_args()
    records = []
    print("| store | budget | job | auto | predicted | best by hand | auto / best | error |\n"
          "| --- | --- | --- | --- | --- | --- | --- | --- |")
    penstock = penstock_program.Program(args.penstock)
    for model, job in itertools.product(args.model, args.job or JOBS):
        share, (num_requests, prompt_tokens, new_tokens) = float(job.split(",")[0]), map(int, job.split(",")[1:])
        budget = int(size_of(model) * share)
        work = requests(num_requests, prompt_tokens, new_tokens)
        measure(penstock, model, budget, work, "--policy", "auto")  # also measures the machine if nobody has yet
        by_hand, flags = {}, {}
        for schedule, batch_share, chunk in BY_HAND:
            batch = max(1, int(num_requests * batch_share))
            name = f"{schedule} N={batch} chunk={chunk}"
            flags[name] = ["--schedule", schedule, "--batch-size", batch, "--prefill-chunk", chunk]
            by_hand[name] = measure(penstock, model, budget, work, *flags[name])[0]
        best = max(by_hand, key=by_hand.get)
        auto, again = [], []
        for _ in range(args.rounds):
            auto.append(measure(penstock, model, budget, work, "--policy", "auto"))
            again.append(measure(penstock, model, budget, work, *flags[best])[0])
        auto_rate, best_rate = statistics.median(rate for rate, _ in auto), statistics.median(again)
        predicted = auto[0][1]["tokens_per_second"]["predicted_generation"]
        policy = auto[0][1]["policy"]
        records.append({"model": pathlib.Path(model).name, "share": share, "requests": num_requests,
                        "prompt": prompt_tokens, "new": new_tokens, "auto": [rate for rate, _ in auto],
                        "predicted": predicted, "by_hand": by_hand, "best_again": again,
                        "policy": {"schedule": auto[0][1]["schedule"], **policy}})
        print(f"| {pathlib.Path(model).name} | {share:.0%} | {num_requests} x ({prompt_tokens} + {new_tokens}) | "
              f"{auto_rate:.2f} ({auto[0][1]['schedule']}, N={policy['batch_size']}, "
              f"chunk={policy['prefill_chunk']}) | {predicted:.2f} | {best_rate:.2f} ({best}) | "
              f"{auto_rate / best_rate:.2f} | {predicted / auto_rate - 1:+.0%} |", flush=True)
    if args.output:
        pathlib.Path(args.output).write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
