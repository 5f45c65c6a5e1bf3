"""Runs the penstock program in tests: commands, inputs, peak memory."""
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEMO_MODEL = ROOT / "models" / "penstock-demo"
HANG_S = 600  # seconds that no machine needs
MT_BENCH = ROOT / "examples" / "mt_bench" / "question.jsonl"


class Penstock:
    """The program under test."""

    def __init__(self, binary):
        self.binary = str(binary)

    def command(self, *args):
        return [self.binary, *map(str, args)]

    def run(self, *args, timeout=HANG_S):
        """Runs the program to its end; returns the finished process with its output as text."""
        return subprocess.run(self.command(*args), capture_output=True, text=True, timeout=timeout, check=False)

    def run_job(self, model, source, output, *flags):
        """Runs a whole `run`; raises an error unless it succeeds."""
        done = self.run("run", "--model", model, "--input", source, "--output", output, *flags)
        if done.returncode != 0:
            raise AssertionError(f"run {flags} exited with {done.returncode}: {done.stderr[-2000:]}")
        return done

    def least_bytes(self, what, model, source, *flags):
        """Returns the bytes that the refusal of a job states after `what`."""
        with tempfile.TemporaryDirectory() as folder:
            done = self.run("run", "--model", model, "--input", source, "--output", pathlib.Path(folder) / "o.jsonl", *flags)
        found = re.search(what + r" is (\d+) bytes", done.stderr)
        if done.returncode != 6 or not found:
            raise AssertionError(f"no {what} in {done.stderr!r} (exit {done.returncode})")
        return int(found.group(1))

    def least_budget(self, model, source, *flags):
        """Returns the least --memory in bytes that `run` accepts for this job."""
        return self.least_bytes("the least budget", model, source, "--memory", "1KiB", *flags)

    def least_device_memory(self, model, source, *flags):
        """Returns the least --gpu-memory likewise; `flags` name the device."""
        return self.least_bytes("the least device memory", model, source, "--gpu-memory", "1KiB", *flags)


# A process inherits the peak memory of its parent, so a small process starts the program.
LAUNCHER = """
import os, sys
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(child, 0)
sys.stdout.write(f"{os.waitstatus_to_exitcode(status)} {usage.ru_maxrss * 1024}")
"""


def peak_rss(command):
    """Runs a command; returns (exit code, the kernel's VmHWM in bytes, stderr)."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", LAUNCHER, *command], capture_output=True, text=True,
                          errors="replace",
                          check=True)
    code, peak = done.stdout.split()
    return int(code), int(peak), done.stderr


def write_requests(path, count, seed, max_tokens):
    """Returns a mixed job: completions, chats and turns, greedy and sampled, of different lengths."""
    rng = random.Random(seed)
    words = "the fox and a hare went over hills until they found one old house where nobody had lived for years".split()
    with open(path, "w", encoding="utf-8") as file:
        for number in range(count):
            text = " ".join(rng.choice(words) for _ in range(rng.randint(1, 60)))
            line = {"id": f"r{number}", "max_tokens": rng.randint(1, max_tokens)}
            kind = number % 4
            if kind == 0:
                line.update(prompt=text, temperature=0)
            elif kind == 1:
                line.update(messages=[{"role": "user", "content": text}], temperature=0.8, top_p=0.9)
            elif kind == 2:
                line.update(turns=[text, "And then?"], temperature=0.7, top_k=20)
            else:
                line.update(prompt=text, temperature=1.0, min_p=0.05, logprobs=2)
            file.write(json.dumps(line) + "\n")


def sorted_by_id(path):
    """Returns the lines of a result file, unchanged, sorted by custom_id."""
    with open(path, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    return sorted(lines, key=lambda line: json.loads(line)["custom_id"])
