#!/usr/bin/env python3
"""Proves that bad input gives one clear line and the right exit code.

No input may cause a crash, a hang, unbounded memory or lost data.

Each row is a kind of bad input with several inputs: a broken checkpoint, index, config, tokenizer, template, JSONL
line, flag or environment. Besides its own expectation, every run of the program must satisfy these rules:
  - on failure exactly one line on stderr begins with "penstock: error: ", it is printable, and stdout is empty;
  - every other line on stderr begins with "penstock: " too, and no sanitizer reports anything;
  - processor time, wall time and peak RSS stay below their bounds;
  - no file that was in the test's folder before has changed, unless it is an output.

Inputs are tried side by side, one on each processor. With --every N, the first input of each row is tried and each Nth
behind it. `make check` tries all in the optimised build and a sixth under sanitizers; `make nightly` tries all there, too.

Usage: bad_inputs.py --penstock PATH [--only REGEX] [--every N] [--keep]
"""
import argparse
import collections
import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

import bad_command_lines
import bad_configs
import bad_encoders
import bad_gguf
import bad_measurements
import bad_messages
import bad_predictors
import bad_requests
import bad_shards
import bad_tokenizers
import program as answers
import tiny_model

MIB = 1 << 20
MAX_WORK = 200  # times the processor time of an honest answer (honest_work_s)
LEAST_MAX_WORK_S = 20.0  # where the machine is fast
MAX_RSS_BYTES = 256 * MIB
SANITIZER_RSS_FACTOR = 4  # for shadow memory, quarantine and red zones
CACHE = tempfile.TemporaryDirectory()
CASES = []  # (row, name, test)
OK_CODES = (0, 8)  # 8: the job finished and some requests have error records
REPORT = re.compile(r"Sanitizer|runtime error:|terminate called|Assertion|core dumped")


class Failure(Exception):
    """A failed expectation."""


