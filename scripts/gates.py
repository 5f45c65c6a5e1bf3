#!/usr/bin/env python3
"""Checks style and structure without building anything: the gates that `make check` passes before it builds.

Usage: gates.py [--all-files] [GATE...]

Each gate prints a line for each finding; one that lacks its tool says so and is skipped. tidy checks the files of src/ that
differ from the main branch (or, on it, from the commit before), for a minute at most; with --all-files it checks all.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = ("*.cc", "*.h", "*.cu", "*.cuh")
CLANG_FORMAT_VERSION = "14"  # other versions format differently
RUFF = "ruff==0.17.6"
TIDY_SECONDS = 60


class Skipped(Exception):
    """A gate that cannot run here; the text says why."""


def output(*command):
    """(exit status, lines of stdout and stderr) of a command run in the repository."""
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout.splitlines()


def tracked(*patterns):
    """The tracked files of these patterns that are there."""
    return [name for name in output("git", "ls-files", *patterns)[1] if (ROOT / name).exists()]


def in_parallel(function, items):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def house(name, *flags):
    """A gate that runs tests/house/NAME.py."""

    def gate(_):
        status, lines = output(sys.executable, f"tests/house/{name}.py", str(ROOT), *flags)
        return lines if status else []

    return gate


def format_gate(_):
    """Every C++ and CUDA file is as clang-format leaves it."""
    program = shutil.which(f"clang-format-{CLANG_FORMAT_VERSION}") or shutil.which("clang-format")
    if not program or f"version {CLANG_FORMAT_VERSION}." not in " ".join(output(program, "--version")[1]):
        raise Skipped(f"clang-format {CLANG_FORMAT_VERSION} is not installed (scripts/install-deps.sh --check)")
    files = tracked(*CODE)
    chunks = [files[start:start + 50] for start in range(0, len(files), 50)]
    reports = in_parallel(lambda chunk: output(program, "--dry-run", "-Werror", *chunk)[1], chunks)
    places = [line.split(": error:")[0] for report in reports for line in report if ": error:" in line]
    return [f"{place}: is not formatted (make format)" for place in places]


def ruff_gate(_):
    """ruff.toml's rules hold for all Python files."""
    folder = ROOT / "build" / RUFF.replace("==", "-")
    if not (folder / "bin" / "ruff").exists():
        quiet = ("--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20")
        if output(sys.executable, "-m", "venv", folder)[0] or output(folder / "bin" / "pip", "install", *quiet, RUFF)[0]:
            shutil.rmtree(folder, ignore_errors=True)
            raise Skipped(f"{RUFF} cannot be installed from PyPI into build/")
    status, lines = output(folder / "bin" / "ruff", "check", "--quiet", "--output-format", "concise", ".")
    return lines if status else []


def changed_sources():
    """The files of src/ to check: changed ones, and those beside changed headers."""
    status, base = output("git", "merge-base", "HEAD", "origin/main")
    if status or base == output("git", "rev-parse", "HEAD")[1]:
        base = ["HEAD~1"]
    status, names = output("git", "diff", "--name-only", *base, "--", "src", "include")
    if status:
        raise Skipped("this clone holds no commit to compare with")
    beside = {str(pathlib.Path(name).with_suffix(".cc")) for name in names}
    return [name for name in tracked("src/*.cc") if name in beside]


def tidy_gate(all_files):
    """clang-tidy's checks (.clang-tidy) hold, with clang's own flags: GCC's precompiled header would be no use to it."""
    if not shutil.which("clang-tidy") or not shutil.which("clang++"):
        raise Skipped("clang-tidy or clang++ is not installed (scripts/install-deps.sh --check)")
    files = tracked("src/*.cc") if all_files else changed_sources()
    # Left out: CUDA, which this database does not build, and the CPU's kernels, which are written with GCC's vectors.
    files = [name for name in files if "cuda" not in name and not name.startswith("src/penstock/kernels/cpu/")]
    if not files:
        return []
    status, lines = output("cmake", "--preset", "fuzz")
    if status:
        return lines[-10:]
    end = time.monotonic() + TIDY_SECONDS
    left_out = []

    def check(name):
        if not all_files and time.monotonic() > end:
            left_out.append(name)
            return []
        return output("clang-tidy", "--quiet", "-p", "build/fuzz", name)[1]

    finding = re.compile(r":\d+: (?:warning|error): ")
    lines = [line for report in in_parallel(check, files) for line in report if finding.search(line)]
    if left_out:
        named = " ".join(left_out[:10]) + (" ..." if len(left_out) > 10 else "")
        print(f"gates: tidy: {len(left_out)} of {len(files)} files left out after {TIDY_SECONDS} s: {named}")
    return sorted({line.removeprefix(f"{ROOT}/") for line in lines})  # once, though many files include the header


GATES = {
    "layering": house("layering"),
    "sizes": house("sizes"),
    "sizes self-test": house("sizes", "--self-test"),
    "markdown": house("markdown"),
    "markdown self-test": house("markdown", "--self-test"),
    "prose": house("prose"),
    "prose self-test": house("prose", "--self-test"),
    "format": format_gate,
    "ruff": ruff_gate,
    "tidy": tidy_gate,
}


def run(names=GATES, all_files=False):
    """Runs the gates; yields (name, whether it passed) of each that was not skipped."""
    for name in names:
        start = time.monotonic()
        try:
            findings = GATES[name](all_files)
        except Skipped as reason:
            print(f"gates: skipped: {name}: {reason}", flush=True)
            continue
        for line in findings:
            print(f"gates: {name}: {line}")
        print(f"gates: {name}: {len(findings)} findings, {time.monotonic() - start:.1f} s", flush=True)
        yield name, not findings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gates", nargs="*", metavar="GATE", help=", ".join(GATES))
    parser.add_argument("--all-files", action="store_true", help="tidy checks every file of src/")
    args = parser.parse_args()
    for name in args.gates:
        if name not in GATES:
            parser.error(f"unknown gate '{name}', expected one of: {', '.join(GATES)}")
    results = [good for _, good in run(args.gates or GATES, args.all_files)]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
