#!/usr/bin/env python3
"""Proves that `doctor` reports the machine and a model, as text and as JSON, and gives at most three pieces of advice."""
import argparse
import json
import pathlib
import resource
import shutil
import subprocess
import tempfile

import program


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    penstock = program.Penstock(parser.parse_args().penstock)
    for flags in ([], ["--model", program.DEMO_MODEL]):
        done = penstock.run("doctor", *flags)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        names = {line.split(" ", 1)[0] for line in lines}
        assert {"processor", "memory", "pages", "disk", "gpu"} <= names, lines
        assert ({"model", "texts", "plan"} <= names) == bool(flags), lines
        assert len(lines) <= 12, lines

        done = penstock.run("doctor", "--json", *flags)
        report = json.loads(done.stdout)
        assert report["processor"]["usable_cpus"] > 0 and report["processor"]["instruction_set"] in done.stdout
        assert report["memory"]["total_bytes"] >= report["memory"]["free_bytes"] > 0, report
        assert len(report["advice"]) <= 3, report
        if flags:
            assert report["disk"]["bytes_per_s"] > 0 and report["model"]["family"] == "mixtral", report
            assert report["texts"] == {"tokenizer": "OK", "chat_template": "OK", "reasoning": False, "tool_calls": False}
            assert report["plan"]["resident_share"] == 1, report
        else:
            assert report["disk"]["bytes_per_s"] is None and "model" not in report, report

    # With little memory (a sanitizer needs more), a part of the experts stays on disk.
    for limit in range(60 << 20, 90 << 20, 4 << 20):
        done = subprocess.run(penstock.command("doctor", "--model", program.DEMO_MODEL, "--json"), capture_output=True,
                              text=True, check=False,
                              preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        report = json.loads(done.stdout) if done.returncode == 0 else {"plan": {}}
        if 0 < report["plan"].get("resident_share", 1) < 1:
            assert report["plan"]["read_bytes_per_token"] > 0 and len(report["advice"]) == 3, report

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        assert penstock.run("doctor", "--model", folder).returncode == 3
        # A model whose tokenizer is missing is still looked at.
        for path in program.DEMO_MODEL.iterdir():
            if not path.name.startswith("tokenizer"):
                shutil.copy(path, folder)
        done = penstock.run("doctor", "--model", folder)
        assert done.returncode == 0 and "the model has no tokenizer" in done.stdout, (done.stdout, done.stderr)
    print("the doctor's reports are right")


if __name__ == "__main__":
    main()
