#!/usr/bin/env python3
"""Proves that `inspect` takes the config.json of every published model in tests/data/configs, and of a golden model of
every architecture. `plan` takes one config of each architecture, and with --all those of all published models. Models that
Penstock does not run are refused by name, in one line, by both.

Prints the processor time of each plan."""
import argparse
import json
import pathlib
import re
import resource

import program

REFUSED = {
    "deepseek-v4-flash": r"field 'architectures': 'DeepseekV4ForCausalLM' is not supported: .* several residual streams",
    "kimi-k3": r"field 'architectures': 'KimiK3ForConditionalGeneration' is not supported: .* layers before returned",
    "minimax-m3": r"field 'architectures': 'MiniMaxM3ForCausalLM' is not supported: .* blocks of positions",
    "qwen3-0.6b": r"field 'architectures': 'Qwen3ForCausalLM' is not supported",
}
# A server with much memory, for which all of these models have a plan.
PLAN = ("--hardware", "h200:dram=2048GiB", "--device", "cpu", "--kv-dtype", "int8", "--json")


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_plan(penstock, config, workload):
    """Returns the processor time of a plan."""
    start = cpu_seconds()
    done = penstock.run("plan", "--config", config, *PLAN, "--workload", workload)
    assert done.returncode == 0, (config, done.stderr)
    best = json.loads(done.stdout)["choices"][0]
    assert best["predicted"]["generation_tokens_per_second"] > 0, (config, best)
    return cpu_seconds() - start


def check_inspect(penstock, config):
    done = penstock.run("inspect", "--config", config, "--json")
    assert done.returncode == 0, (config, done.stderr)
    report = json.loads(done.stdout)
    for field in ("family", "total_bytes", "dense_bytes", "bytes_per_expert", "kv_bytes_per_position", "num_experts"):
        assert report[field], (config, field, report)
    assert penstock.run("inspect", "--config", config).returncode == 0, config


def check_refused(penstock, config, pattern):
    for command in ("inspect", "plan"):
        done = penstock.run(command, "--config", config)
        assert done.returncode == 3 and not done.stdout, (config, done.returncode, done.stderr)
        assert len(done.stderr.splitlines()) == 1 and re.search(pattern, done.stderr), (config, done.stderr)


def one_of_each_architecture(configs):
    found = {}
    for path in configs:
        found.setdefault(json.loads(path.read_text())["architectures"][0], path)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--configs", type=pathlib.Path, default=program.ROOT / "tests/data/configs")
    parser.add_argument("--all", action="store_true", help="plan for all published models")
    parser.add_argument("--workload", default="prompt=16,gen=4,requests=8", help="what published models are planned for")
    args = parser.parse_args()
    penstock = program.Penstock(args.penstock)
    configs = {path.stem: path for path in sorted(args.configs.glob("*.json"))}
    assert set(configs) >= set(REFUSED), set(REFUSED) - set(configs)
    published = one_of_each_architecture(configs.values())
    num_planned = 0
    for name, config in configs.items():
        if name in REFUSED:
            check_refused(penstock, config, REFUSED[name])
            continue
        check_inspect(penstock, config)
        if args.all or config in published.values():
            print(f"{check_plan(penstock, config, args.workload):6.1f} s  {name}", flush=True)
            num_planned += 1
    golden = one_of_each_architecture(sorted((program.ROOT / "tests/golden").glob("*/config.json")))
    for architecture, config in golden.items():
        check_inspect(penstock, config)
        if architecture not in published:
            check_plan(penstock, config, "prompt=16,gen=4,requests=8")
            num_planned += 1
    print(f"{len(configs) - len(REFUSED)} published models and {len(golden)} architectures are inspected, {num_planned} "
          f"have plans; {len(REFUSED)} are refused")


if __name__ == "__main__":
    main()
