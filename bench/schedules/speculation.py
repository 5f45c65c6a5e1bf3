#!/usr/bin/env python3
"""Compares jobs with and without guesses of the next tokens (--speculate), in alternation, while experts stream.

Works of a trained model, whose answers repeat themselves more or less:
  stories    beginnings of stories, greedy
  sampled    the same, at temperature 0.8
  records    records of a text, in a JSON schema, greedy
  tail       four long answers among short ones, greedy: what a job does at its end
  random     prompts of random tokens, at temperature 1: with --model, a model with random weights shows what wrong
             guesses cost
Every answer must be the same with and without guesses.
"""
import argparse
import pathlib
import random
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import penstock_program  # noqa: E402

DEMO = penstock_program.ROOT / "models/penstock-demo"
BEGINNINGS = ("Once upon a time there was a", "The little princess ran to the", "In the dark forest lived a",
              "My dear child, said the", "The king looked at his", "When the morning came, the",
              "A small boy named Tom met a", "The old woman in the house had a")
NOUNS = ("girl", "prince", "bear", "goblin", "miller", "queen", "dog", "cat", "sailor", "fairy")
JOINTS = ("who", "and", "of", "that", "with")
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["people"], "properties": {"people": {
    "type": "array", "minItems": 3, "maxItems": 6, "items": {
        "type": "object", "additionalProperties": False, "required": ["name", "occupation", "mentioned_in_chapter"],
        "properties": {"name": {"type": "string", "minLength": 3, "maxLength": 12},
                       "occupation": {"enum": ["king", "queen", "miller", "sailor", "child", "unknown"]},
                       "mentioned_in_chapter": {"type": "integer", "minimum": 1, "maximum": 30}}}}}}


def requests_of(work, count, max_tokens):
    """Returns the requests of a work, the same ones each time."""
    draw = random.Random(1)
    requests = []
    for idx in range(count):
        noun = draw.choice(NOUNS)
        text = f"{draw.choice(BEGINNINGS)} {noun} {draw.choice(JOINTS)}"
        request = {"id": str(idx), "prompt": text, "max_tokens": max_tokens, "seed": idx, "ignore_eos": True,
                   "temperature": 0.8 if work == "sampled" else 0}
        if work == "records":
            named = {"name": "people", "strict": True, "schema": SCHEMA}
            request |= {"ignore_eos": False, "prompt": f"The {noun} met a king, a queen and a sailor. People:",
                        "response_format": {"type": "json_schema", "json_schema": named}}
        if work == "random":
            request |= {"prompt": [draw.randrange(10, 4000) for _ in range(32)], "temperature": 1}
        if work == "tail":
            request["max_tokens"] = 4 * max_tokens if idx < 4 else max_tokens // 4
        requests.append(request)
    return requests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=penstock_program.DEFAULT)
    parser.add_argument("--model", default=DEMO)
    parser.add_argument("--memory", default="22MiB")
    parser.add_argument("--works", default="stories,sampled,records,tail")
    parser.add_argument("--batch-sizes", default="1,8,64")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flags", default="--context-length=640", help="more flags of run")
    args = parser.parse_args()
    program = penstock_program.Program(args.penstock)
    print("| work | sequences | tokens/s without | with | ratio | drafted | accepted | of all tokens | disk bytes |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for work in args.works.split(","):
        for batch in map(int, args.batch_sizes.split(",")):
            requests = requests_of(work, min(args.requests, 16 * batch), args.max_tokens)
            speeds, disk, hashes, guesses, tokens = {"off": [], "auto": []}, {}, set(), {}, 0
            for _ in range(args.rounds):
                for form, values in speeds.items():
                    flags = ["--memory", args.memory, "--batch-size", batch, "--speculate", form, *args.flags.split()]
                    stats, digest = program.answered_job(args.model, requests, *flags)
                    values.append(stats["tokens_per_second"]["generation"])
                    disk[form], guesses[form] = stats["bytes"]["disk_to_dram"], stats["speculation"]
                    tokens = stats["generated_tokens"]
                    hashes.add(digest)
            off, auto = (statistics.median(speeds[form]) for form in ("off", "auto"))
            drafted, accepted = guesses["auto"]["drafted_tokens"], guesses["auto"]["accepted_tokens"]
            print(f"| {work} | {batch} | {off:.1f} | {auto:.1f} | {auto / off:.2f} | {drafted} | {accepted} | "
                  f"{accepted / tokens:.2f} | {disk['auto'] / max(1, disk['off']):.2f} |", flush=True)
            if len(hashes) != 1:
                raise SystemExit("answers depend on guesses")


if __name__ == "__main__":
    main()
