#!/usr/bin/env python3
"""Prints what `penstock plan` predicts for popular models on three machines without a GPU: the table of docs/models.md.

Each model has int8 weights, and 256 requests of 128 tokens with answers of 32. Takes five minutes on two cores."""
import argparse
import concurrent.futures
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import penstock_program  # noqa: E402

CONFIGS = penstock_program.ROOT / "tests/data/configs"
MODELS = [("gpt-oss-20b", "gpt-oss-20b"), ("Qwen3-30B-A3B", "qwen3-30b-a3b"), ("Qwen3.5-35B-A3B", "qwen3.5-35b-a3b"),
          ("Gemma 4 26B-A4B", "gemma-4-26b-a4b"), ("Nemotron-3-Nano-30B-A3B", "nemotron-3-nano-30b-a3b"),
          ("Mixtral 8x7B", "mixtral-8x7b"), ("Llama 4 Scout", "llama-4-scout"), ("Qwen3-235B-A22B", "qwen3-235b-a22b"),
          ("DeepSeek-V3.2", "deepseek-v3.2"), ("GLM-5", "glm-5")]
MACHINES = [("small desktop: 16 GiB, disk 3.5 GB/s", "none:dram=16GiB,disk=nvme3"),
            ("desktop: 64 GiB, disk 7 GB/s", "none"),
            ("server: 96 cores, 768 GiB, disk 14 GB/s", "h200")]
WORKLOAD = "prompt=128,gen=32,requests=256"


def predict(penstock, config, hardware):
    """Returns a cell: tokens per second of the whole job, and the number of requests at once."""
    done = penstock.finish("plan", "--config", CONFIGS / f"{config}.json", "--weights", "int8", "--hardware", hardware,
                           "--device", "cpu", "--kv-dtype", "int8", "--workload", WORKLOAD, "--json")
    if done.returncode == 6:
        return "does not fit"
    best = json.loads(penstock_program.succeeded(done).stdout)["choices"][0]
    rate = best["predicted"]["generation_tokens_per_second"]
    return f"{rate:.3g} ({best['policy']['batch_size']})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", type=pathlib.Path, default=penstock_program.DEFAULT)
    parser.add_argument("--jobs", type=int, default=2, help="plans at a time")
    args = parser.parse_args()
    penstock = penstock_program.Program(args.penstock)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        cells = {(config, hardware): pool.submit(predict, penstock, config, hardware)
                 for _, config in MODELS for _, hardware in MACHINES}
    print("| model | " + " | ".join(name for name, _ in MACHINES) + " |")
    print("| --- " * (1 + len(MACHINES)) + "|")
    for name, config in MODELS:
        print(f"| {name} | " + " | ".join(cells[config, hardware].result() for _, hardware in MACHINES) + " |")


if __name__ == "__main__":
    main()
