#!/usr/bin/env python3
"""Measures Penstock beside llama.cpp and ik_llama.cpp on the same weights, all resident in memory, on the CPU.

usage: compare.py --model DIR --gguf FILE [options]            prefill and decode rates
       compare.py --model DIR --gguf FILE --check [options]    do all of them compute the same model?
       compare.py --same-file --gguf FILE ...                  all read the same GGUF file

DIR is a Hugging Face folder and FILE the same weights as GGUF (tools/synth/make_model.py writes both). PENSTOCK_LLAMA_CPP
and PENSTOCK_IK_LLAMA_CPP name the peers' build trees; a peer without one is left out. README.md explains how to get and
build them.

Each round runs the engines one after another. Each engine is a separate process that loads the model again (not timed), so
only one of them is in memory. Medians of the rounds and Penstock's ratio to the better peer go to stdout as Markdown, all
numbers to --output.
streaming.py does the same for models that do not fit into memory.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PENSTOCK = HERE.parents[2] / "build/release/bin/penstock"
PENSTOCK_NAME = "penstock"
# For each engine: environment variable of its build tree, defines of the driver, flags of the driver.
PEERS = {
    "llama.cpp": ("PENSTOCK_LLAMA_CPP", [], []),
    "ik_llama.cpp": ("PENSTOCK_IK_LLAMA_CPP", ["-DPEER_IK"], []),
    "ik_llama.cpp-rtr": ("PENSTOCK_IK_LLAMA_CPP", ["-DPEER_IK"], ["--repack"]),
}
PROMPT = [5, 100, 2000, 3001, 77, 900, 41, 1234]     # for --check
CHECK_STEPS = 16


class CommandError(Exception):
    """A command failed; the message says which and why."""


def fail(message):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def run(command, environment=None):
    """Returns the standard output of a command that must succeed."""
    command = [str(word) for word in command]
    # Penstock takes PENSTOCK_X for its flag --x, so the variables that name the peers' build trees are removed.
    set_for_peers = {variable for variable, _, _ in PEERS.values()}
    inherited = {name: value for name, value in os.environ.items() if name not in set_for_peers}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**inherited, **(environment or {})})
    if done.returncode != 0:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        raise CommandError(f"{shlex.join(command)}: {how}\n{done.stderr[-2000:]}")
    return done.stdout


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def cpu_seconds():
    """Returns the CPU seconds that this machine was busy or that others stole, and those of this process's finished
    children."""
    words = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _iowait, interrupts, soft_interrupts, stolen = map(int, words)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = (user + nice + system + interrupts + soft_interrupts + stolen) / os.sysconf("SC_CLK_TCK")
    return busy, usage.ru_utime + usage.ru_stime


# Penstock

def measure_penstock(args):
    """Runs Penstock's benchmark and returns its JSON lines, which rates() reads. No other place knows this command line."""
    command = [*args.launcher, args.penstock, "bench", "--model", args.model, "--threads", args.threads, "--json",
               "--prefill", ",".join(map(str, args.prefill)) or "0", "--decode", ",".join(map(str, args.decode)) or "0",
               "--context", args.context, *args.penstock_flags]
    return json_lines(run(command))


