#!/usr/bin/env python3
"""Measures what --prefix-dir saves: questions on one prompt of 4,000 tokens, in one run and after a restart.

A synthetic model of 0.2 GB answers the questions cold (each prompt in full), then with an empty folder, then again with
the folder that this has left, and then other questions with it. Half of the answers are greedy, half have temperature
0.8. All runs of the same questions must give the same answers. Prints Markdown.
"""
import argparse
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import penstock_program  # noqa: E402

MODEL = {"family": "qwen3_moe", "model-dim": 512, "num-layers": 8, "num-heads": 8, "num-kv-heads": 4, "head-dim": 64,
         "num-experts": 16, "num-topk": 2, "expert-dim": 512, "vocab-size": 4096, "context": 8192}


def questions(count, text_tokens, seed):
    """Returns requests that begin with one text and end with 20 tokens of their own."""
    text = random.Random(0).choices(range(10, 4000), k=text_tokens)
    rng = random.Random(seed)
    return [{"custom_id": f"q{number}", "prompt": text + rng.choices(range(10, 4000), k=20), "max_tokens": 16,
             "ignore_eos": True, "temperature": 0.8 * (number % 2)} for number in range(count)]


class Bench:
    def __init__(self, args, folder):
        self.folder, self.flags = folder, ["--memory", args.memory, "--threads", args.threads]
        self.program = penstock_program.Program(args.penstock)
        self.model = folder / "model"
        sizes = [word for name, value in MODEL.items() for word in ("--" + name, str(value))]
        penstock_program.succeeded(subprocess.run(
            [sys.executable, penstock_program.ROOT / "tools/synth/make_model.py", *sizes, "--output", self.model],
            capture_output=True, text=True, check=False))

    def run(self, requests, *flags):
        """Returns the statistics of a job, and a digest of its answers."""
        source, output, stats = (self.folder / name for name in ("in.jsonl", "out.jsonl", "stats.json"))
        source.write_text("".join(json.dumps(request) + "\n" for request in requests))
        for old in self.folder.glob("out.jsonl*"):
            old.unlink()
        penstock_program.succeeded(self.program.finish(
            "run", "--model", self.model, "--input", source, "--output", output, "--stats", stats, "--quiet", *self.flags,
            *flags))
        lines = sorted(output.read_text().splitlines(), key=lambda line: json.loads(line)["custom_id"])
        return json.loads(stats.read_text()), hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=penstock_program.DEFAULT)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--skip-cold", action="store_true", help="compare answers with those of the first run only")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, pathlib.Path(folder))
        asked, others = questions(args.questions, args.tokens, 1), questions(args.questions, args.tokens, 2)
        kept = ("--prefix-dir", bench.folder / "prefixes")
        first, _ = bench.run(asked[:1])
        whole_s = first["seconds"]["prefill"]
        print(f"One question alone: {whole_s:.2f} s of prefill.\n")
        print("| run | prompt tokens | computed | loaded | prefill s | of a further question | times cheaper | total s | "
              "MiB written | MiB read | answers |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        runs = {} if args.skip_cold else {"each prompt in full": (asked, ["--no-prefix-sharing"])}
        runs |= {"empty folder": (asked, kept), "after a restart": (asked, kept), "other questions": (others, kept)}
        digests = set()
        for name, (requests, flags) in runs.items():
            stats, digest = bench.run(requests, *flags)
            if requests is asked:
                digests.add(digest)
            counts, prefill_s = stats["prefix_dir"], stats["seconds"]["prefill"]
            is_cold = counts["loaded_prompt_tokens"] == 0
            further_s = max(0, prefill_s - whole_s * is_cold) / (len(requests) - is_cold)
            print(f"| {name} | {stats['prompt_tokens']:,} | {stats['computed_prompt_tokens']:,} | "
                  f"{counts['loaded_prompt_tokens']:,} | {prefill_s:.2f} | {1e3 * further_s:.1f} ms | "
                  f"{whole_s / further_s:.0f} | {stats['seconds']['total']:.2f} | {counts['written_bytes'] / 2**20:.1f} | "
                  f"{counts['read_bytes'] / 2**20:.1f} | {digest} |", flush=True)
        assert len(digests) == 1, "answers differ"


if __name__ == "__main__":
    main()
