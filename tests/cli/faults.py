#!/usr/bin/env python3
"""Proves that faults of the machine stop a job in order, and that no good request is lost.

Each attempt at a job suffers one fault: a signal, a disk that returns EIO or gives less than it should, transient errors
of io_uring, threads that cannot be started, a model that is cut or renamed meanwhile. After each the job continues with
--resume, at random with --retry-failed. It ends with the bytes of an undisturbed run.
"""
import argparse
import collections
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time

import program

# For each fault of the shim: what it does, and the exit codes that are right.
SHIM = {
    "none": ("", {0}),
    "short reads": ("short=0.3", {0}),
    "transient errors": ("transient=0.2", {0}),
    "some EIO": ("eio=0.02", {0, 3, 5}),
    "EIO": ("eio=0.5", {3, 5}),
    "few threads": ("thread=2", {0, 6}),
    "no thread": ("thread=1", {0, 6}),
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Job:
    def __init__(self, args, folder, number, rng):
        self.penstock = program.Penstock(args.penstock)
        self.shim, self.rng, self.folder = args.shim, rng, folder
        self.model = folder / "model"
        self.output = folder / f"out{number}.jsonl"
        self.source = folder / "requests.jsonl"

    def start(self, shim="", *flags):
        flags = ["--memory", "24MiB", "--batch-size", 4, "--threads", self.rng.choice((1, 2)), *flags]
        environment = {**os.environ, "LD_PRELOAD": self.shim, "FAULT_SHIM": f"{shim},seed={self.rng.getrandbits(20)}"}
        return subprocess.Popen(self.penstock.command("run", "--quiet", "--model", self.model, "--input", self.source,
                                                      "--output", self.output, "--resume", *flags),
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True)

    def suffer(self, fault, whole_s):
        """Runs one attempt. Returns its exit code and the codes that are right."""
        flags = self.rng.choice(([], ["--retry-failed"]))
        if fault in SHIM:
            shim, good = SHIM[fault]
            process = self.start(shim, *flags)
            _, stderr = process.communicate(timeout=program.HANG_S)
            return process.returncode, good, stderr
        process = self.start("", "--drain", self.rng.choice((0, 0.05, 30)), *flags)
        time.sleep(self.rng.uniform(0, whole_s))
        good = {0}
        if fault == "signal":
            sent = self.rng.choice(SIGNALS)
            # Before its handlers are there, a signal ends the process.
            good = {0, 7, -sent} if sent != signal.SIGKILL else {0, -signal.SIGKILL}
            for _ in range(self.rng.choice((1, 2))):
                process.send_signal(sent)
        elif fault == "cut model":
            weights = self.model / "model.safetensors"
            size = weights.stat().st_size
            os.truncate(weights, size // 3)
            good = {0, 3, 5}
        elif fault == "renamed model":
            self.model.rename(self.folder / "elsewhere")
            good = {0, 3, 5}
        _, stderr = process.communicate(timeout=program.HANG_S)
        if fault == "cut model":
            shutil.copy(program.DEMO_MODEL / "model.safetensors", self.model)
        elif fault == "renamed model":
            (self.folder / "elsewhere").rename(self.model)
        return process.returncode, good, stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--shim", required=True, help="the library fault_shim")
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    kinds = [*SHIM, *["signal"] * 6, "cut model", "renamed model"]
    counts, codes = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copytree(program.DEMO_MODEL, folder / "model")
        program.write_requests(folder / "requests.jsonl", args.requests, args.seed, 24)
        whole = Job(args, folder, "whole", rng)
        begin = time.monotonic()
        _, stderr = (process := whole.start()).communicate(timeout=program.HANG_S)
        assert process.returncode == 0, stderr
        whole_s = time.monotonic() - begin
        expected = program.sorted_by_id(whole.output)
        num_jobs = 0
        while sum(counts.values()) < args.faults:
            job = Job(args, folder, num_jobs, rng)
            num_jobs += 1
            for _ in range(rng.randint(1, 8)):
                fault = rng.choice(kinds)
                code, good, stderr = job.suffer(fault, whole_s)
                counts[fault] += 1
                codes[(fault, code)] += 1
                assert code in good, f"{fault}: exit code {code}, not one of {good}: {stderr}"
                assert "terminate called" not in stderr and "check failed" not in stderr.lower(), stderr
                # A kill, and a job that ends well, say nothing.
                least = 0 if code <= 0 else 1
                assert least <= stderr.count("\n") <= 1, f"{fault}: not one line: {stderr}"
                for line in program.sorted_by_id(job.output) if job.output.exists() and code >= 0 else []:
                    assert b'"error":null' in line, f"{fault}: a good request has an error record: {line}"
            _, stderr = (process := job.start("", "--retry-failed")).communicate(timeout=program.HANG_S)
            assert process.returncode == 0, stderr
            assert program.sorted_by_id(job.output) == expected, "the job ends with other bytes"
    for (fault, code), count in sorted(codes.items()):
        print(f"{fault:<18} exit {code:>3}  {count}")
    print(f"{sum(counts.values())} faults in {num_jobs} jobs: every job ended with the bytes of an undisturbed run")


if __name__ == "__main__":
    main()