def peak_rss_bytes(pid):
    """Returns the peak memory of a running process so far; 0 when it has ended or not yet called exec."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            status = file.read()
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found.group(1)) * 1024 if found and not status.startswith("Name:\tpython") else 0


class Result:
    def __init__(self, code, stdout, stderr):
        self.code = code
        self.stdout = stdout
        self.stderr = stderr


class Box:
    """The folder of one input, with methods to run the program in it."""

    def __init__(self, program, folder):
        self.program = program
        self.dir = folder
        self.outputs = set()  # paths that runs may change

    def path(self, name):
        return os.path.join(self.dir, name)

    def model(self, name="model"):
        return tiny_model.ModelFolder(self.path(name))

    @contextlib.contextmanager
    def own_cache(self):
        """Yields variables that name a new folder for measurements. Other inputs measure, too, and runs may change it."""
        with tempfile.TemporaryDirectory() as folder:
            yield {"XDG_CACHE_HOME": folder}

    def file(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        return self.path(name)

    def output(self, name="out.jsonl"):
        for suffix in ("", ".manifest.json", ".manifest.json.tmp"):
            self.outputs.add(self.path(name) + suffix)
        return self.path(name)

    def start(self, args, env=None, stdin=None, preexec=None, stdout=None, cwd=None):
        """Starts the program; its stderr goes to a file, because a pipe without a reader could block it."""
        variables = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        # Shared by all runs, so that the machine is measured only once.
        variables["XDG_CACHE_HOME"] = CACHE.name
        variables["CUDA_VISIBLE_DEVICES"] = ""  # gives the same answers on machines with a GPU
        variables.update(env or {})

        def prepare():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if preexec is not None:
                preexec()

        out = stdout if stdout is not None else tempfile.TemporaryFile()
        err = tempfile.TemporaryFile()
        inp = subprocess.DEVNULL
        if stdin is not None:
            inp = tempfile.TemporaryFile()
            inp.write(stdin)
            inp.seek(0)
        process = subprocess.Popen([self.program.path] + list(args), stdin=inp, stdout=out, stderr=err, env=variables,
                                   preexec_fn=prepare, cwd=cwd)
        process.out_file, process.err_file = (None if stdout is not None else out), err
        process.args_text = " ".join(str(arg)[:120] for arg in args)
        return process

    def finish(self, process):
        """Waits for `process`, kills it if it hangs, and returns its exit code, output and peak RSS."""
        start = time.monotonic()
        rss_bytes = 0
        while True:
            # Not rusage's peak, which starts with this script's own memory at the fork.
            rss_bytes = max(rss_bytes, peak_rss_bytes(process.pid))
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid != 0:
                break
            if time.monotonic() - start > answers.HANG_S:
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
                process.returncode = -signal.SIGKILL
                raise Failure(f"took more than {answers.HANG_S} s: {process.args_text}")
            time.sleep(0.004)
        process.returncode = os.waitstatus_to_exitcode(status)
        if usage.ru_utime + usage.ru_stime > self.program.max_work_s:
            raise Failure(f"{usage.ru_utime + usage.ru_stime:.0f} s of processor time: {process.args_text}")

        def content(file):
            if file is None:
                return b""
            file.seek(0)
            with file:
                return file.read()

        result = Result(process.returncode, content(process.out_file), content(process.err_file))
        result.rss_bytes = rss_bytes
        return result

    def run(self, args, code=0, match=None, quiet=True, env=None, stdin=None, preexec=None, stdout=None, cwd=None,
            max_rss=MAX_RSS_BYTES):
        """Runs the program, checks the rules for all runs, and returns the Result."""
        before = self.snapshot()
        process = self.start(list(args) + (["--quiet"] if quiet else []), env=env, stdin=stdin, preexec=preexec,
                             stdout=stdout,
                             cwd=cwd)
        result = self.finish(process)
        self.program.num_runs += 1
        self.check(result, (code,) if isinstance(code, int) else code, match, quiet, max_rss)
        after = self.snapshot()
        changed = [path for path, state in before.items() if after.get(path) != state]
        if changed:
            raise Failure(f"changed or removed {changed[0]}")
        return result

    def check(self, result, codes, match, quiet, max_rss):
        text = result.stderr.decode("utf-8", "backslashreplace")
        shown = f"exit code {result.code}, stderr: {text[-2000:]!r}"
        if REPORT.search(text):
            raise Failure(f"a crash or a sanitizer's report; {shown}")
        if result.code not in codes:
            raise Failure(f"expected exit code {' or '.join(map(str, codes))}; {shown}, stdout: {result.stdout[:200]!r}")
        try:
            result.stderr.decode("utf-8")
        except UnicodeDecodeError:
            raise Failure(f"stderr is not UTF-8; {shown}") from None
        lines = text.splitlines()
        errors = [line for line in lines if line.startswith("penstock: error: ")]
        if result.code in OK_CODES:
            if errors:
                raise Failure(f"an error line, though the exit code says success; {shown}")
        else:
            if len(errors) != 1:
                raise Failure(f"expected one error line, found {len(errors)}; {shown}")
            if result.stdout:
                raise Failure(f"stdout is not empty: {result.stdout[:200]!r}; {shown}")
            if len(errors[0]) > 20000:
                raise Failure(f"an error line of {len(errors[0])} characters")
        if quiet and any(not line.startswith("penstock: ") for line in lines):
            raise Failure(f"a line without 'penstock: '; {shown}")
        if any(not char.isprintable() for line in lines for char in line):
            raise Failure(f"control characters on stderr; {shown}")
        if match is not None and not re.search(match, text):
            raise Failure(f"expected a message that matches {match!r}; {shown}")
        bound = max_rss * (SANITIZER_RSS_FACTOR if self.program.sanitized else 1)
        if result.rss_bytes > bound:
            raise Failure(f"peak RSS {result.rss_bytes / MIB:.0f} MiB, bound {bound / MIB:.0f} MiB; {shown}")

    def snapshot(self):
        """Returns path -> (size, mtime) of every regular file that no run may change."""
        states = {}
        for folder, _, names in os.walk(self.dir):
            for name in names:
                path = os.path.join(folder, name)
                info = os.lstat(path)
                if path not in self.outputs and stat.S_ISREG(info.st_mode):
                    states[path] = (info.st_size, info.st_mtime_ns, info.st_ino)
        return states

    def inspect(self, model, pattern, code=3, **options):
        return self.run(["inspect", "--model", model.path], code=code, match=pattern, **options)

    def least_memory(self, args):
        """Returns the least --memory for `args`, taken from the refusal of a smaller one."""
        text = self.run(list(args) + ["--memory=1B"], code=6, match=r"least budget is \d+ bytes").stderr.decode()
        return int(re.search(r"least budget is (\d+) bytes", text).group(1))

    def expect(self, holds, message):
        if not holds:
            raise Failure(message)


def honest_work_s(path):
    """Returns the processor time of an answer of 256 tokens by the demo model: a measure of the machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answers.Penstock(path).run("generate", "--model", answers.DEMO_MODEL, "--prompt=Once", "--max-tokens=256",
                               "--ignore-eos", "--threads=1", "--quiet").check_returncode()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


