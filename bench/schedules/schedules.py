#!/usr/bin/env python3
"""Times schedules against each other, in alternation, on a packed model that does not fit into memory.

  ablation  zero, zigzag and Klotski's ideas added one after another, within the same budget and batch
  device    CGOPipe and the schedules that MoE-Lightning compares it with, on the emulated device: its link a quarter as
            fast as this machine copies, its memory a fifth of the model, one thread each for host and device
  hybrid    HybriMoE's schedule and the schedules that it is compared with, for one sequence and for prompts of 128 tokens:
            on the emulated device with 25, 50 and 75 % of the experts (link and threads as for `device`), and on the CPU
            alone with the same shares in DRAM
  predict   twenty settings of schedule, budget and batch, compared with the predictions from one probed Hardware; each
            round begins with a probe, and medians of the rounds are compared
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import penstock_program  # noqa: E402

ABLATION = {
    "zero": {"schedule": "zero"},
    "zigzag": {"schedule": "zigzag"},
    "+ only hot experts": {"schedule": "klotski", "reorder": False},
    "+ reorder (klotski)": {"schedule": "klotski"},
    "klotski, nothing ahead": {"schedule": "klotski", "hot_prefetch": False},
}
# KTransformers and llama.cpp place whole layers and never move anything.
FIXED = {"schedule": "hybrid", "hybrid_rule": "fixed", "eviction": "fifo", "predictor": "none"}
HYBRID = {
    "fixed mapping": FIXED,
    "fixed, as many of each layer": {**FIXED, "eviction": "static", "streaming_slots": 1},
    "fixed": {**FIXED, "eviction": "static"},
    "on-demand, LRU": {"schedule": "on-demand", "eviction": "lru"},
    "Fiddler's threshold": {**FIXED, "hybrid_rule": "threshold", "eviction": "static"},
    "two-ended list": {"schedule": "hybrid", "hybrid_rule": "two-ended"},
    "timelines": {"schedule": "hybrid", "hybrid_rule": "timelines"},
    "hybrid": {"schedule": "hybrid", "predictor": "none"},
    "hybrid, LRU": {"schedule": "hybrid", "eviction": "lru"},
    "hybrid, gate": {"schedule": "hybrid", "predictor": "gate"},
    "hybrid, history": {"schedule": "hybrid", "predictor": "history"},
}
# Without a device, all rules are the same.
HYBRID_CPU = ("fixed", "on-demand, LRU", "hybrid", "hybrid, LRU", "hybrid, gate", "hybrid, history")
DEVICE = ("cgopipe", "fastdecode", "zigzag-cpu-attention", "zigzag")
# (schedule, share of the model, sequences)
PREDICTED = [(schedule, share, batch) for share in (0.5, 0.25) for schedule, batch in
             (("klotski", 1), ("klotski", 16), ("klotski", 64), ("klotski", 128), ("on-demand", 1), ("on-demand", 32),
              ("zigzag", 64), ("zigzag", 128), ("zero", 8), ("zero", 32))]
BELOW_LIMIT = 64 << 20  # budgets stay this much below a share of the model, as beside other engines in a cgroup


class Bench:
    def __init__(self, args):
        self.args = args
        self.folder = tempfile.TemporaryDirectory()
        self.penstock = penstock_program.Program(args.penstock)
        inspected = self.penstock.json("inspect", "--model", args.model)
        self.slot_bytes = inspected["bytes_per_expert"]
        self.num_experts = inspected["expert_bytes"] // self.slot_bytes
        self.model_bytes = sum(p.stat().st_size for p in pathlib.Path(args.model).iterdir())

    def command(self, policy, *flags):
        path = pathlib.Path(self.folder.name) / "policy.json"
        path.write_text(json.dumps(policy))
        return "bench", "--model", self.args.model, "--policy", path, "--quiet", *flags

    def lines(self, policy, *flags):
        """Returns the JSON objects of one run of penstock bench."""
        return self.penstock.json_lines(*self.command(policy, *flags))

    def refusal(self, policy, *flags):
        """Returns the message with which penstock bench refuses these arguments."""
        return self.penstock.finish(*self.command(policy, *flags)).stderr

    def decode(self, policy, batch, *flags):
        """Returns the JSON objects of one measurement."""
        return self.lines(policy, "--prefill", 0, "--decode", batch, "--empty-context", *flags)

    def budget(self, share):
        return f"{int(self.model_bytes * share) - BELOW_LIMIT}B"


def lanes_text(lanes):
    return ", ".join(f"{name} {share:.0%}" for name, share in lanes.items())


def by_turns(args, names, measure):
    """Prints the medians of all rounds and their ratios to the first row; returns the records."""
    records = []
    for round_idx in range(args.rounds):
        for name in names:
            record = {"name": name, "round": round_idx, **measure(name)}
            records.append(record)
            print(f"  round {round_idx + 1}: {name}: {record['tokens_per_second']:.2f} tokens/s", file=sys.stderr,
                  flush=True)
    medians = {name: statistics.median(r["tokens_per_second"] for r in records if r["name"] == name) for name in names}
    for name in names:
        last = [r for r in records if r["name"] == name][-1]
        print(f"| {name} | {medians[name]:.1f} | {medians[name] / medians[names[0]]:.2f} | {lanes_text(last['lanes'])} |")
    return records


def ablation(bench):
    args = bench.args
    records = []
    for share in (0.5, 0.25):
        print(f"\n{share:.0%}: | schedule | tokens/s | of the first | lanes busy |")
        records += by_turns(args, list(ABLATION), lambda name, share=share: {
            "share": share, **bench.decode(ABLATION[name], 64, "--context", 128, "--micro-batch-size", 16, "--kv-dtype",
                                           "int8",
                                           "--memory", bench.budget(share), "--steps", args.steps)[0]})
    return records


def link_rate(bench):
    """Returns a quarter of the bytes/s that one thread copies."""
    dram = bench.penstock.json("probe", "--threads", 1, "--disk", "none", "--quiet")["tiers"][0]
    copy = dram["rates"][0]["copy_bytes_per_second"]
    print(f"copies {copy / 1e9:.2f} GB/s; link {copy / 4e9:.2f} GB/s")
    return int(copy / 4)


def device(bench):
    args = bench.args
    link = link_rate(bench)
    print(f"device memory {bench.model_bytes // 5 / 1e6:.0f} MB")
    print("| schedule | tokens/s | of the first | lanes busy |")
    return by_turns(args, DEVICE, lambda name: bench.decode(
        {"schedule": name}, args.sequences, "--context", args.context, "--context-length", args.context + args.steps + 2,
        "--micro-batch-size", args.micro_batch_size, "--memory", args.memory, "--threads", 1, "--prefill-chunk", 64,
        "--device", f"emulated:link={link}B/s,threads=1", "--gpu-memory", f"{bench.model_bytes // 5}B", "--steps",
        args.steps)[0])


def hybrid(bench):
    args = bench.args
    num_experts = bench.num_experts
    link = args.link or link_rate(bench)
    common = ("--prefill", 128, "--decode", args.decode, "--context", 64, "--context-length", 512, "--prefill-chunk", 128,
              "--batch-size", args.decode, "--micro-batch-size", args.decode, "--steps", args.steps, "--repetitions", 3)
    records = []
    for form, names in (("device", [name for name in HYBRID if name != "fixed"]), ("cpu", HYBRID_CPU)):
        on = ("--threads", 1, "--device", f"emulated:link={link}B/s,threads=1") if form == "device" else ()
        for share in (0.25, 0.5, 0.75):
            room = int(share * num_experts) * bench.slot_bytes
            measured = {name: [] for name in names}
            for _ in range(args.rounds):
                for name in names:
                    if form == "device":
                        budget = ("--memory", args.memory, "--gpu-memory",
                                  f"{least(bench, 'device memory', HYBRID[name], common, on) + room}B")
                    else:
                        budget = ("--memory", f"{least(bench, 'budget', HYBRID[name], common, on) + room}B")
                    lines = bench.lines(HYBRID[name], *common, *on, *budget)
                    rates = {line["kind"]: line["tokens_per_second"] for line in lines}
                    measured[name].append(rates)
                    records.append({"form": form, "share": share, "name": name, "lines": lines})
                    print(f"  {form} {share:.0%} {name}: {rates}", file=sys.stderr, flush=True)
            print(f"\n{form}, {share:.0%} of {num_experts} experts: | schedule | decode | of the first | prefill | of the "
                  f"first |")
            medians = {name: {kind: statistics.median(r[kind] for r in rounds) for kind in rounds[0]}
                       for name, rounds in measured.items()}
            for name, rates in medians.items():
                first = medians[names[0]]
                print(f"| {name} | {rates['decode']:.2f} | {rates['decode'] / first['decode']:.2f} | "
                      f"{rates['prefill']:.1f} | {rates['prefill'] / first['prefill']:.2f} |")
    return records


def least(bench, what, policy, common, on):
    """Returns the bytes needed beside the experts: the engine's least budget minus two of its slots."""
    small = ("--gpu-memory", "1KiB", "--memory", bench.args.memory) if what == "device memory" else ("--memory", "1KiB")
    message = bench.refusal(policy, *common, *on, *small)
    return int(re.search(rf"the least {what} is (\d+) bytes", message).group(1)) - 2 * bench.slot_bytes


