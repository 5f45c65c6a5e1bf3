#!/usr/bin/env python3
"""Proves that a job under mpirun gives the bytes of one process: for 2 to 4 ranks, several schedules and budgets, and
after random ranks were killed or stopped and the job continued with another number of ranks.

Exits with 77 (skipped) if there is no mpirun, or if the program was built without MPI.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import program

# As root, and with more ranks than processors. MPI must not take the cores of the ranks for itself.
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
STOP_S = 200    # a stopped rank ends the job after 20 s, or 60 s where ranks begin or end; a machine may be slow
LAUNCHER_S = 30    # mpirun ends at once when its ranks have ended, unless it hangs


class Ranks:
    def __init__(self, penstock, folder, flags):
        self.penstock, self.folder, self.flags = penstock, folder, flags

    def start(self, num_ranks, output, *flags, model=program.DEMO_MODEL):
        command = self.penstock.command("run", "--model", model, "--output", output, *self.flags, *flags)
        return subprocess.Popen(["mpirun", "-n", str(num_ranks), *command], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True)

    def run(self, num_ranks, output, *flags, **more):
        process = self.start(num_ranks, output, *flags, **more)
        _, stderr = process.communicate(timeout=program.HANG_S)
        return process.returncode, stderr


def processes_of(group):
    """Returns the pids of the ranks that an mpirun with this process group has started, by rank."""
    pids = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks = [entry.split(b"=")[1] for entry in environment if entry.startswith(b"OMPI_COMM_WORLD_RANK=")]
        if ranks and int(fields[3]) == group:   # the session
            pids[int(ranks[0])] = int(folder.name)
    return pids


def wait_for_end(process, victim):
    """Waits until the job has ended. A rank that was stopped when the job was done goes on: mpirun waits for it.

    Returns whether mpirun had to be killed. Debian 12's mpirun sometimes waits for itself when all ranks have ended
    (PMIx_server_finalize).
    """
    deadline, last_seen = time.monotonic() + STOP_S, time.monotonic()
    while process.poll() is None:
        assert time.monotonic() < deadline, "a job with a stopped rank did not end"
        left = set(processes_of(process.pid).values())
        if left:
            last_seen = time.monotonic()
        elif time.monotonic() - last_seen > LAUNCHER_S:
            process.kill()
            process.wait()
            return True
        if left <= {victim}:
            try:
                os.kill(victim, signal.SIGCONT)
            except ProcessLookupError:
                pass
        time.sleep(0.1)
    process.stderr.close()
    return False


def check_errors(ranks):
    output = ranks.folder / "refused.jsonl"
    for model, flags, code, text in (("/nowhere", (), 3, "/nowhere"),
                                     (program.DEMO_MODEL, ("--memory", "1MiB"), 6, "least budget")):
        found, stderr = ranks.run(2, output, *flags, model=model)
        lines = [line for line in stderr.splitlines() if line.startswith("penstock: error")]
        assert found == code and len(lines) == 1 and text in lines[0], (flags, found, stderr)
    found, stderr = ranks.run(9, output)    # the demo model has eight experts a layer
    assert found == 2 and "9 ranks for 8 experts" in stderr, (found, stderr)
    found, stderr = ranks.run(3, output, "--frobnicate")
    assert found == 2 and stderr.count("penstock: error") == 1, (found, stderr)
    assert not output.exists() or output.read_bytes() == b"", "a refused job has results"


def check_placement(ranks, trace, expected):
    """Experts may lie on any rank, and on several. All ranks need the same placement."""
    output = ranks.folder / "placed.jsonl"
    code, stderr = ranks.run(3, output, "--expert-placement", f"{trace},replicas=1", "--memory", "20MiB")
    assert code == 0 and program.sorted_by_id(output) == expected, stderr
    refused = ranks.folder / "refused.jsonl"
    flags = ("--expert-placement", trace, "--parallel", "experts=tp")
    code, stderr = ranks.run(2, refused, *flags)
    assert code == 2 and "--expert-placement: with --parallel experts=tp" in stderr, (code, stderr)
    command = ranks.penstock.command("run", "--model", program.DEMO_MODEL, "--output", refused, *ranks.flags)
    done = subprocess.run(["mpirun", "-n", "1", *command, "--expert-placement", trace, ":", "-n", "1", *command],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
                          timeout=program.HANG_S)
    lines = [line for line in done.stderr.splitlines() if line.startswith("penstock: error")]
    assert done.returncode == 2 and len(lines) == 1 and "another placement of experts" in lines[0], done.stderr


def check_probe(ranks):
    """A probe under mpirun also measures the network, and plans for several machines use it."""
    probe = ranks.folder / "probe.json"
    run = ["mpirun", "-n", "2", *ranks.penstock.command("probe", "--disk", "none", "--seconds", "1", "--output", probe)]
    subprocess.run(run, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    links = {link["name"]: link for link in json.loads(probe.read_text())["links"]}
    assert links["between_ranks"]["bytes_per_second"] > 0, links
    done = ranks.penstock.run("simulate", "--model", program.DEMO_MODEL, "--hardware", probe, "--memory", "64MiB",
                              "--workload", "prompt=16,gen=8,requests=8", "--schedule", "on-demand", "--ranks", 2, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schedules"][0]["lanes"]["to_ranks"] > 0, done.stdout


def check_plan(ranks, expected):
    """Rank 0 plans for all ranks, with the network that they measure; the others take its policy."""
    ranks.penstock.run("probe", "--model", program.DEMO_MODEL, "--threads", 1, "--seconds", 1, "--quiet")
    output, stats = ranks.folder / "planned.jsonl", ranks.folder / "planned.json"
    code, stderr = ranks.run(2, output, "--policy", "auto", "--threads", 1, "--memory", "1GiB", "--stats", stats)
    assert code == 0 and program.sorted_by_id(output) == expected, stderr
    assert json.loads(stats.read_text())["tokens_per_second"]["predicted_generation"] > 0, "no prediction"


def check_bench(ranks):
    """All ranks measure together, and rank 0 alone writes."""
    command = ranks.penstock.command("bench", "--model", program.DEMO_MODEL, "--memory", "64MiB", "--prefill", 33,
                                     "--decode", "1,5", "--steps", 2, "--repetitions", 1, "--json", "--quiet")
    done = subprocess.run(["mpirun", "-n", "2", *command], env=ENVIRONMENT, capture_output=True, text=True,
                          timeout=program.HANG_S)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    sizes = [(line["kind"], line.get("tokens", line.get("sequences"))) for line in lines]
    assert sizes == [("prefill", 33), ("decode", 1), ("decode", 5)], (done.stdout, done.stderr)
    assert all(line["tokens_per_second"] > 0 and line["lanes"]["to_ranks"] > 0 for line in lines), lines


def check_cut_experts(ranks):
    """Answers of experts that are cut depend on the number of ranks, so a job must go on with as many."""
    store, output = ranks.folder / "store", ranks.folder / "cut.jsonl"
    ranks.penstock.run("pack", "--model", program.DEMO_MODEL, "--output", store, "--quiet")
    cut = ["--parallel", "experts=tp"]
    code, stderr = ranks.run(2, output, *cut, model=store)
    assert code == 0, f"exit {code}: {stderr}"
    other = ranks.folder / "cut2.jsonl"
    code, stderr = ranks.run(2, other, "--parallel", "attention=tp,experts=tp", "--memory", "20MiB", model=store)
    assert code == 0 and program.sorted_by_id(other) == program.sorted_by_id(output), stderr
    code, stderr = ranks.run(3, output, "--resume", *cut, model=store)
    assert code == 4 and "experts_cut_for_ranks" in stderr, (code, stderr)
    code, stderr = ranks.run(2, ranks.folder / "refused.jsonl", *cut)
    assert code == 2 and "penstock pack" in stderr, (code, stderr)


def check_faults(ranks, expected, rng, num_kills, num_stops, whole_s):
    """Kills or stops random ranks at random times, and continues each job with another number of ranks."""
    num_done = num_partial = num_hung = 0
    while num_done < num_kills + num_stops:
        output = ranks.folder / f"killed{num_done}.jsonl"
        while True:
            num_ranks = rng.randint(2, 4)
            process = ranks.start(num_ranks, output, "--resume")
            time.sleep(rng.uniform(0, 1.5 * whole_s))
            pids = processes_of(process.pid)
            if len(pids) < num_ranks or num_done >= num_kills + num_stops:
                code, stderr = process.wait(timeout=program.HANG_S), process.stderr.read()
                assert code == 0, f"exit {code}: {stderr}"
                break
            victim = pids[rng.randrange(num_ranks)]
            try:
                os.kill(victim, signal.SIGKILL if num_done < num_kills else signal.SIGSTOP)
            except ProcessLookupError:
                pass
            num_hung += wait_for_end(process, victim)
            assert not processes_of(process.pid), "a rank outlived its job"
            num_done += 1
            num_partial += output.exists() and output.stat().st_size > 0
        assert program.sorted_by_id(output) == expected, "a resumed job gave other bytes"
    return num_partial, num_hung


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--stops", type=int, default=1)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if shutil.which("mpirun") is None:
        print("skipped: there is no mpirun")
        sys.exit(77)
    rng = random.Random(args.seed)
    penstock = program.Penstock(args.penstock)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source = folder / "requests.jsonl"
        program.write_requests(source, args.requests, args.seed, 24)
        flags = ["--input", source, "--quiet", "--context-length", 512]
        trace = folder / "routing.bin"
        penstock.run_job(program.DEMO_MODEL, source, folder / "whole.jsonl", "--quiet", "--context-length", 512,
                         "--record-routing", trace)
        expected = program.sorted_by_id(folder / "whole.jsonl")
        ranks = Ranks(penstock, folder, flags)
        code, stderr = ranks.run(2, folder / "two.jsonl")
        if "this build has no MPI" in stderr:
            print("skipped: the program was built without MPI")
            sys.exit(77)
        assert code == 0, f"exit {code}: {stderr}"
        assert program.sorted_by_id(folder / "two.jsonl") == expected, "two ranks gave other bytes"
        check_errors(ranks)
        check_placement(ranks, trace, expected)
        check_probe(ranks)
        check_plan(ranks, expected)
        check_bench(ranks)
        cases = [(num_ranks, budget, schedule) for num_ranks in (2, 3, 4) for budget in ("20MiB", "64MiB")
                 for schedule in ("klotski", "on-demand", "zigzag", "hybrid")]
        for number, (num_ranks, budget, schedule) in enumerate(rng.sample(cases, 8)):
            output, policy = folder / f"case{number}.jsonl", folder / f"policy{number}.json"
            policy.write_text(json.dumps({"expert_groups": rng.randint(0, 4)}))
            split = rng.choice(([], ["--parallel", "attention=tp"]))
            split = split + rng.choice(([], ["--expert-placement", f"{trace},replicas={rng.randint(0, 2)}"]))
            code, stderr = ranks.run(num_ranks, output, "--memory", budget, "--schedule", schedule, "--batch-size", 4,
                                     "--policy", policy, *split)
            assert code == 0, f"{num_ranks} ranks, {budget}, {schedule}: exit {code}: {stderr}"
            assert program.sorted_by_id(output) == expected, f"{num_ranks} ranks, {budget}, {schedule}: other bytes"
        check_cut_experts(ranks)
        start = time.monotonic()
        ranks.run(2, folder / "timed.jsonl")
        num_partial, num_hung = check_faults(ranks, expected, rng, args.kills, args.stops, time.monotonic() - start)
        code, _ = ranks.run(3, folder / "two.jsonl", "--resume")
        assert code == 0, "a finished job is not finished for other ranks"
        print(f"8 jobs of 2 to 4 ranks, {args.kills} kills and {args.stops} stops of ranks ({num_partial} with results "
              f"on disk, {num_hung} where mpirun hung without ranks): every job complete and equal")


if __name__ == "__main__":
    main()
