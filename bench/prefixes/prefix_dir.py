#!/usr/bin/env python3
"""Measures what --prefix-dir saves: questions on one prompt of 4,000 tokens, in one run and after a restart.

A synthetic model of 0.2 GB answers the first questions cold (each prompt in full), then all of them with an empty folder,
then again with the folder that this has left, and then other questions with it. Half of the answers are greedy, half have
temperature 0.8. The same questions must have the same tokens and log-probabilities. Prints Markdown; needs numpy.
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

MODEL = {"family": "qwen3_moe", "model-dim": 512, "num-layers": 4, "num-heads": 8, "num-kv-heads": 4, "head-dim": 64,
         "num-experts": 32, "num-topk": 2, "expert-dim": 512, "vocab-size": 4096, "context": 8192}


def questions(count, text_tokens, seed):
    """Returns requests that begin with one text and end with 20 tokens of their own."""
    text = random.Random(0).choices(range(10, 4000), k=text_tokens)
    rng = random.Random(seed)
    return [{"custom_id": f"q{number}", "prompt": text + rng.choices(range(10, 4000), k=20), "max_tokens": 16,
             "ignore_eos": True, "temperature": 0.8 * (number % 2), "seed": number, "logprobs": 1}
            for number in range(count)]


class Bench:
    def __init__(self, args, folder):
        self.folder, self.flags = folder, ["--memory", args.memory, "--threads", args.threads]
        self.program = penstock_program.Program(args.penstock)
        self.model = folder / "model"
        sizes = [word for name, value in MODEL.items() for word in ("--" + name, str(value))]
        penstock_program.succeeded(subprocess.run(
            [sys.executable, str(penstock_program.ROOT / "tools/synth/make_model.py"), *sizes, "--output", str(self.model)],
            capture_output=True, text=True, check=False))

    def run(self, requests, *flags):
        """Returns the statistics of a job, and its answers."""
        source, output, stats = (self.folder / name for name in ("in.jsonl", "out.jsonl", "stats.json"))
        source.write_text("".join(json.dumps(request) + "\n" for request in requests))
        for old in self.folder.glob("out.jsonl*"):
            old.unlink()
        penstock_program.succeeded(self.program.finish(
            "run", "--model", self.model, "--input", source, "--output", output, "--stats", stats, "--quiet", *self.flags,
            *flags))
        records = map(json.loads, output.read_text().splitlines())
        return json.loads(stats.read_text()), {record["custom_id"]: json.dumps(record["response"]["body"]["choices"])
                                               for record in records}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=penstock_program.DEFAULT)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cold", type=int, default=64, help="questions that are also answered cold")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, pathlib.Path(folder))
        asked, others = questions(args.questions, args.tokens, 1), questions(args.questions, args.tokens, 2)
        kept, others_kept = (("--prefix-dir", bench.folder / name) for name in ("prefixes", "others"))
        runs = (("each prompt in full", asked[:args.cold], ["--no-prefix-sharing"]),
                ("empty folder, all", asked, kept), ("a restart, all", asked, kept),
                ("a restart, new questions", others, kept), ("empty folder, the first question", asked[:1], others_kept),
                ("a restart, the others", asked[1:], others_kept), ("no folder, all", asked, []))
        print("| run | questions | prompt tokens | computed | loaded | prefill s | of a question | times cheaper | "
              "total s | MiB written | MiB read | digest |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        whole_s, known = None, {}
        for run, requests, flags in runs:
            stats, answers = bench.run(requests, *flags)
            counts, prefill_s = stats["prefix_dir"], stats["seconds"]["prefill"]
            whole_s = whole_s or prefill_s / len(requests)
            digest = hashlib.sha256("".join(answers[name] for name in sorted(answers)).encode()).hexdigest()[:16]
            print(f"| {run} | {len(requests)} | {stats['prompt_tokens']:,} | {stats['computed_prompt_tokens']:,} | "
                  f"{counts['loaded_prompt_tokens']:,} | {prefill_s:.2f} | {1e3 * prefill_s / len(requests):.1f} ms | "
                  f"{whole_s * len(requests) / prefill_s:.1f} | {stats['seconds']['total']:.2f} | "
                  f"{counts['written_bytes'] / 2**20:.1f} | {counts['read_bytes'] / 2**20:.1f} | {digest} |", flush=True)
            for question, line in answers.items() if requests is not others else ():
                assert known.setdefault(question, line) == line, f"{run}: another answer to {question}"


if __name__ == "__main__":
    main()
