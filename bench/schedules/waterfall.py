#!/usr/bin/env python3
"""Shows what each way of reading fewer bytes for a token brings to one job: a table and, with --svg, a picture.

The forms take turns; each one adds to the one before it:
  older         an older program (--older), which has none of the ways
  schedules     this program without shared prefixes, on the same store
  prefixes      + what prompts begin with in common is computed once
  compressed    + a store whose experts are compressed without loss
  guesses       + --speculate auto
Peers' seconds for the same job can stand beside them: --peer "llama.cpp=310.5". Answers of all forms but the older
program's must be the same.
"""
import argparse
import pathlib
import random
import statistics
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import penstock_program  # noqa: E402

BAR, GAP, LEFT, WIDTH = 26, 10, 150, 560


def requests_of(args):
    """Returns requests whose prompts begin alike, with random tokens behind that."""
    draw = random.Random(7)
    shared = [draw.randrange(10, args.vocab) for _ in range(args.shared_tokens)]
    return [{"id": str(idx), "max_tokens": args.new_tokens, "ignore_eos": True, "temperature": 0,
             "prompt": shared + [draw.randrange(10, args.vocab) for _ in range(args.prompt_tokens - args.shared_tokens)]}
            for idx in range(args.requests)]


def picture(rows, title):
    """Returns an SVG of horizontal bars: (name, tokens/s)."""
    most = max(speed for _, speed in rows)
    height = 40 + len(rows) * (BAR + GAP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 130} {height}" '
             f'font-family="sans-serif" font-size="13" role="img" aria-label="{title}">',
             f'<rect width="100%" height="100%" fill="#ffffff"/><text x="8" y="20" font-weight="bold">{title}</text>']
    before = 0
    for idx, (name, speed) in enumerate(rows):
        y, length, gained = 34 + idx * (BAR + GAP), WIDTH * speed / most, WIDTH * min(before, speed) / most
        colour = "#9aa5b1" if name.startswith(("older", "peer")) else "#2f7dd1"
        parts.append(f'<text x="{LEFT - 8}" y="{y + 18}" text-anchor="end">{name}</text>'
                     f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>'
                     f'<rect x="{LEFT}" y="{y}" width="{gained:.1f}" height="{BAR}" fill="#000000" opacity="0.18"/>'
                     f'<text x="{LEFT + length + 6:.1f}" y="{y + 18}">{speed:.1f} tokens/s</text>')
        before = 0 if name.startswith("peer") else speed
    return "\n".join(parts) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=penstock_program.DEFAULT)
    parser.add_argument("--older", help="an older program")
    parser.add_argument("--model", required=True)
    parser.add_argument("--compressed", help="the same model in a compressed store")
    parser.add_argument("--memory", required=True)
    parser.add_argument("--vocab", type=int, default=4096, help="prompts have tokens below this")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--shared-tokens", type=int, default=96)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], help="NAME=SECONDS of the same job")
    parser.add_argument("--svg", help="write the picture to this file")
    parser.add_argument("--flags", default="", help="more flags of all runs")
    args = parser.parse_args()
    today = penstock_program.Program(args.penstock)
    off = ["--speculate", "off"]
    forms = {"schedules": (today, args.model, ["--no-prefix-sharing", *off]), "+ prefixes": (today, args.model, off)}
    if args.older:
        forms = {"older program": (penstock_program.Program(args.older), args.model, []), **forms}
    if args.compressed:
        forms["+ compressed"] = (today, args.compressed, off)
    forms["+ guesses"] = (today, args.compressed or args.model, ["--speculate", "auto"])
    requests = requests_of(args)
    seconds, hashes = {name: [] for name in forms}, set()
    for _ in range(args.rounds):
        for name, (program, model, flags) in forms.items():
            start = time.monotonic()
            _, digest = program.answered_job(model, requests, "--memory", args.memory, "--batch-size", args.requests, *flags,
                                             *args.flags.split())
            seconds[name].append(time.monotonic() - start)
            if not name.startswith("older"):
                hashes.add(digest)
    if len(hashes) != 1:
        raise SystemExit("answers differ")
    new_tokens = args.requests * args.new_tokens
    rows = [(f"peer: {name}", new_tokens / float(value)) for name, value in (peer.rsplit("=", 1) for peer in args.peer)]
    rows += [(name, new_tokens / statistics.median(taken)) for name, taken in seconds.items()]
    print("| form | seconds | new tokens/s | times the form before |\n| --- | --- | --- | --- |")
    for idx, (name, speed) in enumerate(rows):
        gain = f"{speed / rows[idx - 1][1]:.2f}" if idx > len(args.peer) else "-"
        spread = f" ({min(seconds[name]):.1f}-{max(seconds[name]):.1f})" if name in seconds else ""
        print(f"| {name} | {new_tokens / speed:.1f}{spread} | {speed:.1f} | {gain} |")
    if args.svg:
        title = f"{args.requests} requests of {args.prompt_tokens} + {args.new_tokens} tokens within {args.memory}"
        pathlib.Path(args.svg).write_text(picture(rows, title), encoding="utf-8")


if __name__ == "__main__":
    main()
