#!/usr/bin/env python3
"""Times ranks that talk over a link of a given rate, on one machine: how much of the exchange does computing hide?

Each rank has a network namespace of its own and its own CPUs. Two namespaces are joined by a veth pair, more of them by a
bridge. `tc` limits each direction of each link to a rate. Open MPI treats the namespaces as machines: one daemon runs in
each, and all messages take the links. A transfer and a ping-pong over the links measure them first.

  prefill   prompts with 2,048 tokens in all, computed in one step, with one new token each
  decode    sequences with short prompts that decode together

A form is a number of expert groups (`expert_groups` of a policy; 1: nothing is hidden), or `auto`: the engine chooses. All
forms take turns on all links, one of which has no limit. Answers must be equal bytes.

The script needs root, ip, tc, taskset and mpirun (Open MPI 4). It exits with 77 (skipped) if one of them is missing, or if
the machine allows no namespaces. However it ends, unless by SIGKILL, it removes the namespaces and all that is in them.

Variables such as OMPI_MCA_btl_tcp_links=2 change how Open MPI sends.

Limits: the CPUs of the ranks also do the work of the network. The links delay a message by their rate only: they have no
latency of their own.
"""
import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import penstock_program  # noqa: E402
from network import TICKS_PER_S, UNLIMITED, CommandFailed, Network, link_name, measure_links  # noqa: E402

PREFILL_TOKENS = 2048
DECODE_PROMPT_TOKENS = 8
HANG_S = 3600           # seconds that no run needs
SAMPLE_S = 0.5          # between looks at the CPU time of the ranks
REST_S = 3.0            # seconds for which other processes must rest
MANY_CPUS = 0.15        # other processes that use more than so many CPUs disturb a run
LEAST_EXCHANGE = 0.02   # an exchange that adds less to the time is not told from noise
SKIPPED = 77
AGENT = """#!/bin/sh
# Called as `ssh HOST COMMAND` would be; the last number of the host's address gives its namespace.
host=$1; shift
exec ip netns exec {prefix}$((${{host##*.}} - 1)) sh -c "$*"
"""
FORMULA = """
exchange = T1 - T_free, hidden = (T1 - T) / min(exchange, T_free)

T is the time of a form, T1 that of form {base} on the same link, and T_free that of form {base} without a limit: computing
alone would take about so long. All are medians. A dash says that the exchange is shorter than {least:.0%} of T_free.
"Busy" is the share of the time in which a lane of rank 0 had a task, in the last run (decode: with its prompts).
"MB sent" is what one rank sent, with all headers, and with what it sends while it opens the model; the rank that sent most
counts. "Least s" is these bytes divided by the link's rate.
"""