def penstock_logprobs(args):
    """Returns the log-probabilities of the tokens that Penstock chooses greedily after PROMPT."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        request = {"prompt": PROMPT, "max_tokens": CHECK_STEPS, "temperature": 0, "ignore_eos": True, "logprobs": 1}
        (folder / "in.jsonl").write_text(json.dumps(request) + "\n")
        run([args.penstock, "run", "--model", args.model, "--input", folder / "in.jsonl", "--output", folder / "out.jsonl",
             "--threads", args.threads, "--quiet", *args.penstock_flags])
        result = json.loads((folder / "out.jsonl").read_text())
        return result["response"]["body"]["choices"][0]["logprobs"]["token_logprobs"]


# Peers

class Peer:
    """A build tree of llama.cpp or ik_llama.cpp with the driver compiled against it."""

    def __init__(self, name, folder, kinds):
        variable, defines, self.flags = kinds[name]
        self.build = pathlib.Path(os.environ[variable]).resolve()
        cache = self.build / "CMakeCache.txt"
        if not cache.exists():
            fail(f"{variable}={self.build}: this is not a CMake build tree (CMakeCache.txt is missing)")
        source = pathlib.Path(re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache.read_text(), re.M).group(1))
        libraries = sorted(
            {path.parent for path in self.build.rglob("lib*.so") if re.match(r"lib(llama|ggml)\b", path.name)})
        if not any((path / "libllama.so").exists() for path in libraries):
            fail(f"{variable}={self.build}: no libllama.so there; build the target llama with shared libraries")
        self.driver = folder / f"peer_bench_{name}"
        names = sorted({path.name for place in libraries for path in place.glob("libggml*.so")})
        run(["c++", "-std=c++20", "-O2", *defines, "-I", source / "include", "-I", source / "ggml/include",
             HERE / "peer_bench.cc",
             "-o", self.driver, *(f"-L{path}" for path in libraries), *(f"-Wl,-rpath,{path}" for path in libraries),
             "-lllama",
             *(f"-l{name.removeprefix('lib').removesuffix('.so')}" for name in names)])

    def run(self, args, flags):
        """Returns the driver's JSON lines."""
        command = [*args.launcher, self.driver, "--model", args.gguf, "--threads", args.threads, "--ubatch", args.ubatch,
                   *flags, *self.flags]
        return json_lines(run(command, args.environment))

    def measure(self, args):
        flags = ["--prefill", ",".join(map(str, args.prefill)), "--decode", ",".join(map(str, args.decode)), "--context",
                 args.context,
                 "--steps", args.steps, "--warmup", args.warmup, "--seconds", args.seconds, "--repetitions",
                 args.repetitions]
        return self.run(args, flags)

    def logprobs(self, args):
        lines = self.run(args, ["--greedy", CHECK_STEPS, "--prompt", ",".join(map(str, PROMPT))])
        return next(line for line in lines if line["kind"] == "greedy")["logprobs"]

    def stock(self, args):
        """Returns the text that the library's own benchmarks print."""
        texts = []
        benches = {
            "llama-bench": ["-p", ",".join(map(str, args.prefill)), "-n", args.steps, "-r", args.repetitions],
            "llama-batched-bench": ["-npp", args.context, "-ntg", args.steps, "-npl", ",".join(map(str, args.decode)), "-fa",
                                    "on",
                                    "-c", max(args.decode) * (args.context + args.steps)],
        }
        for name, flags in benches.items():
            path = self.build / "bin" / name
            if path.exists():
                texts.append(run([path, "-m", args.gguf, "-t", args.threads, *flags], args.environment))
        return "\n".join(texts)


def find_peers(kinds, engines, folder):
    """Compiles drivers into `folder` for those `engines` of `kinds` (see PEERS) whose build trees the environment names."""
    return {name: Peer(name, pathlib.Path(folder), kinds) for name in engines if name in kinds and os.environ.get(
        kinds[name][0])}


def rates(lines):
    """Returns {("prefill", tokens), ("decode", sequences) or ("job", sequences): tokens per second} from JSON lines."""
    sizes = {"prefill": "tokens", "decode": "sequences", "job": "sequences"}
    return {(line["kind"], line[sizes[line["kind"]]]): line["tokens_per_second"] for line in lines
            if line.get("kind") in sizes}


# Modes

def check(args, peers):
    """Compares greedy log-probabilities, which agree only if the chosen tokens agree. Returns whether all engines agree."""
    found = {PENSTOCK_NAME: penstock_logprobs(args)} if args.with_penstock else {}
    found |= {name: peer.logprobs(args) for name, peer in peers.items()}
    first, *others = found
    print("| engine | difference of the first log-probability | largest while tokens agree | tokens that agree |\n"
          "| --- | --- | --- | --- |")
    good = True
    for name in others:
        differences = [abs(a - b) for a, b in zip(found[first], found[name], strict=True)]
        agree = next((i for i, difference in enumerate(differences) if difference > args.tolerance), CHECK_STEPS)
        print(f"| {name} to {first} | {differences[0]:.2g} | {max(differences[:agree], default=0):.2g} | {agree} of "
              f"{CHECK_STEPS} |")
        good = good and agree == CHECK_STEPS
    return good


def table(rows, results):
    """Returns a Markdown table with a row for each (key of rates(), text) of `rows`: medians of the rounds
    (smallest-largest)."""
    names = list(results)
    peers = [name for name in names if name != PENSTOCK_NAME]
    with_ratio = PENSTOCK_NAME in names and peers
    lines = ["| | " + " | ".join(names) + (" | penstock / better peer |" if with_ratio else " |"),
             "| --- " * (1 + len(names) + bool(with_ratio)) + "|"]
    for key, what in rows:
        cells, medians = [], {}
        for name in names:
            values = [rate[key] for rate in results[name] if key in rate]
            if not values:
                cells.append("-")
                continue
            medians[name] = statistics.median(values)
            digits = 1 if medians[name] >= 10 else 2
            spread = f" ({min(values):.{digits}f}-{max(values):.{digits}f})" if len(values) > 1 else ""
            cells.append(f"{medians[name]:.{digits}f}{spread}")
        if with_ratio:
            better = max((medians[name] for name in peers if name in medians), default=0)
            cells.append(f"{medians[PENSTOCK_NAME] / better:.2f}" if better and PENSTOCK_NAME in medians else "-")
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rate_rows(args):
    return [(("prefill", size), f"prefill {size}") for size in args.prefill] + \
           [(("decode", size), f"decode {size} x {args.context}") for size in args.decode]


