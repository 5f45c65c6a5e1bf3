#!/usr/bin/env python3
"""Measures `penstock serve` under load: many clients at once, some of whom leave, and one that reads slowly.

Prints JSON: answers by status and by how they ended, gaps between pieces (without the slow client's), time to the first
token, and the server's peak memory beside its budget. Tokens per second are those that the server generated, also for
clients that left, beside those of `penstock run` on the same requests: with whole answers, and with answers that end where
the clients left. Both count from the first request to the last answer, without loading the model. Run nothing else
meanwhile.

    python3 bench/server/load.py --penstock build/release/bin/penstock --model MODEL --memory 1536MiB --tokens 32

docs/benchmarks/serving.md says which model. With models/penstock-demo, whose steps take a few milliseconds, clients and
network take a larger share of the processors.
"""
import argparse
import asyncio
import collections
import json
import pathlib
import random
import re
import subprocess
import tempfile
import time

import streams

MIB = 1 << 20
PATH = "/v1/chat/completions"


def prompts(count):
    """Returns chats that differ from their first words on."""
    topics = ["rivers", "bread", "bridges", "winter", "clocks", "wool", "islands", "letters"]
    return [[{"role": "user", "content": f"{i}: tell me of {topics[i % len(topics)]} and of the number {i * 7919}."}]
            for i in range(count)]


def leaving(args):
    """Returns the tokens after which each client leaves; None: it stays."""
    generator = random.Random(args.seed)
    return [generator.randrange(1, args.tokens) if generator.random() < args.leaving else None for _ in range(args.clients)]


def body_of(messages, tokens):
    return {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


async def all_clients(server, args):
    """Returns the clients' answers, the first of which is read slowly."""
    return await asyncio.gather(*(
        streams.ask(server.address, PATH, body_of(messages, args.tokens), leaves, pause=0 if i else 0.3)
        for i, (messages, leaves) in enumerate(zip(prompts(args.clients), leaving(args), strict=True))))


def metric(server, name):
    return float(re.search(rf"^{name}(?:{{.*}})? (\S+)$", server.get("/metrics"), re.M).group(1))


def serve(args):
    """Returns the numbers of the server under load."""
    command = [args.penstock, "serve", "--model", args.model, "--memory", args.memory, "--batch-size", args.places,
               "--max-waiting", args.waiting, *args.flags]
    with streams.Server(command) as server:
        cpu, begin = time.process_time(), time.monotonic()
        answers = asyncio.run(all_clients(server, args))
        seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
        generated, peak = metric(server, "vllm:generation_tokens_total"), server.peak_bytes()
        passes = {kind: round(metric(server, f"penstock:{kind}_seconds_total"), 2) for kind in ("prefill", "decode")}
    gaps = [gap for answer in answers[1:] for gap in answer.gaps]
    first = [answer.first - answer.begin for answer in answers if answer.first]
    return {
        "clients": args.clients, "places": args.places,
        "statuses": collections.Counter(status for answer in answers for status in answer.statuses),
        "ends": collections.Counter(answer.end for answer in answers),
        "seconds": round(seconds, 2), "seconds_of_passes": passes, "processors_used_by_clients": round(cpu / seconds, 3),
        "gap_p50_ms": round(1e3 * streams.quantile(gaps, 0.5), 2),
        "gap_p99_ms": round(1e3 * streams.quantile(gaps, 0.99), 2),
        "first_token_p50_s": round(streams.quantile(first, 0.5), 3),
        "first_token_p99_s": round(streams.quantile(first, 0.99), 3),
        "tokens_per_s": round(generated / seconds, 1),
        "tokens_per_s_of_complete_answers":
            round(args.tokens * sum(answer.end == "complete" for answer in answers) / seconds, 1),
        "peak_mib": round(peak / MIB, 1), "budget_mib": size_of(args.memory) / MIB}


def run(args, lengths):
    """Returns the numbers of `penstock run` on the same prompts, with answers of these lengths."""
    with tempfile.TemporaryDirectory() as folder:
        source, output, stats = (pathlib.Path(folder) / name for name in ("in.jsonl", "out.jsonl", "stats.json"))
        lines = [json.dumps({"id": str(i), **body_of(messages, length)})
                 for i, (messages, length) in enumerate(zip(prompts(args.clients), lengths, strict=True))]
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        subprocess.run([args.penstock, "run", "--model", args.model, "--memory", args.memory, "--batch-size",
                        str(args.places), "--input", source, "--output", output, "--stats", stats, "--quiet", *args.flags],
                       check=True)
        found = json.loads(stats.read_text(encoding="utf-8"))
        seconds = found["seconds"]
        return {"tokens_per_s": round(found["generated_tokens"] / (seconds["total"] - seconds["load"]), 1),
                "seconds_of_passes": {kind: round(seconds[kind], 2) for kind in ("prefill", "decode")}}


def one_round(args):
    """Returns the server's numbers beside those of `penstock run`."""
    served = serve(args)
    whole = run(args, [args.tokens] * args.clients)
    cut = run(args, [leaves or args.tokens for leaves in leaving(args)])
    return {**served, "run": whole, "ratio": round(served["tokens_per_s"] / whole["tokens_per_s"], 3),
            "run_of_cut_answers": cut, "ratio_to_cut_answers": round(served["tokens_per_s"] / cut["tokens_per_s"], 3)}


def size_of(text):
    number, unit = re.fullmatch(r"([\d.]+)(MiB|GiB)", text).groups()
    return float(number) * (MIB if unit == "MiB" else 1024 * MIB)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--places", type=int, default=64)
    parser.add_argument("--waiting", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--leaving", type=float, default=0.2, help="share of the clients who leave midway")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="further flags of both commands")
    parser.add_argument("--rounds", type=int, default=1, help="print the round with the median ratio, and all ratios")
    args = parser.parse_args()
    run(args, [1] * args.clients)   # not measured: a virtual machine's memory may be slow at its first use
    rounds = sorted((one_round(args) for _ in range(args.rounds)), key=lambda found: found["ratio_to_cut_answers"])
    ratios = {f"{name}_of_rounds": [found[name] for found in rounds] for name in ("ratio", "ratio_to_cut_answers")}
    print(json.dumps({**rounds[len(rounds) // 2], **(ratios if args.rounds > 1 else {})}, indent=2))


if __name__ == "__main__":
    main()
