"""The parts that the tests of the Python package share."""
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "models" / "penstock-demo"
MEMORY = "24MiB"  # half of the demo model's experts stay on disk
PENSTOCK = os.environ.get("PENSTOCK_TEST_PROGRAM", str(ROOT / "build" / "release" / "bin" / "penstock"))
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.S)
HANG_S = 300  # seconds that no machine needs


def run_job(folder, lines, *flags, model=MODEL):
    """The result records of `penstock run`, in the order of the lines."""
    source, output = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    output.unlink(missing_ok=True)
    subprocess.run([PENSTOCK, "run", "-m", model, "-i", source, "-o", output, "--memory", MEMORY, "-q", *flags], check=True,
                   timeout=HANG_S)
    records = {record["custom_id"]: record for record in map(json.loads, output.read_text(encoding="utf-8").splitlines())}
    return [records[f"line-{number}"] for number in range(1, len(lines) + 1)]


def run_python(code, *, check=True, cwd=ROOT):
    """Runs a program in an interpreter of its own; returns the finished process."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=check, cwd=cwd)
