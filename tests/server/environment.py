#!/usr/bin/env python3
"""Makes the virtual environment of the tests that judge the server by programs from PyPI, under build/.

Usage: environment.py    makes it, or finds it made

Exits with 77 (skipped) if the packages cannot be installed, for example without a network.
"""
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
REQUIREMENTS = HERE / "requirements.txt"
SKIPPED = 77


def python():
    """Returns the environment's Python; makes the environment if it is not there."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = ROOT / "build" / f"server-tests-{digest}"
    done = folder / "complete"
    if done.exists():
        return folder / "bin" / "python"
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may begin side by side
        if not done.exists():
            make(folder)
            done.write_text("", encoding="utf-8")
    return folder / "bin" / "python"


def make(folder):
    shutil.rmtree(folder, ignore_errors=True)
    # Python compiles what a test imports, a small part of all.
    quiet = ("--quiet", "--no-compile", "--disable-pip-version-check", "--retries", "2", "--timeout", "20")
    for command in ([sys.executable, "-m", "venv", str(folder)],
                    [str(folder / "bin" / "pip"), "install", *quiet, "--requirement", str(REQUIREMENTS)]):
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            lines = made.stderr.strip().splitlines() or ["no message"]
            print(f"skipped: the packages of {REQUIREMENTS.name} cannot be installed: {lines[-1]}")
            sys.exit(SKIPPED)


def enter():
    """Runs the calling script again with the environment's Python, unless this is it."""
    wanted = python()
    if pathlib.Path(sys.prefix).resolve() == wanted.parent.parent.resolve():
        return
    variables = {**os.environ, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    os.execve(wanted, [str(wanted), *sys.argv], variables)


if __name__ == "__main__":
    print(python())
