#!/usr/bin/env python3
"""Measures prefill and decode tokens/s of a resident model, and the share of the memory bandwidth that decoding uses.

usage: scripts/benchmark.py MODEL_DIR [MODEL_DIR ...] [--rounds N]

Each round runs three jobs in turn: prefill (one prompt of 1,000 tokens), decode (one sequence) and batch (32 sequences).
It measures the read bandwidth of the memory with `penstock probe` right before and after the decode job, and takes the
higher value. A Markdown table shows the medians of the rounds. Decoding one token reads the dense weights (without the
embedding, of which it reads only one row) and num_topk experts of every layer.
"""
import argparse
import pathlib
import re
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import penstock_program  # noqa: E402

PENSTOCK = penstock_program.Program()


def bandwidth():
    """Returns the bytes per second that all threads together read from memory: the best of the probe's rows."""
    dram = PENSTOCK.json("probe", "--threads", "2", "--quiet")["tiers"][0]
    return max(rate["read_bytes_per_second"] for rate in dram["rates"])


def bytes_per_token(model):
    """Returns how many bytes of weights decoding one token of one sequence reads."""
    d = PENSTOCK.json("inspect", "--model", model)
    size = 4 if d["dtype"] == "f32" else 2
    embedding = d["vocab_size"] * d["model_dim"] * size
    dense = d["dense_bytes"] - (0 if d["tie_embeddings"] else embedding)
    layers = sum(1 for layer in d["layers"] if layer["experts"] > 0)
    return dense + layers * d["num_topk"] * d["bytes_per_expert"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    cpu = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text()).group(1)
    flags = ["--memory", "8GiB", "--dtype", args.dtype, "--threads", "2"]
    print(f"{cpu}, 2 threads, dtype {args.dtype}, medians of {args.rounds} rounds\n")
    print("| model | prefill tokens/s | decode tokens/s, 1 sequence | GB/s of weights | of measured bandwidth | decode "
          "tokens/s, 32 sequences |")
    print("| --- | --- | --- | --- | --- | --- |")
    for model in args.models:
        results = {"prefill": [], "decode": [], "batch": [], "share": [], "rate": []}
        per_token = bytes_per_token(model)
        for _ in range(args.rounds):
            ids = [(7 * i) % 4000 + 50 for i in range(1000)]
            prefill = PENSTOCK.job(model, [{"prompt": ids, "max_tokens": 1}], *flags)
            before = bandwidth()
            decode = PENSTOCK.job(model, [{"prompt": ids[:8], "max_tokens": 64, "ignore_eos": True}], *flags)
            read = max(before, bandwidth())
            batch = PENSTOCK.job(model, [{"prompt": ids[i:i + 8], "max_tokens": 32, "ignore_eos": True} for i in range(32)],
                                 *flags)
            results["prefill"].append(prefill["tokens_per_second"]["prefill"])
            results["decode"].append(decode["tokens_per_second"]["decode"])
            results["batch"].append(batch["tokens_per_second"]["decode"])
            results["rate"].append(decode["tokens_per_second"]["decode"] * per_token)
            results["share"].append(results["rate"][-1] / read)
        m = {key: statistics.median(values) for key, values in results.items()}
        print(f"| {pathlib.Path(model).name} | {m['prefill']:.0f} | {m['decode']:.1f} | {m['rate'] / 1e9:.2f} | "
              f"{m['share']:.0%} | {m['batch']:.1f} |",
              flush=True)


if __name__ == "__main__":
    main()
