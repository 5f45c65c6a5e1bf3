#!/usr/bin/env python3
"""Measures Penstock beside llama.cpp and ik_llama.cpp on the same weights that do not fit into memory, on the CPU.

usage: streaming.py --memory-limit SIZE --model DIR --gguf FILE [options]           decode rates
       streaming.py --memory-limit SIZE --model DIR --gguf FILE --job [options]     a batch job from process start to end

DIR is a packed store (or a Hugging Face folder) and FILE the same weights as GGUF. SIZE is bytes, 2400MiB or a share of
FILE: 50%. Each measurement is a separate process in a new memory cgroup of that size. The process, its page cache and its
share of the kernel all count against the group. The page cache of DIR and FILE is dropped before. The peers map FILE and let
the kernel read; Penstock gets --memory, which is smaller than the group by --reserve. Build trees, rounds, output and the
rest are as in compare.py; README.md says more.
"""
import argparse
import json
import pathlib
import random
import resource
import shlex
import signal
import statistics
import sys
import tempfile
import time

import compare
from memory_group import GroupError, MemoryGroup, drop_cache, parse_size

# The same fields as in compare.py.
PEERS = {
    "llama.cpp": ("PENSTOCK_LLAMA_CPP", [], ["--mmap"]),
    "ik_llama.cpp": ("PENSTOCK_IK_LLAMA_CPP", ["-DPEER_IK"], ["--mmap"]),
    "ik_llama.cpp-prefetch": ("PENSTOCK_IK_LLAMA_CPP", ["-DPEER_IK"], ["--mmap", "--prefetch"]),
}


def blocks_read():
    """Returns how many blocks of 512 bytes finished children read from disks, page faults included."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock


def in_group(args, name, measure_one, **settings):
    """Returns the JSON lines of measure_one(args with `settings`), run in its own group; on failure, one line that says
    so."""
    left, whole = drop_cache([args.gguf] + ([args.model] if args.with_penstock else []))
    if left > whole / 100:
        print(f"{name}: another process keeps {left >> 20} MiB of the files in the page cache, where they cost the group "
              f"nothing",
              file=sys.stderr)
    with MemoryGroup(args.limit_bytes, args.cgroup) as group:
        start, read = time.monotonic(), blocks_read()
        try:
            lines = measure_one(argparse.Namespace(**{**vars(args), **settings, "launcher": group.launcher}))
        except compare.CommandError as error:
            why = "killed: the group's memory did not suffice" if group.was_killed() else str(error)
            print(f"{name}, {settings}: {why}", file=sys.stderr)
            return [{"kind": "failed", "why": why, **settings}]
        return [*lines, {"kind": "group", "seconds": time.monotonic() - start, "read_bytes": (blocks_read() - read) * 512,
                         "peak_bytes": group.peak_bytes(), "cached_before": left}]


# Decode rates: uses compare.py's functions with one process for each number of sequences.

def decode_with(name, measure_one):
    return lambda args: [line for size in args.decode for line in in_group(args, name, measure_one, decode=[size])]


# The job

def job_line(args, sequences, seconds):
    return {"kind": "job", "sequences": sequences, "requests": args.requests, "seconds": seconds,
            "tokens_per_second": args.requests * args.new_tokens / seconds}


def penstock_job(args):
    """Runs `penstock run` with args.sequences at once. Returns JSON lines: the job and Penstock's own statistics."""
    numbers = random.Random(1)
    vocab_size = json.loads(compare.run([args.penstock, "inspect", "--model", args.model, "--json"]))["vocab_size"]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        with (folder / "in.jsonl").open("w") as file:
            for _ in range(args.requests):
                request = {"prompt": [numbers.randrange(vocab_size) for _ in range(args.prompt_tokens)],
                           "max_tokens": args.new_tokens,
                           "temperature": 0, "ignore_eos": True}
                file.write(json.dumps(request) + "\n")
        command = [*args.launcher, args.penstock, "run", "--model", args.model, "--input", folder / "in.jsonl", "--output",
                   folder / "out.jsonl",
                   "--stats", folder / "stats.json", "--threads", args.threads, "--batch-size", args.sequences,
                   "--context-length", args.prompt_tokens + args.new_tokens, "--quiet", *args.penstock_flags]
        start = time.monotonic()
        compare.run(command)
        seconds = time.monotonic() - start
        results = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
        answered = sum(result["response"]["body"]["usage"]["completion_tokens"] for result in results)
        if answered != args.requests * args.new_tokens:
            raise compare.CommandError(f"penstock answered with {answered} tokens instead of "
                                       f"{args.requests * args.new_tokens}")
        return [job_line(args, args.sequences, seconds),
                {"kind": "stats", **json.loads((folder / "stats.json").read_text())}]


