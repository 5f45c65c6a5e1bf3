#!/usr/bin/env python3
"""Measures `penstock serve` under load: many clients at once, some of whom leave, and one that reads slowly.

Prints JSON: errors by status, gaps between tokens (p50, p99), time to the first token, tokens per second beside those of
`penstock run` on the same requests, and the server's peak memory beside its budget. Run nothing else meanwhile.

    python3 bench/server/load.py --penstock build/release/bin/penstock --model models/penstock-demo --memory 256MiB
"""
import argparse
import asyncio
import json
import pathlib
import random
import re
import subprocess
import tempfile
import time

MIB = 1 << 20


def prompts(count):
    """Returns chats that differ from their first words on."""
    topics = ["rivers", "bread", "bridges", "winter", "clocks", "wool", "islands", "letters"]
    return [[{"role": "user", "content": f"{i}: tell me of {topics[i % len(topics)]} and of the number {i * 7919}."}]
            for i in range(count)]


def body_of(messages, args, **more):
    return {"messages": messages, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True, **more}


class Server:
    """Runs a server while the context lasts."""

    def __init__(self, args):
        command = [args.penstock, "serve", "--model", args.model, "--memory", args.memory, "--port", "0",
                   "--batch-size", str(args.places), "--max-waiting", str(args.waiting), *args.flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        for line in self.process.stderr:
            found = re.search(r"serving .* at http://([\d.]+):(\d+)/v1", line)
            if found:
                self.host, self.port = found.group(1), int(found.group(2))
                return self
        raise RuntimeError("the server did not begin")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)

    def peak_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status).group(1))


class Totals:
    """Counts what all clients saw."""

    def __init__(self):
        self.statuses = {}
        self.gaps, self.first = [], []
        self.tokens = self.complete = self.left = self.broken = 0


async def read_head(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    return int(head.split()[1])


async def events(reader):
    """Yields the data of a chunked event stream."""
    while True:
        size = int(await reader.readline(), 16)
        if size == 0:
            return
        chunk = await reader.readexactly(size + 2)
        for line in chunk.decode().split("\n"):
            if line.startswith("data: "):
                yield line[6:]


async def one_client(server, messages, args, totals, leaves_after, is_slow):
    """Asks once, again after a refusal, and reads the answer; returns without it if it is to leave."""
    body = json.dumps(body_of(messages, args, stream=True)).encode()
    request = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body
    while True:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        begin = last = time.monotonic()
        writer.write(request)
        status = await read_head(reader)
        totals.statuses[status] = totals.statuses.get(status, 0) + 1
        if status == 200:
            break
        writer.close()
        if status != 429:
            return
        await asyncio.sleep(random.uniform(0.5, 1.5))
    count = 0
    async for data in events(reader):
        if data == "[DONE]":
            totals.complete += 1
            break
        event = json.loads(data)
        if "error" in event:
            totals.broken += 1
            break
        if not event["choices"] or not event["choices"][0]["delta"].get("content"):
            continue
        now = time.monotonic()
        (totals.gaps if count else totals.first).append(now - (last if count else begin))
        last = now
        count += 1
        totals.tokens += 1
        if leaves_after is not None and count >= leaves_after:
            totals.left += 1
            break
        if is_slow:
            await asyncio.sleep(0.3)
    writer.close()


async def all_clients(server, args):
    totals = Totals()
    generator = random.Random(args.seed)
    tasks = []
    for i, messages in enumerate(prompts(args.clients)):
        leaves = generator.randrange(1, args.tokens) if generator.random() < args.leaving else None
        tasks.append(one_client(server, messages, args, totals, leaves, is_slow=i == 0))
    begin = time.monotonic()
    await asyncio.gather(*tasks)
    totals.seconds = time.monotonic() - begin
    return totals


def run_rate(args):
    """Returns the tokens per second of `penstock run` on the same requests."""
    with tempfile.TemporaryDirectory() as folder:
        source, output, stats = (pathlib.Path(folder) / name for name in ("in.jsonl", "out.jsonl", "stats.json"))
        lines = [json.dumps({"id": str(i), **body_of(messages, args)}) for i, messages in enumerate(prompts(args.clients))]
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        begin = time.monotonic()
        subprocess.run([args.penstock, "run", "--model", args.model, "--memory", args.memory, "--batch-size",
                        str(args.places), "--input", source, "--output", output, "--quiet", *args.flags], check=True)
        return args.clients * args.tokens / (time.monotonic() - begin)


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


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
    args = parser.parse_args()
    with Server(args) as server:
        totals = asyncio.run(all_clients(server, args))
        peak = server.peak_bytes()
    rate = totals.tokens / totals.seconds
    alone = run_rate(args)
    print(json.dumps({
        "clients": args.clients, "places": args.places, "statuses": totals.statuses, "complete": totals.complete,
        "left": totals.left, "broken": totals.broken, "seconds": round(totals.seconds, 2),
        "gap_p50_ms": round(1e3 * quantile(totals.gaps, 0.5), 2), "gap_p99_ms": round(1e3 * quantile(totals.gaps, 0.99), 2),
        "first_token_p50_s": round(quantile(totals.first, 0.5), 3),
        "first_token_p99_s": round(quantile(totals.first, 0.99), 3),
        "tokens_per_s": round(rate, 1), "run_tokens_per_s": round(alone, 1), "ratio": round(rate / alone, 3),
        "peak_mib": round(peak / MIB, 1), "budget_mib": size_of(args.memory) / MIB}, indent=2))


if __name__ == "__main__":
    main()
