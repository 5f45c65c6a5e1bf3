#!/usr/bin/env python3
"""Builds everything and runs all tests; the last line is `N passed, N failed`.

Stages: gates of style and structure (scripts/gates.py), tests under ASan + UBSan (preset dev), tests with optimisation
(preset release), and an example that uses the installed package. A floor whose code depends neither on the instruction set
nor on the optimiser has its tests in one stage alone: slow ones optimised, all others sanitized. `make nightly` runs the
rest. `--fast` leaves out tests labelled slow.
The counts are test cases: GoogleTest's, and one for every gate and every other test program.
"""
import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import gates

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Counter:
    """Test cases that passed and failed so far."""

    def __init__(self):
        self.passed = 0
        self.failed = 0

    def add_gtest_reports(self, folder):
        """Adds the GoogleTest reports in `folder`; returns the names of the test programs that wrote one."""
        programs = set()
        for report in sorted(folder.glob("*.xml")):
            suites = ElementTree.parse(report).getroot()
            failures = int(suites.get("failures", 0)) + int(suites.get("errors", 0))
            self.failed += failures
            self.passed += int(suites.get("tests", 0)) - failures - int(suites.get("disabled", 0))
            programs.add(report.stem)
        return programs

    def add(self, name, good):
        if good:
            self.passed += 1
        else:
            self.failed += 1
            print(f"check: FAILED: {name}", flush=True)


def run(command, **kwargs):
    """Runs a command and shows its output; returns whether it succeeded."""
    print("check: $ " + " ".join(map(str, command)), flush=True)
    return subprocess.run(command, cwd=ROOT, check=False, **kwargs).returncode == 0


def python_environment():
    """Installs into build/python-env what the Python package is built and tested with; without PyPI, it is left out."""
    folder = ROOT / "build" / "python-env"
    wanted = (ROOT / "python" / "requirements.txt").read_text(encoding="utf-8")
    installed = folder / "requirements.txt"
    if installed.exists() and installed.read_text(encoding="utf-8") == wanted:
        return
    pip = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    if run([sys.executable, "-m", "venv", folder]) and run([*pip, "-r", "python/requirements.txt"]):
        installed.write_text(wanted, encoding="utf-8")
    else:
        print("check: skipped: the Python package: its tools cannot be installed from PyPI", flush=True)


def server_environment():
    """Installs the packages of the tests of the server; these tests say it if that fails."""
    subprocess.run([sys.executable, "tests/server/environment.py"], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)


def build(preset, *flags):
    """Builds a preset, with warnings as errors and libraries in batches."""
    return (run(["cmake", "--preset", preset, "-DPENSTOCK_WERROR=ON", "-DPENSTOCK_UNITY=ON", *flags],
                stdout=subprocess.DEVNULL)
            and run(["cmake", "--build", "--preset", preset]))


def test(preset, counter, exclude):
    """Runs ctest, a test on each processor, and counts the cases in the reports that GoogleTest programs write."""
    folder = ROOT / "build" / preset / "reports"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    junit = folder / "ctest.junit"
    command = ["ctest", "--preset", preset, "--output-junit", str(junit), "--output-on-failure",
               "-j", str(os.cpu_count() or 1)]
    if exclude:
        command += ["-LE", exclude]
    # Shorter stacks of allocations make sanitized tests a twentieth faster. Run a test alone for whole ones.
    run(command, env={"ASAN_OPTIONS": "malloc_context_size=8", **os.environ, "PENSTOCK_TEST_REPORTS": str(folder)})
    counted = counter.add_gtest_reports(folder)
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None and skipped.get("message", "").startswith("SKIP_"):  # the test printed why
            print(f"check: skipped: {preset}: {case.get('name')}", flush=True)
            continue
        program = case.get("name").replace("/", "_")
        good = case.get("status") == "run"
        if program not in counted:
            counter.add(f"{preset}: {case.get('name')}", good)
        elif not good:  # a crash after the report, or a sanitizer's finding at exit
            print(f"check: FAILED: {preset}: {case.get('name')}", flush=True)
            counter.failed += 1


def check_install(counter):
    """Installs into build/ and builds the example against the installed package."""
    prefix = ROOT / "build" / "installed"
    example = ROOT / "build" / "example"
    shutil.rmtree(prefix, ignore_errors=True)
    shutil.rmtree(example, ignore_errors=True)
    good = (
        run(["cmake", "--install", "build/release", "--prefix", prefix], stdout=subprocess.DEVNULL)
        and run(["cmake", "-S", "examples/embed", "-B", example, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"],
                stdout=subprocess.DEVNULL)
        and run(["cmake", "--build", example])
        and run([example / "embed", "models/penstock-demo", "Once upon a time"])
    )
    counter.add("installed package and example", good)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="leave out tests labelled slow")
    parser.add_argument("--release-only", action="store_true", help="leave out the sanitizer build")
    args = parser.parse_args()
    counter = Counter()
    start = time.monotonic()
    # Packages are downloaded meanwhile.
    packages = concurrent.futures.ThreadPoolExecutor()
    python, server = packages.submit(python_environment), packages.submit(server_environment)
    for name, good in gates.run():
        counter.add(f"gate {name}", good)
    if not args.release_only:
        # Slow tests measure memory, and kill real processes. So they run only once, optimised.
        if build("dev"):
            test("dev", counter, "slow")
        else:
            counter.add("dev build", False)
    python.result()
    if build("release", f"-DPENSTOCK_TESTS_ONCE={'OFF' if args.release_only else 'ON'}"):
        server.result()
        test("release", counter, "slow" if args.fast else "")
        check_install(counter)
    else:
        counter.add("release build", False)
    print(f"check: {time.monotonic() - start:.0f} s")
    print(f"{counter.passed} passed, {counter.failed} failed", flush=True)
    return 1 if counter.failed or not counter.passed else 0


if __name__ == "__main__":
    sys.exit(main())