def peer_job(peer):
    def measure_one(args):
        start = time.monotonic()
        lines = peer.run(args, ["--job", args.requests, "--job-batch", args.sequences, "--prompt-tokens", args.prompt_tokens,
                                "--new-tokens", args.new_tokens, "--batch", args.batch])
        return [job_line(args, args.sequences, time.monotonic() - start), *lines]
    return measure_one


def job_with(name, measure_one):
    return lambda args: [line for size in args.job_batch for line in in_group(args, name, measure_one, sequences=size)]


# Command line

def parse_args():
    parser = compare.make_parser(__doc__, PEERS)
    parser.add_argument("--memory-limit", required=True, metavar="SIZE", help="memory limit of the group")
    parser.add_argument("--reserve", default="64MiB", metavar="SIZE",
                        help="the part of the group that Penstock does not get; default: %(default)s")
    parser.add_argument("--cgroup", type=pathlib.Path, metavar="DIR",
                        help="folder for the groups; default: found automatically")
    parser.add_argument("--decode", type=compare.numbers, default=[1, 64, 128], metavar="SEQUENCES,...")
    parser.add_argument("--context", type=int, default=16, help="tokens of each decoding sequence before the measured ones")
    parser.add_argument("--steps", type=int, default=8, help="measured decode steps, of a peer and of Penstock")
    parser.add_argument("--warmup", type=int, default=2, help="decode steps of a peer before the measured ones")
    parser.add_argument("--peer-kv", choices=["f16", "q8_0"], default="f16", help="the peers' KV cache")
    parser.add_argument("--batch", type=int, default=2048, help="rows that a peer gets in one call (--job)")
    parser.add_argument("--penstock-flags", type=shlex.split, default=["--kv-dtype", "int8"], metavar="FLAGS",
                        help="added to Penstock's command line; default: --kv-dtype int8")
    parser.add_argument("--job", action="store_true", help="time a job instead of decode steps")
    parser.add_argument("--requests", type=int, default=256, help="number of requests in the job")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="random prompt tokens of each request")
    parser.add_argument("--new-tokens", type=int, default=32, help="new tokens of each request")
    parser.add_argument("--job-batch", type=compare.numbers, default=[128], metavar="SEQUENCES,...",
                        help="sequences that decode together; the job runs once for each number")
    parser.set_defaults(prefill=[], seconds=1_000_000, repetitions=1)
    args = parser.parse_args()
    compare.check_engines(parser, args, PEERS)
    try:
        args.limit_bytes = parse_size(args.memory_limit, args.gguf.stat().st_size)
        budget = args.limit_bytes - parse_size(args.reserve, args.limit_bytes)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if budget <= 0:
        parser.error(f"--reserve {args.reserve} leaves nothing of {args.limit_bytes} bytes")
    args.penstock_flags = ["--memory", f"{budget >> 10}KiB", *args.penstock_flags] + (
        [] if args.job else ["--steps", str(args.steps)])
    return args


def job_rows(args, results):
    """Returns a row of compare.table for each number of sequences, with the medians of the seconds in its text."""
    tokens = args.requests * args.new_tokens
    rows = []
    for size in args.job_batch:
        seconds = [f"{name} {tokens / statistics.median(values):.1f} s" for name, rounds in results.items()
                   if (values := [rate[("job", size)] for rate in rounds if ("job", size) in rate])]
        rows.append((("job", size), f"{size} at once: {', '.join(seconds)}"))
    return rows


def main():
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes the group on the way out
    with tempfile.TemporaryDirectory() as folder:
        peers = compare.find_peers(PEERS, args.engines, folder)
        for peer in peers.values():
            peer.flags = [*peer.flags, "--kv", args.peer_kv]
        if args.job:
            engines = {name: peer_job(peer) for name, peer in peers.items()}
        else:
            engines = {name: peer.measure for name, peer in peers.items()}
        if args.with_penstock:
            engines = {compare.PENSTOCK_NAME: penstock_job if args.job else compare.measure_penstock} | engines
        if not engines:
            compare.fail("nothing to measure: no peer's build tree is named, and --engines does not name penstock")
        wrap = job_with if args.job else decode_with
        results = compare.measure(args, {name: wrap(name, measure_one) for name, measure_one in engines.items()})
    print(f"tokens/s, {args.threads} threads, {args.gguf.name} in {args.limit_bytes / 2**20:.0f} MiB "
          f"({args.limit_bytes / args.gguf.stat().st_size:.0%}), medians of {args.rounds} rounds (smallest-largest)\n")
    if args.job:
        print(f"{args.requests} requests of {args.prompt_tokens} tokens and {args.new_tokens} new ones; new tokens/s from "
              f"process start to end\n")
    rows = job_rows(args, results) if args.job else compare.rate_rows(args)
    print(compare.table(rows, results))
    return 0 if all(key in rate for key, _ in rows for rounds in results.values() for rate in rounds) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (compare.CommandError, GroupError) as error:
        compare.fail(error)