class Workload:
    """Requests, and the flags with which each rank computes its share of them in as few steps as possible."""

    def __init__(self, name, count, prompt_tokens, new_tokens, num_ranks):
        self.name, self.spec = name, f"prompt={prompt_tokens},gen={new_tokens},requests={count}"
        numbers = random.Random(1)
        # Log-probabilities are in the answers because tokens alone would hide small differences.
        self.requests = [{"prompt": [numbers.randrange(3, 4000) for _ in range(prompt_tokens)], "max_tokens": new_tokens,
                          "ignore_eos": True, "temperature": 0, "logprobs": 1} for _ in range(count)]
        batch = -(-count // num_ranks)
        self.flags = ["--batch-size", batch, "--prefill-chunk", batch * prompt_tokens,
                      "--context-length", prompt_tokens + new_tokens]

    def tokens_and_seconds(self, stats):
        if self.name == "prefill":
            return stats["computed_prompt_tokens"], stats["seconds"]["prefill"]
        # The step of the prompts gives each request its first token.
        return stats["generated_tokens"] - stats["requests"], stats["seconds"]["decode"]


def busy_s():
    """Returns the seconds for which this machine's CPUs were not idle, since an unknown moment."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n")[0].split()
    return time.monotonic() * os.cpu_count() - (int(fields[4]) + int(fields[5])) / TICKS_PER_S


def budget_of_rank(num_ranks):
    """Returns an equal share of three quarters of the memory that is free."""
    free = re.search(r"MemAvailable: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text())
    return f"{int(free.group(1)) * 1024 * 3 // 4 // num_ranks}B"


class Bench:
    def __init__(self, args, network, folder):
        self.args, self.network, self.folder = args, network, pathlib.Path(folder)
        self.memory = args.memory or budget_of_rank(args.ranks)
        self.agent = self.folder / "agent.sh"
        self.agent.write_text(AGENT.format(prefix=network.prefix))
        self.agent.chmod(0o700)
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < args.ranks * args.threads:
            print(f"note: {args.ranks} ranks with {args.threads} threads share {len(cpus)} CPUs, so they delay each other\n")
        self.cpus = [",".join(str(cpus[(rank * args.threads + thread) % len(cpus)]) for thread in range(args.threads))
                     for rank in range(args.ranks)]
        self.hashes = {}    # by model and workload
        self.notes = set()

    def mpirun(self, *arguments):
        """Runs a command of penstock on all ranks, each on its own CPUs.

        Returns the finished process, and how many CPUs other processes used in the meantime.
        """
        hosts = ",".join(self.network.address(rank) for rank in range(self.args.ranks))
        # Only TCP joins the ranks, and the first rank's daemon starts all others by the agent.
        settings = {"pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": self.network.SUBNET,
                    "oob_tcp_if_include": self.network.SUBNET, "plm": "rsh", "plm_rsh_agent": self.agent,
                    "plm_rsh_no_tree_spawn": 1, "orte_tmpdir_base": self.folder}
        pinned = 'exec taskset -c "$(echo "$RANK_CPUS" | cut -d: -f$((OMPI_COMM_WORLD_RANK + 1)))" "$@"'
        line = ["ip", "netns", "exec", self.network.ranks[0], "mpirun", "-n", self.args.ranks, "--host", hosts,
                "--bind-to", "none", "-x", f"RANK_CPUS={':'.join(self.cpus)}",
                *(part for name, value in settings.items() for part in ("--mca", name, value)),
                "sh", "-c", pinned, "sh", self.args.penstock, *arguments]
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        start, busy, own = time.monotonic(), busy_s(), {}
        with subprocess.Popen([str(part) for part in line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True) as process:
            try:
                while time.monotonic() < start + HANG_S:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        stdout, stderr = process.communicate(timeout=SAMPLE_S)
                        break
                    own |= self.network.cpu_s()
                else:
                    raise SystemExit(f"{shlex.join(process.args)}: does not end")
            except BaseException:
                process.terminate()     # what does not end now ends with the namespaces
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=5)
                process.kill()
                raise
        others = (busy_s() - busy - sum(own.values())) / (time.monotonic() - start)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr), others

    def run(self, model, workload, form, *more):
        """Runs the workload; returns what was measured."""
        source, output, stats = (self.folder / name for name in ("in.jsonl", "out.jsonl", "stats.json"))
        source.write_text("".join(json.dumps(request) + "\n" for request in workload.requests))
        output.unlink(missing_ok=True)
        policy = self.folder / "policy.json"
        policy.write_text(json.dumps({} if form == "auto" else {"expert_groups": int(form)}))
        before = self.network.sent_bytes()
        done, others = self.mpirun("run", "--quiet", "--model", model, "--input", source, "--output", output,
                                   "--stats", stats, "--threads", self.args.threads, "--memory", self.memory,
                                   "--policy", policy, *workload.flags, *shlex.split(self.args.penstock_flags), *more)
        if "this build has no MPI" in done.stderr:
            skip("the program was built without MPI")
        errors = [line for line in done.stderr.splitlines() if line.startswith("penstock: error")]
        if errors:
            raise SystemExit(f"{model}, {workload.name}, form {form}: {errors[0]}")
        penstock_program.succeeded(done)
        numbers = json.loads(stats.read_text())
        self.check_answers(model, workload, form, output)
        if numbers["policy"]["expert_slots"] < numbers["policy"]["experts"]:
            self.notes.add(f"note: {pathlib.Path(model).name}: not all experts fit into memory, so some stream from disk")
        tokens, seconds = workload.tokens_and_seconds(numbers)
        whole_s = numbers["seconds"]["prefill"] + numbers["seconds"]["decode"]
        sent_bytes = max(after - first for after, first in zip(self.network.sent_bytes(), before, strict=True))
        # Every row of a layer sends about as much, so the rows that are not timed are left out by their number.
        rows = numbers["computed_prompt_tokens"] + numbers["generated_tokens"] - numbers["requests"]
        return {"tokens": tokens, "seconds": seconds, "other_cpus": others, "load_s": numbers["seconds"]["load"],
                "busy": {name: lane["busy"] / whole_s for name, lane in numbers["lanes"].items()},
                "sent_bytes": int(sent_bytes * tokens / rows)}

    def probe(self, model):
        """Measures rank 0's machine and the network; returns the file."""
        output = self.folder / "probe.json"
        done, _ = self.mpirun("probe", "--quiet", "--model", model, "--output", output)
        penstock_program.succeeded(done)
        return output

    def predicted_s(self, model, workload, form, hardware):
        policy = self.folder / "policy.json"
        policy.write_text(json.dumps({} if form == "auto" else {"expert_groups": int(form)}))
        program = penstock_program.Program(self.args.penstock, False)
        result = program.json("simulate", "--model", model, "--hardware", hardware, "--ranks", self.args.ranks, "--threads",
                              self.args.threads, "--memory", self.memory, "--policy", policy, "--workload", workload.spec,
                              "--schedule", "on-demand", *workload.flags, *shlex.split(self.args.penstock_flags))
        return result["schedules"][0]["seconds"][workload.name]

    def check_answers(self, model, workload, form, output):
        lines = sorted(output.read_bytes().splitlines())
        if len(lines) != len(workload.requests):
            raise SystemExit(f"{model}, {workload.name}, form {form}: {len(lines)} answers")
        found = hashlib.sha256(b"\n".join(lines)).hexdigest()
        expected = self.hashes.setdefault((model, workload.name), found)
        if found != expected:
            raise SystemExit(f"{model}, {workload.name}, form {form}: other answers than before ({found}, {expected})")


class Patience:
    """The time that may be lost to other processes: waiting for them, and repeating runs that they disturbed."""

    def __init__(self, seconds):
        self.seconds = seconds

    def quiet_run(self, run):
        """Returns the record of a run that nobody disturbed; with no patience left, of any run."""
        while True:
            self.wait()
            start = time.monotonic()
            record = run()
            if record["other_cpus"] <= MANY_CPUS or self.seconds <= 0:
                return record
            self.seconds -= time.monotonic() - start

    def wait(self):
        """Waits until other processes rest."""
        while self.seconds > 0:
            before = busy_s()
            time.sleep(REST_S)
            if busy_s() - before < MANY_CPUS * REST_S:
                return
            self.seconds -= REST_S


def measure(bench, models, workloads, links, forms):
    """Yields a record for each run. Each round runs everything once."""
    cases = [(model, workload, link, form) for model in models for workload in workloads for link in links
             for form in forms]
    patience = Patience(bench.args.patience)
    for round_idx in range(bench.args.rounds):
        for model, workload, link, form in cases:
            bench.network.limit(link)
            record = {"model": model, "workload": workload.name, "link": link, "form": form, "round": round_idx,
                      **patience.quiet_run(lambda case=(model, workload, form): bench.run(*case))}
            print(f"  round {round_idx + 1}: {pathlib.Path(model).name}, {workload.name}, {link_name(link)}, form {form}: "
                  f"{record['seconds']:.2f} s; other processes used {record['other_cpus']:.2f} CPUs", file=sys.stderr,
                  flush=True)
            yield record


def write_traces(bench, models, workloads, links, forms):
    """Runs everything once more with traces of all ranks: traces cost time."""
    folder = pathlib.Path(bench.args.trace)
    folder.mkdir(parents=True, exist_ok=True)
    for model in models:
        for workload in workloads:
            for link in links:
                bench.network.limit(link)
                for form in forms:
                    link_text = "unlimited" if link == UNLIMITED else f"{link:g}gbit"
                    name = f"{pathlib.Path(model).name}-{workload.name}-{link_text}-{form}.json"
                    bench.run(model, workload, form, "--trace", folder / name)


def print_predictions(bench, records, models, workloads, links, forms):
    print("\n| model | link | workload | form | measured, s | predicted | predicted / measured |\n"
          "| --- | --- | --- | --- | --- | --- | --- |")
    for model in models:
        for link in links:
            bench.network.limit(link)
            hardware = bench.probe(model)
            for workload in workloads:
                for form in forms:
                    measured = statistics.median(
                        record["seconds"] for record in records
                        if (record["model"], record["workload"], record["link"], record["form"]) ==
                        (model, workload.name, link, form))
                    predicted = bench.predicted_s(model, workload, form, hardware)
                    print(f"| {pathlib.Path(model).name} | {link_name(link)} | {workload.name} | {form} | {measured:.2f} | "
                          f"{predicted:.2f} | {predicted / measured:.2f} |", flush=True)


def busy_text(busy):
    return ", ".join(f"{name} {share:.0%}" for name, share in busy.items() if share >= 0.005)


def print_table(records, model, workloads, links, forms, base):
    print(f"\n{pathlib.Path(model).name}\n\n"
          f"| link | workload | form | tokens/s | seconds | ratio to form {base} | exchange, s | hidden | busy | MB sent | "
          "least s |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")

    def of(workload, link, form):
        return [record for record in records if (record["model"], record["workload"], record["link"], record["form"]) ==
                (model, workload, link, form)]

    def seconds(*which):
        return statistics.median(record["seconds"] for record in of(*which))

    for workload in (workload.name for workload in workloads):
        free = seconds(workload, UNLIMITED, base)
        for link in links:
            first = seconds(workload, link, base)
            exchange = first - free
            for form in forms:
                taken, last = seconds(workload, link, form), of(workload, link, form)[-1]
                told = link != UNLIMITED and exchange >= LEAST_EXCHANGE * free
                hidden = f"{(first - taken) / min(exchange, free):.0%}" if told and form != base else "-"
                least = "-" if link == UNLIMITED else f"{last['sent_bytes'] * 8e-9 / link:.2f}"
                print(f"| {link_name(link)} | {workload} | {form} | {last['tokens'] / taken:.1f} | {taken:.2f} | "
                      f"{first / taken:.2f} | {f'{exchange:.2f}' if told else '-'} | {hidden} | {busy_text(last['busy'])} | "
                      f"{last['sent_bytes'] / 1e6:.0f} | {least} |")


def skip(why):
    print(f"skipped: {why}", flush=True)
    raise SystemExit(SKIPPED)


def check_machine():
    for name in ("ip", "tc", "taskset", "mpirun"):
        if shutil.which(name) is None:
            skip(f"there is no {name}")
    if os.geteuid() != 0:
        skip("only root may make network namespaces")
    if "Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout:
        skip("mpirun is not Open MPI's")


def end(number, _):
    print(f"ended by {signal.Signals(number).name}", file=sys.stderr)
    raise SystemExit(128 + number)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=penstock_program.DEFAULT)
    parser.add_argument("--penstock-flags", default="", help="more flags of penstock run, in one argument")
    parser.add_argument("--model", required=True, action="append", help="a folder or a store; may be given several times")
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 3, 4))
    parser.add_argument("--threads", type=int, default=1, help="threads of each rank, and its CPUs (%(default)s)")
    parser.add_argument("--memory", help="budget of each rank; default: a share of three quarters of what is free")
    parser.add_argument("--rates", default="0.2,1,10", help="Gbit/s of the links, besides one without a limit (%(default)s)")
    parser.add_argument("--forms", default="auto,1,2,4,8", help="numbers of expert groups, and auto (%(default)s); others "
                        "are compared with form 1, or without it with the first one")
    parser.add_argument("--workloads", default="prefill,decode", help="default: %(default)s")
    parser.add_argument("--prompt", type=int, default=128, help="prefill: tokens of a prompt (%(default)s)")
    parser.add_argument("--sequences", type=int, default=128, help="decode: sequences of all ranks (%(default)s)")
    parser.add_argument("--new", type=int, default=17, help="decode: new tokens of a sequence (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=0, metavar="S", help="seconds that may be lost, in all, to "
                        "other processes: waiting for them, and repeating runs that they disturbed (%(default)s)")
    parser.add_argument("--trace", metavar="DIR", help="then run each case once more, and keep Chrome traces of all ranks")
    parser.add_argument("--predict", action="store_true", help="then measure each link with penstock probe, and compare "
                        "what penstock simulate predicts from it")
    parser.add_argument("--output", help="JSON of all measurements, one line each")
    args = parser.parse_args()
    args.links = [UNLIMITED, *map(float, args.rates.split(","))]
    args.forms = args.forms.split(",")
    if not all(form == "auto" or form.isdecimal() for form in args.forms):
        parser.error("--forms takes auto and numbers")
    if min(args.links[1:]) <= 0 or args.new < 2 or args.rounds < 1 or not 1 <= args.prompt <= PREFILL_TOKENS:
        parser.error("a number is too small or too large")
    kinds = {"prefill": (PREFILL_TOKENS // args.prompt, args.prompt, 1),
             "decode": (args.sequences, DECODE_PROMPT_TOKENS, args.new)}
    if not set(args.workloads.split(",")) <= set(kinds):
        parser.error("--workloads takes prefill and decode")
    args.workloads = [Workload(name, *kinds[name], args.ranks) for name in args.workloads.split(",")]
    return args


def compare(args, network, folder):
    bench = Bench(args, network, folder)
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    print(f"{cpu.group(1) if cpu else 'unknown processor'}, {os.cpu_count()} CPUs, {args.ranks} ranks with {args.threads} "
          f"threads each, {args.rounds} rounds\n")
    measure_links(network, args.links)
    records = []
    base = "1" if "1" in args.forms else args.forms[0]
    cases = args.model, args.workloads, args.links, args.forms
    with open(args.output, "w", encoding="utf-8") if args.output else contextlib.nullcontext() as file:
        for record in measure(bench, *cases):
            records.append(record)
            if file:
                print(json.dumps(record), file=file, flush=True)
    if args.trace:
        write_traces(bench, *cases)
    for model in args.model:
        print_table(records, model, *cases[1:], base)
    print(FORMULA.format(base=base, least=LEAST_EXCHANGE))
    if args.predict:
        print_predictions(bench, records, *cases)
    if disturbed := sum(record["other_cpus"] > MANY_CPUS for record in records):
        bench.notes.add(f"note: in {disturbed} of {len(records)} runs other processes used more than {MANY_CPUS} CPUs: the "
                        "times are not comparable")
    for note in sorted(bench.notes):
        print(note)
    for (model, workload), found in bench.hashes.items():
        print(f"{pathlib.Path(model).name}, {workload}: all runs gave the same answers, SHA-256 {found}")


def main():
    args = parse_args()
    check_machine()
    # These signals end the script as an exception does, so that the namespaces are removed.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        network = Network(args.ranks)
        stack.callback(network.remove)
        try:
            network.build()
            for link in reversed(args.links):
                network.limit(link)
        except CommandFailed as failure:
            skip(f"this machine cannot make the links: {failure}")
        compare(args, network, folder)


if __name__ == "__main__":
    try:
        main()
    except CommandFailed as failure:
        sys.exit(str(failure))