def predict(bench):
    args = bench.args
    records = []
    for round_idx in range(args.rounds):
        hardware = args.hardware or str(pathlib.Path(bench.folder.name) / "hardware.json")
        if not args.hardware:
            print(bench.penstock.output("probe", "--model", args.model, "--output", hardware, "--quiet"), file=sys.stderr)
        for idx, (schedule, share, batch) in enumerate(PREDICTED):
            routing = pathlib.Path(bench.folder.name) / f"routing{round_idx}-{idx}"
            lines = bench.decode({"schedule": schedule}, batch, "--context", 64, "--kv-dtype", "int8", "--memory",
                                 bench.budget(share),
                                 "--steps", args.steps, "--hardware", hardware, "--record-routing", routing)
            records.append({"round": round_idx, "schedule": schedule, "share": share,
                            **next(line for line in lines if line["kind"] == "prediction")})
            print(f"round {round_idx + 1}: {schedule} {share:.0%} {batch}: {records[-1]['error']:+.1%}", file=sys.stderr,
                  flush=True)
    print("| schedule | budget | sequences | measured ms | predicted ms | error |")
    errors = []
    for idx, (schedule, share, batch) in enumerate(PREDICTED):
        of_setting = records[idx::len(PREDICTED)]
        measured, predicted = (statistics.median(record[key] for record in of_setting) for key in (
            "seconds", "predicted_seconds"))
        errors.append(predicted / measured - 1)
        print(f"| {schedule} | {share:.0%} | {batch} | {measured * 1e3:.0f} | {predicted * 1e3:.0f} | {errors[-1]:+.1%} |")
    errors = [abs(error) for error in errors]
    print(f"median error {statistics.median(errors):.1%}, largest {max(errors):.1%}, "
          f"{sum(error <= 0.15 for error in errors)} of {len(errors)} within 15 %")
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ablation", "device", "hybrid", "predict"))
    parser.add_argument("--penstock", default=penstock_program.DEFAULT)
    parser.add_argument("--model", required=True, help="a packed store")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--memory", default="18GiB", help="device: the host's budget")
    parser.add_argument("--sequences", type=int, default=384, help="device: sequences")
    parser.add_argument("--micro-batch-size", type=int, default=64, help="device: sequences of a micro-batch")
    parser.add_argument("--context", type=int, default=384, help="device: tokens that each sequence has read")
    parser.add_argument("--decode", type=int, default=1, help="hybrid: sequences")
    parser.add_argument("--link", type=int, help="hybrid: bytes/s of the link; default: a quarter of one thread's copy rate")
    parser.add_argument("--hardware", help="predict: JSON of an earlier probe")
    parser.add_argument("--output", help="JSON of all measurements")
    args = parser.parse_args()
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    print(f"{cpu.group(1) if cpu else 'unknown processor'}, {os.cpu_count()} CPUs, {pathlib.Path(args.model).name}")
    records = {"ablation": ablation, "device": device, "hybrid": hybrid, "predict": predict}[args.what](Bench(args))
    if args.output:
        pathlib.Path(args.output).write_text("".join(json.dumps(record) + "\n" for record in records))


if __name__ == "__main__":
    main()
