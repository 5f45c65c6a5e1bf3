#!/usr/bin/env python3
"""Simulates the throughput tables of MoE-Lightning and Klotski with our own schedules on described hardware, and writes docs/paper-tables.md:
paper, simulated and their ratio side by side.

Every row is `penstock simulate` (or, where the paper leaves the policy to a search, `penstock plan`); --verbose prints the command lines.
"""

import argparse
import concurrent.futures
import json
import pathlib
import shlex
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "tests" / "data" / "configs"
DOC = ROOT / "docs" / "paper-tables.md"

# One calibration for each machine: what its links and processors reach instead of what their data sheets say.
MACHINES = {
    "S1": ("t4:link=6GB/s,copy=12GB/s,gpu-efficiency=0.4",
           "link: pageable weights of an n1 machine reach the T4 at about half of the 12.9 GB/s that FlexGen measured with pinned memory"),
    "S2": ("l4:link=10GB/s,copy=20GB/s,gpu-efficiency=0.4", "link: as above, PCIe 4.0"),
    "S6": ("2xt4:link=6GB/s,copy=12GB/s,gpu-efficiency=0.4", "as S1; two GPUs are one with twice the memory, rates and operations"),
    "S7": ("4xt4:link=6GB/s,copy=12GB/s,gpu-efficiency=0.4", "as S1; four GPUs"),
    "K1": ("rtx3090:link=16.8GB/s,copy=33.6GB/s,gpu-call-us=650,gpu-efficiency=0.25,disk=1GB/s",
           "link: an expert of 352 MB in 21 ms (section 1); call: attention of a batch of 16 in 2.6 ms, four calls (section 1); disk: Table 2"),
    "K2": ("h800:link=33.6GB/s,copy=67.2GB/s,gpu-call-us=650,gpu-efficiency=0.25", "link: twice that of environment 1 (PCIe 5.0); call: as there"),
}
# One overhead for each rival's implementation, fitted on one row: microseconds of every kernel call.
RIVALS = {"FlexGen": 0, "FlexGen(c)": 0, "DeepSpeed": 0}

SCHEDULES = {"FlexGen": "zigzag", "FlexGen(c)": "zigzag-cpu-attention", "DeepSpeed": "zero", "MoE-Lightning(p)": "cgopipe"}


class Simulations:
    def __init__(self, args):
        self.args = args
        self.pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
        self.folder = tempfile.TemporaryDirectory()

    def submit(self, *row, **keywords):
        return self.pool.submit(self.simulate, *row, **keywords)

    def simulate(self, config, machine, schedule, batch, micro_batch, workload, weights="bf16", call_us=0, policy=None, chunk=8192):
        hardware = MACHINES[machine][0] + (f",gpu-call-us={call_us}" if call_us else "")
        command = [self.args.penstock, "simulate", "--config", CONFIGS / config, "--weights", weights, "--hardware", hardware,
                   "--schedule", schedule, "--batch-size", batch, "--micro-batch-size", micro_batch, "--workload", workload,
                   "--kv-dtype", "bf16", "--prefill-chunk", chunk, "--json"]
        if policy is not None:
            path = pathlib.Path(self.folder.name) / ("-".join(policy) + ".json")
            path.write_text(json.dumps({name: False for name in policy}))
            command += ["--policy", path]
        command = [str(part) for part in command]
        done = subprocess.run(command, capture_output=True, text=True)
        if self.args.verbose:
            print(shlex.join(command), flush=True)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip()}")
        return json.loads(done.stdout)["schedules"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=ROOT / "build/release/bin/penstock")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--only", default="", help="table5, table4, klotski or scaling: prints that one alone")
    args = parser.parse_args()


if __name__ == "__main__":
    main()
