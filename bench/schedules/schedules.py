#!/usr/bin/env python3
"""Times schedules against each other, by turns, on a packed model that does not fit.

  ablation  zero, zigzag and Klotski's ideas one after the other, within the same budget and batch
  device    CGOPipe and the schedules that MoE-Lightning compares it with, on the emulated device: its link a quarter as
            fast as this machine copies, its memory a fifth of the model, one thread each for host and device
  predict   twenty settings of schedule, budget and batch, beside what one probed Hardware predicts for them; each round
            begins with a probe, and medians of the rounds are compared
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ABLATION = {
    "zero": {"schedule": "zero"},
    "zigzag": {"schedule": "zigzag"},
    "+ only hot experts": {"schedule": "klotski", "reorder": False},
    "+ reorder (klotski)": {"schedule": "klotski"},
    "klotski, nothing ahead": {"schedule": "klotski", "hot_prefetch": False},
}
DEVICE = ("cgopipe", "fastdecode", "zigzag-cpu-attention", "zigzag")
# (schedule, share of the model, sequences)
PREDICTED = [(schedule, share, batch) for share in (0.5, 0.25) for schedule, batch in
             (("klotski", 1), ("klotski", 16), ("klotski", 64), ("klotski", 128), ("on-demand", 1), ("on-demand", 32),
              ("zigzag", 64), ("zigzag", 128), ("zero", 8), ("zero", 32))]
BELOW_LIMIT = 64 << 20  # what budgets stay below a share of the model, as beside other engines in a cgroup


class Bench:
    def __init__(self, args):
        self.args = args
        self.folder = tempfile.TemporaryDirectory()
        self.model_bytes = sum(p.stat().st_size for p in pathlib.Path(args.model).iterdir())

    def penstock(self, *command):
        """Standard output."""
        done = subprocess.run([self.args.penstock, *map(str, command), "--quiet"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"penstock {' '.join(map(str, command))}: exit {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    def decode(self, policy, batch, *flags):
        """The JSON objects of one measurement."""
        path = pathlib.Path(self.folder.name) / "policy.json"
        path.write_text(json.dumps(policy))
        lines = self.penstock("bench", "--model", self.args.model, "--policy", path, "--prefill", 0, "--decode", batch,
                              "--empty-context", "--json", *flags).splitlines()
        return [json.loads(line) for line in lines]

    def budget(self, share):
        return f"{int(self.model_bytes * share) - BELOW_LIMIT}B"


def lanes_text(lanes):
    return ", ".join(f"{name} {share:.0%}" for name, share in lanes.items())


def by_turns(args, names, measure):
    """Prints medians of all rounds, each beside the first; returns the records."""
    records = []
    for round_idx in range(args.rounds):
        for name in names:
            record = {"name": name, "round": round_idx, **measure(name)}
            records.append(record)
            print(f"  round {round_idx + 1}: {name}: {record['tokens_per_second']:.2f} tokens/s", file=sys.stderr, flush=True)
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
            "share": share, **bench.decode(ABLATION[name], 64, "--context", 128, "--micro-batch-size", 16, "--kv-dtype", "int8",
                                           "--memory", bench.budget(share), "--steps", args.steps)[0]})
    return records


def device(bench):
    args = bench.args
    copy = json.loads(bench.penstock("probe", "--json", "--threads", 1, "--disk", "none"))["tiers"][0]["rates"][0]["copy_bytes_per_second"]
    link = int(copy / 4)
    print(f"copies {copy / 1e9:.2f} GB/s; link {link / 1e9:.2f} GB/s; device memory {bench.model_bytes // 5 / 1e6:.0f} MB")
    print("| schedule | tokens/s | of the first | lanes busy |")
    return by_turns(args, DEVICE, lambda name: bench.decode(
        {"schedule": name}, args.sequences, "--context", args.context, "--context-length", args.context + args.steps + 2,
        "--micro-batch-size", args.micro_batch_size, "--memory", args.memory, "--threads", 1, "--prefill-chunk", 64,
        "--device", f"emulated:link={link}B/s,threads=1", "--gpu-memory", f"{bench.model_bytes // 5}B", "--steps", args.steps)[0])


def predict(bench):
    args = bench.args
    records = []
    for round_idx in range(args.rounds):
        hardware = args.hardware or str(pathlib.Path(bench.folder.name) / "hardware.json")
        if not args.hardware:
            print(bench.penstock("probe", "--model", args.model, "--output", hardware), file=sys.stderr)
        for idx, (schedule, share, batch) in enumerate(PREDICTED):
            routing = pathlib.Path(bench.folder.name) / f"routing{round_idx}-{idx}"
            lines = bench.decode({"schedule": schedule}, batch, "--context", 64, "--kv-dtype", "int8", "--memory", bench.budget(share),
                                 "--steps", args.steps, "--hardware", hardware, "--record-routing", routing)
            records.append({"round": round_idx, "schedule": schedule, "share": share,
                            **next(line for line in lines if line["kind"] == "prediction")})
            print(f"round {round_idx + 1}: {schedule} {share:.0%} {batch}: {records[-1]['error']:+.1%}", file=sys.stderr, flush=True)
    print("| schedule | budget | sequences | measured ms | predicted ms | error |")
    errors = []
    for idx, (schedule, share, batch) in enumerate(PREDICTED):
        of_setting = records[idx::len(PREDICTED)]
        measured, predicted = (statistics.median(record[key] for record in of_setting) for key in ("seconds", "predicted_seconds"))
        errors.append(predicted / measured - 1)
        print(f"| {schedule} | {share:.0%} | {batch} | {measured * 1e3:.0f} | {predicted * 1e3:.0f} | {errors[-1]:+.1%} |")
    errors = [abs(error) for error in errors]
    print(f"median error {statistics.median(errors):.1%}, largest {max(errors):.1%}, {sum(error <= 0.15 for error in errors)} of {len(errors)} within 15 %")
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ablation", "device", "predict"))
    parser.add_argument("--penstock", default=ROOT / "build/release/bin/penstock")
    parser.add_argument("--model", required=True, help="a packed store")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--memory", default="18GiB", help="device: the host's budget")
    parser.add_argument("--sequences", type=int, default=384, help="device")
    parser.add_argument("--micro-batch-size", type=int, default=64, help="device")
    parser.add_argument("--context", type=int, default=384, help="device")
    parser.add_argument("--hardware", help="predict: JSON of an earlier probe")
    parser.add_argument("--output", help="JSON of all measurements")
    args = parser.parse_args()
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    print(f"{cpu.group(1) if cpu else 'unknown processor'}, {os.cpu_count()} CPUs, {pathlib.Path(args.model).name}")
    records = {"ablation": ablation, "device": device, "predict": predict}[args.what](Bench(args))
    if args.output:
        pathlib.Path(args.output).write_text("".join(json.dumps(record) + "\n" for record in records))


if __name__ == "__main__":
    main()