def measure(args, engines):
    """Runs every engine (a function from args to JSON lines) in each round. Returns {name: [rates() of each round]}."""
    results, raw = {name: [] for name in engines}, []
    for number in range(args.rounds):
        # Every other round goes backwards, so that no engine always follows the same one.
        for name in list(engines)[::-1 if number % 2 else 1]:
            start, (busy, own) = time.time(), cpu_seconds()
            lines = engines[name](args)
            found = rates(lines)
            seconds, (busy_after, own_after) = time.time() - start, cpu_seconds()
            others = max(0, (busy_after - busy) - (own_after - own)) / seconds
            results[name].append(found)
            raw.append({"round": number, "engine": name, "started": start, "seconds": seconds,
                        "cores_used_by_others": others,
                        "lines": lines})
            shown = ", ".join(f"{kind} {size}: {rate:.4g}" for (kind, size), rate in found.items())
            print(f"round {number + 1} of {args.rounds}, {name}: others used {others:.2f} cores; {shown}",
                  file=sys.stderr, flush=True)
            if args.output:
                settings = {key: str(value) for key, value in vars(args).items()}
                args.output.write_text(json.dumps({"settings": settings, "measurements": raw}, indent=1) + "\n")
    return results


# Command line

def numbers(text):
    return [int(word) for word in text.split(",") if word]


def make_parser(description, kinds):
    """Returns a parser of the options that streaming.py shares."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, metavar="DIR",
                        help="Hugging Face folder or packed store, for Penstock")
    parser.add_argument("--gguf", type=pathlib.Path, required=True, metavar="FILE", help="the same weights, for the peers")
    parser.add_argument("--same-file", action="store_true", help="Penstock reads the GGUF file, too, instead of --model")
    parser.add_argument("--engines", default=",".join([PENSTOCK_NAME, *kinds]),
                        help="default: those of %(default)s that are present")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--ubatch", type=int, default=512, help="rows that a peer computes at once")
    parser.add_argument("--penstock", type=pathlib.Path, default=PENSTOCK, metavar="PROGRAM")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="all numbers as JSON")
    parser.set_defaults(launcher=[], environment={})
    return parser


def check_engines(parser, args, kinds):
    args.engines = args.engines.split(",")
    for name in args.engines:
        if name not in (PENSTOCK_NAME, *kinds):
            parser.error(f"no engine {name}; there are {PENSTOCK_NAME}, {', '.join(kinds)}")
    args.with_penstock = PENSTOCK_NAME in args.engines
    if args.same_file:
        args.model = args.gguf
    if args.with_penstock and not args.model:
        parser.error("penstock needs --model or --same-file")


def parse_args():
    parser = make_parser(__doc__, PEERS)
    parser.add_argument("--prefill", type=numbers, default=[512, 2048], metavar="TOKENS,...")
    parser.add_argument("--decode", type=numbers, default=[1, 16, 64, 128], metavar="SEQUENCES,...")
    parser.add_argument("--context", type=int, default=128, help="tokens of each decoding sequence before the measured ones")
    parser.add_argument("--steps", type=int, default=32, help="maximum of a peer's decode steps")
    parser.add_argument("--seconds", type=int, default=10, help="a peer's measurement starts no step after this")
    parser.add_argument("--repetitions", type=int, default=3, help="maximum for a peer's prefill")
    parser.add_argument("--huge-pages", action="store_true", help="make glibc request huge pages for the peers' memory")
    parser.add_argument("--penstock-flags", type=shlex.split, default=[], metavar="FLAGS",
                        help="added to Penstock's command line")
    parser.add_argument("--check", action="store_true", help="compare greedy tokens instead of times")
    parser.add_argument("--tolerance", type=float, default=5e-3,
                        help="allowed difference in log-probabilities (--check); default: %(default)s")
    parser.add_argument("--stock", action="store_true", help="also print the results of the peers' own benchmarks")
    parser.set_defaults(warmup=2)
    args = parser.parse_args()
    check_engines(parser, args, PEERS)
    if args.huge_pages:
        args.environment = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    return args


def main():
    args = parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peers = find_peers(PEERS, args.engines, folder)
        if not peers:
            fail("no peer: set " + " or ".join(sorted({variable for variable, _, _ in PEERS.values()})) + " to a build tree")
        if args.check:
            return 0 if check(args, peers) else 1
        engines = {PENSTOCK_NAME: measure_penstock} if args.with_penstock else {}
        results = measure(args, engines | {name: peer.measure for name, peer in peers.items()})
        print(f"tokens/s, {args.threads} threads, {args.gguf.name}, medians of {args.rounds} rounds (smallest-largest)\n")
        print(table(rate_rows(args), results))
        for name, peer in peers.items() if args.stock else ():
            if name != "ik_llama.cpp-rtr":
                print(f"\n{name}, its own benchmarks:\n\n{peer.stock(args)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CommandError as error:
        fail(error)
