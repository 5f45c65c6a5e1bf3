"""Runs the penstock program for benchmarks. A command that fails ends the benchmark with one message."""
import hashlib
import json
import pathlib
import shlex
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEFAULT = ROOT / "build/release/bin/penstock"


def succeeded(done):
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(done.args)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    return done


class Program:
    """The program at `path`; with `verbose` it prints each command."""

    def __init__(self, path=DEFAULT, verbose=False):
        self.path, self.verbose = path, verbose

    def finish(self, *arguments):
        """Runs a command to its end; returns the finished process, whatever its exit status."""
        command = [str(self.path), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if self.verbose:
            print(shlex.join(command), flush=True)
        return done

    def output(self, *arguments):
        """Returns the command's standard output."""
        return succeeded(self.finish(*arguments)).stdout

    def json(self, *arguments):
        """Returns the one value that the command prints with --json."""
        return json.loads(self.output(*arguments, "--json"))

    def json_lines(self, *arguments):
        """Returns the values that the command prints with --json, one in each line."""
        return [json.loads(line) for line in self.output(*arguments, "--json").splitlines()]

    def job(self, model, requests, *flags):
        """Returns the statistics of a `run` of these requests; None if its policy does not fit into the budget."""
        with tempfile.TemporaryDirectory() as folder:
            done = self._run_in(pathlib.Path(folder), model, requests, flags)
            return None if done.returncode == 6 else self._stats_in(folder, done)

    def answered_job(self, model, requests, *flags):
        """Runs these requests; returns (statistics, a digest of the answers in the order of their ids)."""
        with tempfile.TemporaryDirectory() as folder:
            stats = self._stats_in(folder, self._run_in(pathlib.Path(folder), model, requests, flags))
            lines = [json.loads(line) for line in pathlib.Path(folder, "out.jsonl").read_text().splitlines()]
            answers = sorted((line["custom_id"], json.dumps(line["response"]["body"]["choices"])) for line in lines)
            return stats, hashlib.sha256(repr(answers).encode()).hexdigest()

    def _run_in(self, folder, model, requests, flags):
        (folder / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
        return self.finish("run", "--model", model, "--input", folder / "in.jsonl", "--output", folder / "out.jsonl",
                           "--stats", folder / "stats.json", "--quiet", *flags)

    @staticmethod
    def _stats_in(folder, done):
        succeeded(done)
        return json.loads(pathlib.Path(folder, "stats.json").read_text())
