#!/usr/bin/env python3
"""Measures `penstock serve` beside llama.cpp's server: the same GGUF file, prompts, lengths and clients.

    python3 bench/server/peers.py --penstock build/release/bin/penstock --llama-server llama.cpp/build/bin/llama-server \\
        --gguf FILE [--memory-limit 50%]

The file needs a vocabulary (tools/synth/make_model.py --tokenizer-from). Each measurement is a new server. With
--memory-limit it runs in a memory cgroup of that size (bytes, or a share of the file), without the file in the page cache:
Penstock gets that less --reserve as --memory, and llama.cpp maps the file, so it cannot rearrange weights. Without a limit
llama.cpp reads the file into its memory. The servers take turns. Prints Markdown: medians of the rounds (smallest-largest).
"""
import argparse
import asyncio
import contextlib
import os
import pathlib
import random
import shlex
import statistics
import sys
import time

import streams

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "compare/llama_cpp"))
from memory_group import MemoryGroup, drop_cache, parse_size  # noqa: E402

PATH = "/v1/completions"
WORDS = "river bread bridge winter clock wool island letter small green round old walks sings falls turns under over and the"
SLOT_TOKENS = 256       # the context of a place: llama.cpp reserves multiples of 256
MIB = 1 << 20


def body_of(number, args):
    """Returns a request whose prompt differs from all others from its first words on."""
    words = random.Random(number).choices(WORDS.split(), k=args.words)
    return {"prompt": f"{number} " + " ".join(words), "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True}


def penstock(args, clients):
    memory = ["--memory", f"{(args.limit - args.reserve) >> 10}KiB"] if args.limit else []
    return [args.penstock, "serve", "--model", args.gguf, "--threads", args.threads, "--batch-size", clients,
            "--context-length", SLOT_TOKENS, *memory, *args.penstock_flags]


def llama_cpp(args, clients):
    return [args.llama_server, "--model", args.gguf, "--threads", args.threads, "--threads-batch", args.threads,
            "--parallel", clients, "--ctx-size", clients * SLOT_TOKENS, "--no-webui",
            *(["--load-mode", "mmap", "--no-repack"] if args.limit else ["--load-mode", "none"]), *args.llama_flags]


SERVERS = {"penstock": penstock, "llama.cpp": llama_cpp}


async def one_client(server, client, args):
    """Asks several times, one after the other."""
    first = 100 + client * args.asks
    return [await streams.ask(server.address, PATH, body_of(first + ask, args)) for ask in range(args.asks)]


async def all_clients(server, clients, args):
    await streams.ask(server.address, PATH, body_of(99, args))     # not measured
    begin = time.monotonic()
    answers = await asyncio.gather(*(one_client(server, client, args) for client in range(clients)))
    return time.monotonic() - begin, [answer for own in answers for answer in own]


def measure(name, clients, args):
    """Returns tokens per second and the median time to the first token, from a new server."""
    with contextlib.ExitStack() as stack:
        launcher = []
        if args.limit:
            drop_cache([args.gguf])
            launcher = stack.enter_context(MemoryGroup(args.limit)).launcher
        server = stack.enter_context(streams.Server([*launcher, *SERVERS[name](args, clients)]))
        seconds, answers = asyncio.run(all_clients(server, clients, args))
    wrong = [answer for answer in answers if answer.end != "complete" or answer.usage["completion_tokens"] != args.tokens]
    if wrong:
        raise SystemExit(f"{name}, {clients} clients: {len(wrong)} wrong answers, such as {vars(wrong[0])}")
    found = {"tokens/s": len(answers) * args.tokens / seconds,
             "first token, s": statistics.median(answer.first - answer.begin for answer in answers)}
    prompts = sum(answer.usage["prompt_tokens"] for answer in answers)
    print(f"{name}, {clients} clients: {found}, {prompts} prompt tokens, {seconds:.1f} s", file=sys.stderr, flush=True)
    return found


def cell(values):
    middle = statistics.median(values)
    digits = 2 if middle < 10 else 1
    return f"{middle:.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--gguf", type=pathlib.Path, required=True)
    parser.add_argument("--clients", default="1,8,64", help="numbers of clients, which are also the places")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--asks", type=int, default=2, help="requests of each client, one after the other")
    parser.add_argument("--words", type=int, default=40, help="of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--memory-limit", metavar="SIZE")
    parser.add_argument("--reserve", default="64MiB", metavar="SIZE", help="of the limit, which Penstock does not get")
    parser.add_argument("--penstock-flags", type=shlex.split, default=["--kv-dtype", "bf16"], metavar="FLAGS")
    parser.add_argument("--llama-flags", type=shlex.split, default=[], metavar="FLAGS")
    args = parser.parse_args()
    args.limit = parse_size(args.memory_limit, args.gguf.stat().st_size) if args.memory_limit else None
    args.reserve = parse_size(args.reserve, args.limit or 0)
    print("| clients | what | penstock | llama.cpp | penstock / llama.cpp |\n| --- | --- | --- | --- | --- |")
    for clients in map(int, args.clients.split(",")):
        found = {name: [] for name in SERVERS}
        for number in range(args.rounds):
            for name in list(SERVERS)[::-1 if number % 2 else 1]:
                found[name].append(measure(name, clients, args))
        for what in found["penstock"][0]:
            own, peer = ([one[what] for one in found[name]] for name in SERVERS)
            print(f"| {clients} | {what} | {cell(own)} | {cell(peer)} | "
                  f"{statistics.median(own) / statistics.median(peer):.2f} |", flush=True)


if __name__ == "__main__":
    main()