class Program:
    def __init__(self, path):
        self.path = os.path.abspath(path)
        self.num_runs = 0
        with open(path, "rb") as file:
            self.sanitized = b"__asan_init" in file.read()
        self.max_work_s = max(LEAST_MAX_WORK_S, MAX_WORK * honest_work_s(self.path))


def take_processor(processors):
    """Gives this process a processor of its own: a program with as many threads as processors waits for those in use."""
    os.sched_setaffinity(0, {processors.get()})


def run_case(program, keep, index):
    """Tries input `index` of CASES; returns what is wrong (or None), and how many runs of the program it took."""
    row, name, test = CASES[index]
    folder = os.path.realpath(tempfile.mkdtemp(prefix="penstock-bad-"))
    program.num_runs, fault = 0, None
    try:
        test(Box(program, folder))
    except Exception as failure:  # a test that fails on an unexpected answer has found something, too
        kind = "" if isinstance(failure, Failure) else f"{type(failure).__name__}: "
        fault = f"{row} {name}: {kind}{failure}"
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return fault, program.num_runs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--only", default="", help="regular expression on 'ROW name'")
    parser.add_argument("--every", type=int, default=1, metavar="N",
                        help="of each row try the first input and each Nth behind it")
    parser.add_argument("--keep", action="store_true", help="keep the inputs' folders")
    flags = parser.parse_args()
    program = Program(flags.penstock)
    tiny_model.ModelFolder.seed()
    num_found = collections.Counter()
    # Inputs that take long come first.
    for module in (bad_measurements, bad_encoders, bad_messages, bad_shards, bad_gguf, bad_configs, bad_tokenizers,
                   bad_requests, bad_command_lines, bad_predictors):
        for row, name, test in module.cases():
            num_found[row] += 1
            if (num_found[row] - 1) % flags.every == 0 and re.search(flags.only, f"{row} {name}"):
                CASES.append((row, name, test))
    num_inputs, num_runs, faults = collections.Counter(), 0, collections.defaultdict(list)
    context = multiprocessing.get_context("fork")  # the processes then have the inputs: functions cannot be sent to them
    processors = context.SimpleQueue()
    for processor in (allowed := os.sched_getaffinity(0)):
        processors.put(processor)
    with concurrent.futures.ProcessPoolExecutor(len(allowed), context, take_processor, (processors,)) as pool:
        results = pool.map(functools.partial(run_case, program, flags.keep), range(len(CASES)))
        for (row, _, _), (fault, runs) in zip(CASES, results, strict=True):
            num_inputs[row] += 1
            num_runs += runs
            if fault:
                faults[row].append(fault)
    for row in sorted(num_inputs):
        print(f"{row:4} {'FAILED' if faults[row] else 'ok':7} {num_inputs[row]:3} inputs")
        for fault in faults[row]:
            print(f"  {fault}")
    num_failed = sum(map(len, faults.values()))
    print(f"{len(num_inputs)} rows, {len(CASES)} inputs, {num_runs} runs, {num_failed} failed")
    return 1 if num_failed or not CASES else 0


if __name__ == "__main__":
    sys.exit(main())
