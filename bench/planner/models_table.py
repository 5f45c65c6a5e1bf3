#!/usr/bin/env python3
"""Prints the tables of docs/models.md. Without --sizes: what `penstock plan` predicts for popular models on three machines
without a GPU. Each model has int8 weights, and 256 requests of 128 tokens with answers of 32. Takes five minutes on two
cores. With --sizes: what `penstock inspect` says about published models."""
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
SIZES = [("Qwen3-30B-A3B", "qwen3-30b-a3b"), ("Qwen3-235B-A22B", "qwen3-235b-a22b"),
         ("Qwen3-Coder-480B-A35B", "qwen3-coder-480b-a35b"), ("Qwen3-VL-30B-A3B", "qwen3-vl-30b-a3b"),
         ("Qwen3.5-35B-A3B", "qwen3.5-35b-a3b"), ("Qwen3.5-122B-A10B", "qwen3.5-122b-a10b"),
         ("Qwen3.5-397B-A17B", "qwen3.5-397b-a17b"), ("Gemma 4 26B-A4B", "gemma-4-26b-a4b"),
         ("gpt-oss-20b", "gpt-oss-20b"), ("gpt-oss-120b", "gpt-oss-120b"),
         ("Nemotron-3-Nano-30B-A3B", "nemotron-3-nano-30b-a3b"),
         ("Nemotron-3-Super-120B-A12B (a)", "nemotron-3-super-120b-a12b"),
         ("Nemotron-3-Ultra-550B-A55B", "nemotron-3-ultra-550b-a55b"), ("Llama 4 Scout", "llama-4-scout"),
         ("Llama 4 Maverick", "llama-4-maverick"), ("Mistral Small 4 (d)", "mistral-small-4"),
         ("MiniMax-M2.7", "minimax-m2.7"), ("MiniMax-M1 (a)", "minimax-m1"), ("DeepSeek-V3.2", "deepseek-v3.2"),
         ("GLM-5", "glm-5"), ("Kimi-K2", "kimi-k2"), ("Kimi-K2.5", "kimi-k2.5"), ("A.X K1 (d)", "a.x-k1"),
         ("LongCat-Flash (a)", "longcat-flash"),
         ("MiMo-V2-Flash", "mimo-v2-flash"), ("Step 3.5 Flash (a)", "step-3.5-flash"),
         ("Ling 3.0 Flash (d)", "ling-3.0-flash"), ("Kolibri 1 (d)", "kolibri-1"), ("Trinity Mini (a)", "trinity-mini"),
         ("FlexOlmo-7x7B (a)", "flexolmo-7x7b"), ("LFM2-8B-A1B (a)", "lfm2-8b-a1b"),
         ("Granite 4.0 H Small (a)", "granite-4.0-h-small"), ("Kimi-Linear-48B-A3B (a)", "kimi-linear-48b-a3b"),
         ("Jamba 1.5 Mini", "jamba-1.5-mini"), ("Phi-3.5-MoE", "phi-3.5-moe"), ("Mixtral 8x7B", "mixtral-8x7b"),
         ("Mixtral 8x22B", "mixtral-8x22b")]


def predict(penstock, config, hardware):
    """Returns a cell: tokens per second of the whole job, and the number of requests at once."""
    done = penstock.finish("plan", "--config", CONFIGS / f"{config}.json", "--weights", "int8", "--hardware", hardware,
                           "--device", "cpu", "--kv-dtype", "int8", "--workload", WORKLOAD, "--json")
    if done.returncode == 6:
        return "does not fit"
    best = json.loads(penstock_program.succeeded(done).stdout)["choices"][0]
    rate = best["predicted"]["generation_tokens_per_second"]
    return f"{rate:.3g} ({best['policy']['batch_size']})"


def in_units(count):
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.3g} {unit}"
    return f"{count} B"


def print_sizes(penstock):
    columns = ("model", "family", "parameters", "weights", "always in DRAM", "an expert", "KV entries of a token",
               "state of a sequence", "positions")
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")
    for name, config in SIZES:
        size = penstock.json("inspect", "--config", CONFIGS / f"{config}.json", "--weights", "int8")
        state = in_units(size["state_bytes_per_sequence"]) if size["state_bytes_per_sequence"] else "-"
        # inspect has KV entries in f32; in int8 they are a quarter, without scales.
        bf16 = penstock.json("inspect", "--config", CONFIGS / f"{config}.json", "--weights", "bf16")
        cells = (name, size["family"], f"{bf16['total_bytes'] / 2e9:.4g} B", in_units(size["total_bytes"]),
                 in_units(size["dense_bytes"]), in_units(size["bytes_per_expert"]),
                 in_units(size["kv_bytes_per_position"] // 4), state, f"{size['max_positions']:,}")
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", type=pathlib.Path, default=penstock_program.DEFAULT)
    parser.add_argument("--jobs", type=int, default=2, help="plans at a time")
    parser.add_argument("--sizes", action="store_true")
    args = parser.parse_args()
    penstock = penstock_program.Program(args.penstock)
    if args.sizes:
        return print_sizes(penstock)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        cells = {(config, hardware): pool.submit(predict, penstock, config, hardware)
                 for _, config in MODELS for _, hardware in MACHINES}
    print("| model | " + " | ".join(name for name, _ in MACHINES) + " |")
    print("| --- " * (1 + len(MACHINES)) + "|")
    for name, config in MODELS:
        print(f"| {name} | " + " | ".join(cells[config, hardware].result() for _, hardware in MACHINES) + " |")


if __name__ == "__main__":
    main()
