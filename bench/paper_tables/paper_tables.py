#!/usr/bin/env python3
"""Simulates the tables of MoE-Lightning, Klotski, HybriMoE, SiDA and EPS-MoE with our own schedules on described
hardware, and writes docs/paper-tables.md: paper, simulated and their ratio side by side.

Every row is one `penstock simulate`, or one `penstock plan` where the papers search for the policy (scaling).
--verbose prints the command lines.
"""

import argparse
import concurrent.futures
import difflib
import json
import pathlib
import statistics
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import eps_moe  # noqa: E402
import penstock_program  # noqa: E402
import sida  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "tests" / "data" / "configs"
MIXTRAL, MIXTRAL_LARGE = CONFIGS / "mixtral-8x7b.json", CONFIGS / "mixtral-8x22b.json"
HERE = pathlib.Path(__file__).parent
DBRX, QWEN2, DEEPSEEK_LITE = (HERE / f"{name}.json" for name in ("dbrx", "qwen2-57b", "deepseek-v2-lite"))

# One calibration for each machine: the rates that its links and processors reach in place of the data sheets', and
# their source.
T4 = "link=12.9GB/s,copy=25.8GB/s,gpu-efficiency=0.066"
T4_SOURCE = ("link: what FlexGen measured from DRAM to a T4; GPU: 4.3 TFLOP/s, from solving MoE-Lightning(p)'s rows of "
             "Tables 4 and 5 for seconds a "
             "step and seconds a prompt token (kernels for 16 bits do not reach a T4's tensor cores)")
MACHINES = {
    "S1": ("t4:" + T4, T4_SOURCE),
    "S2": ("l4:link=14GB/s,copy=28GB/s,gpu-efficiency=0.152",
           "GPU: 18 TFLOP/s, from MoE-Lightning(p)'s rows likewise; link: between what DeepSpeed's two rows need"),
    "S6, S8": ("2xt4:link=25.8GB/s,copy=51.6GB/s,gpu-efficiency=0.066",
               "as S1; GPUs in parallel are one with their memory, rates and operations together (section 4.3), and with "
               "their links: each has 16 lanes"),
    "S7, S9": ("4xt4:link=51.6GB/s,copy=103.2GB/s,gpu-efficiency=0.066", "as S1, four GPUs"),
    "K1": ("rtx3090:link=16.8GB/s,copy=33.6GB/s,gpu-call-us=650,gpu-efficiency=0.2",
           "link: an expert of 352 MB in 21 ms (section 1); call: attention of a batch of 16 in 2.6 ms, four calls (section "
           "1); GPU: "
           "from the row of several batches; disk: 1 GB/s (Table 2)"),
    "H": ("a6000:dram=256GiB", "none: data sheets, and the presets' efficiencies"),
    "K2": ("h800:link=50GB/s,copy=100GB/s,gpu-call-us=650,gpu-efficiency=0.08",
           "link: three times K1's (PCIe 5.0, 16 lanes); call: as K1; link and GPU chosen so that the steps after the first "
           "come close"),
}
# One overhead for each rival's implementation, fitted on one row; its other rows are predicted. DeepSpeed has none.
RIVALS = {
    "FlexGen": (",gpu-call-us=2000", "2 ms for every call on the GPU, fitted on Table 5's first row"),
    "FlexGen(c)": (",gpu-call-us=2000,cpu-call-us=18000", "FlexGen's, and 18 ms for every call on the CPU, fitted on "
                                                          "summarization under S2"),
    "DeepSpeed": ("", "none"),
    "MoE-Lightning(p)": ("", "none"),
}
SCHEDULES = {"FlexGen": "zigzag", "FlexGen(c)": "zigzag-cpu-attention", "DeepSpeed": "zero", "MoE-Lightning(p)": "cgopipe"}

# padded to the longest prompt
MTBENCH, REASONING, SUMMARIZATION = "prompt=418,gen=128", "prompt=256,gen=50", "prompt=1984,gen=64"
# System, micro-batch, batch, tokens/s in the paper.
TABLE5 = [("FlexGen", 8, 1112, 9.5), ("FlexGen", 36, 504, 16.816), ("FlexGen", 36, 1116, 20.654),
          ("MoE-Lightning(p)", 36, 504, 30.12)]
TABLE4 = {
    ("reasoning", REASONING, "S1"): [("FlexGen(c)", 32, 1952, 16.903), ("FlexGen", 32, 1952, 22.691),
                                     ("DeepSpeed", 102, 102, 11.832),
                                     ("MoE-Lightning(p)", 36, 936, 26.349)],
    ("reasoning", REASONING, "S2"): [("FlexGen(c)", 64, 2112, 20.015), ("FlexGen", 64, 2112, 50.138),
                                     ("DeepSpeed", 156, 156, 18.589),
                                     ("MoE-Lightning(p)", 100, 1500, 105.29)],
    ("summarization", SUMMARIZATION, "S1"): [("FlexGen(c)", 3, 276, 2.614), ("FlexGen", 3, 276, 3.868),
                                             ("DeepSpeed", 8, 8, 0.965),
                                             ("MoE-Lightning(p)", 4, 76, 4.52)],
    ("summarization", SUMMARIZATION, "S2"): [("FlexGen(c)", 8, 288, 4.307), ("FlexGen", 8, 288, 7.14),
                                             ("DeepSpeed", 12, 12, 1.447),
                                             ("MoE-Lightning(p)", 8, 288, 12.393)],
}
# MoE-Lightning without padding over FlexGen, MT-Bench under S1 (Figure 7), and requests of the simulated job.
UNPADDED_GAIN, UNPADDED_REQUESTS = 10.3, 2000
# Rows by which a machine or an overhead was calibrated: system, batch, workload.
CALIBRATED = {
    "S1": {("FlexGen", 1112, MTBENCH), ("MoE-Lightning(p)", 504, MTBENCH), ("MoE-Lightning(p)", 936, REASONING)},
    "S2": {("MoE-Lightning(p)", 1500, REASONING), ("MoE-Lightning(p)", 288, SUMMARIZATION), ("DeepSpeed", 156, REASONING),
           ("DeepSpeed", 12, SUMMARIZATION), ("FlexGen(c)", 288, SUMMARIZATION)},
}
# Name, schedule, those of Klotski's ideas that are switched off, whether n batches form a group, weights.
KLOTSKI = [("simple pipeline", "zero", (), False, "bf16"), ("+ several batches", "zigzag", (), True, "bf16"),
           ("+ only hot experts ahead", "klotski", ("reorder",), True, "bf16"),
           ("+ reordered (Klotski)", "klotski", (), True, "bf16"),
           ("+ 4-bit", "klotski", (), True, "hqq4")]
# Batch size, n, tokens/s in the paper. The paper's table does not give the batch size; with 32, the simple pipeline's
# step takes as long as all weights over K1's link.
KLOTSKI_COLUMNS = [("Mixtral 8x7B, RTX 3090", MIXTRAL, "K1", 32, 15, [5.721, 18.24, 19.074, 22.414, 22.604]),
                   ("Mixtral 8x22B, RTX 3090", MIXTRAL_LARGE, "K1", 16, 10, [0.01, 0.97, 1.127, 1.325, 1.366]),
                   ("Mixtral 8x22B, H800", MIXTRAL_LARGE, "K2", 64, 15, [1.149, 34.07, 44.17, 52.85, 53.125])]
# Rows by which K1's batch and GPU, and K2's link and GPU, were chosen.
KLOTSKI_CALIBRATED = {("K1", MIXTRAL): {0, 1}, ("K2", MIXTRAL_LARGE): {1, 2, 3, 4}}
# HybriMoE's three models, and the speed-ups over kTransformers' fixed mapping that its authors report for all models
# and cache ratios together.
HYBRIMOE = [("DeepSeek-V2-Lite", DEEPSEEK_LITE), ("Qwen2-57B-A14B", QWEN2), ("Mixtral 8x7B", MIXTRAL)]
HYBRIMOE_PAPER = {"prefill": 1.33, "decode": 1.70}
# Places whole layers on the GPU and moves nothing.
FIXED = {"schedule": "hybrid", "hybrid_rule": "fixed", "eviction": "fifo", "predictor": "none"}
HYBRIMOE_POLICIES = {"fixed": FIXED, "hybrid": {"schedule": "hybrid", "predictor": "gate"},
                     "nothing ahead": {"schedule": "hybrid", "predictor": "none"}}
SCALING = [("Mixtral 8x22B", MIXTRAL_LARGE, "prompt=418", (32, 64, 128, 256), "2.77 to 3.38"),
           ("DBRX", DBRX, "prompt=77,max-prompt=418", (32, 64, 128, 256), "2.1 to 2.8")]

# The accuracy of the demo model's gates on a text like those that it was trained on.
GATES = ("--gate-accuracy", 0.8)
HYBRIMOE_TEXT = """\
HybriMoE's authors compare with kTransformers' fixed mapping. They report 1.33 times its speed in prefill and
1.70 in decode, for three models and cache ratios together.

Here the machine is an A6000 with a Xeon of its time, by their data sheets. Weights have 4 bits. There is one
sequence, with a prompt of 128 tokens or 128 steps of decoding. "Fixed" puts whole layers on the GPU and moves
nothing. Gates name 80 % of the next layer's choices. "Nothing ahead" asks no gate.
"""

INTRODUCTION = """# The papers' tables, simulated

`make paper-tables` (bench/paper_tables/paper_tables.py) writes this page. It has MoE-Lightning's Tables 4 and
5 and its scaling over several T4s, HybriMoE's speed-ups, Klotski's Table 3, and the gains of SiDA and
EPS-MoE.

**No row has been run on its hardware.** Our schedules' own code runs in virtual time
([planning.md](planning.md)) on machines that are described. A simulation knows nothing of a rival's code but
its schedule.

**Calibration.** Each machine has one set of effective rates:

| | machine | calibrated by |
| --- | --- | --- |
{machines}

Each system's implementation has one overhead, and no other number:

| | overhead |
| --- | --- |
{rivals}

Weights and KV cache have 16 bits. Prompts are padded to the longest, as in the paper's rows "(p)" and its
rivals'. A step has at most 8192 rows of prompts; the papers' policies do not say how many. Ratios that are
off by more than 35 % are marked with **(!)**. Figures by which a machine or an overhead was chosen are
marked with (c).

**Routing** is drawn at random with the structure of our demo model's. A layer's r-th expert is as likely as
1 / r^0.8. Of a token's choices 12 % repeat those of its sequence's last token, and 40 % follow from those in
the layer before ([decisions/routing.md](decisions/routing.md)).
"""
SUMMARY_TEXT = """\
Absolute figures and ratios for which the paper has a number. Figures marked with (c) are no predictions.
Ranges are not counted (several T4s, parts of EPS-MoE). The last section says why cells are outside.
"""


class Marks:
    """Marks figures that are off by more than 35 %, and counts all for a summary."""

    def __init__(self):
        self.section, self.quotients, self.num_calibrated = "", {}, {}

    def begin(self, section):
        self.section = section
        self.quotients[section], self.num_calibrated[section] = [], 0

    def __call__(self, ratio, center=1.0, calibrated=False):
        """A figure of which `ratio / center` would be 1 as in the paper. `calibrated`: the machine or the overhead was
        chosen by it, so it is no prediction. Figures that are 1 by definition are not given here."""
        if calibrated:
            self.num_calibrated[self.section] += 1
        else:
            self.quotients[self.section].append(ratio / center)
        return self.uncounted(ratio, center) + (" (c)" if calibrated else "")

    @staticmethod
    def uncounted(ratio, center=1.0):
        return f"{ratio:.2f}" + ("" if 0.65 <= ratio / center <= 1.35 else " **(!)**")

    def summary(self):
        text = ("| | predicted | within 15 % | within 35 % | outside | used to calibrate |\n"
                "| --- | --- | --- | --- | --- | --- |\n")
        def row(name, quotients, num_calibrated):
            close, near = (sum(abs(q - 1) <= limit for q in quotients) for limit in (0.15, 0.35))
            return (f"| {name} | {len(quotients)} | {close} | {near} | {len(quotients) - near} | {num_calibrated} |\n")
        for name, quotients in self.quotients.items():
            if quotients:
                text += row(name, quotients, self.num_calibrated[name])
        return text + row("all", sum(self.quotients.values(), []), sum(self.num_calibrated.values()))


mark = Marks()


class Simulations:
    def __init__(self, args):
        self.penstock = penstock_program.Program(args.penstock, args.verbose)
        self.pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
        self.folder = tempfile.TemporaryDirectory()

    def simulate(self, config, hardware, schedule, batch, micro_batch, workload, weights="bf16", off=()):
        policy = pathlib.Path(self.folder.name) / ("policy-" + "-".join(off) + ".json")
        policy.write_text(json.dumps({name: False for name in off}))
        return self.penstock.json("simulate", "--config", config, "--weights", weights, "--kv-dtype", "bf16",
                                  "--hardware", hardware, "--schedule", schedule, "--batch-size", batch,
                                  "--micro-batch-size", micro_batch, "--prefill-chunk", 8192, "--policy", policy,
                                  "--workload", f"{workload},requests={batch}")["schedules"][0]

    def plan(self, config, hardware, workload):
        # The disk is too slow to be of use, as in the paper: all weights are in memory.
        return self.penstock.json("plan", "--config", config, "--weights", "bf16", "--kv-dtype", "bf16",
                                  "--hardware", hardware + ",disk=0.01GB/s", "--schedule", "cgopipe",
                                  "--workload", workload)["choices"][0]

    def submit(self, function, *row, **keywords):
        return self.pool.submit(function, *row, **keywords)


def rate_of(result):
    return result["tokens_per_second"]["generation"]


def busiest(result):
    lanes = sorted(result["lanes"].items(), key=lambda lane: -lane[1])[:2]
    return ", ".join(f"{name} {share:.0%}" for name, share in lanes)


def lightning_table(simulations, machine, workload, rows, base):
    """`base`: the row that the other rows are compared with."""
    futures = [simulations.submit(simulations.simulate, MIXTRAL, MACHINES[machine][0] + RIVALS[system][0], SCHEDULES[system],
                                  batch, micro_batch, workload)
               for system, micro_batch, batch, _ in rows]
    results = [future.result() for future in futures]
    text = ("| | mu | N | paper tokens/s | simulated | simulated / paper | paper, of " + rows[base][0] +
            " | simulated | prefill s | decode s | busiest lanes |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
    for i, ((system, micro_batch, batch, paper), result) in enumerate(zip(rows, results, strict=True)):
        calibrated = [(row[0], row[2], workload) in CALIBRATED[machine] for row in (rows[i], rows[base])]
        ratio, simulated = paper / rows[base][3], rate_of(result) / rate_of(results[base])
        gain = f"{simulated:.2f}" if i == base else mark(simulated, ratio, calibrated=all(calibrated))
        seconds = result["seconds"]
        text += (f"| {system} | {micro_batch} | {batch} | {paper:.2f} | {rate_of(result):.2f} | "
                 f"{mark(rate_of(result) / paper, calibrated=calibrated[0])} | {ratio:.2f} | {gain} | "
                 f"{seconds['prefill']:.0f} | {seconds['decode']:.0f} | {busiest(result)} |\n")
    order = [sorted(range(len(rows)), key=lambda i, key=key: key[i])
             for key in ([row[3] for row in rows], [rate_of(result) for result in results])]
    verdict = "as in the paper" if order[0] == order[1] else "not as in the paper **(!)**"
    return text + f"\nThe systems' order is {verdict}.\n"


def klotski_tables(simulations):
    text = ""
    submitted = []
    for _, config, machine, batch, num_batches, _ in KLOTSKI_COLUMNS:
        submitted.append([simulations.submit(simulations.simulate, config, MACHINES[machine][0], schedule,
                                             batch * (num_batches if grouped else 1), batch,
                                             "prompt=512,gen=32", weights, off)
                          for _, schedule, off, grouped, weights in KLOTSKI])
    for (title, config, machine, batch, num_batches, papers), futures in zip(KLOTSKI_COLUMNS, submitted, strict=True):
        chosen = KLOTSKI_CALIBRATED.get((machine, config), set())
        text += (f"\n### {title}: batches of {batch}, n = {num_batches}\n\n| | paper tokens/s | simulated | simulated / "
                 f"paper | step in the paper | simulated | busiest lanes |\n"
                 "| --- | --- | --- | --- | --- | --- | --- |\n")
        results = [future.result() for future in futures]
        for i, (step, *_) in enumerate(KLOTSKI):
            gain = gain_simulated = ""
            quotient = mark(rate_of(results[i]) / papers[i], calibrated=i in chosen)
            if i > 0:
                gain = papers[i] / papers[i - 1]
                step_gain = rate_of(results[i]) / rate_of(results[i - 1])
                gain_simulated = mark(step_gain, gain, calibrated={i, i - 1} <= chosen)
                gain = f"{gain:.2f}"
            text += (f"| {step} | {papers[i]} | {rate_of(results[i]):.2f} | {quotient} | {gain} | {gain_simulated} | "
                     f"{busiest(results[i])} |\n")
    return text


def unpadded_table(simulations):
    """MoE-Lightning without padding, with the planner's policy, over FlexGen with padding."""
    system, micro_batch, batch, _ = TABLE5[0]
    padded = simulations.submit(simulations.simulate, MIXTRAL, MACHINES["S1"][0] + RIVALS[system][0], SCHEDULES[system],
                                batch, micro_batch, MTBENCH)
    plan = simulations.plan(MIXTRAL, MACHINES["S1"][0], f"mtbench:requests={UNPADDED_REQUESTS}")
    rate, policy = plan["predicted"]["generation_tokens_per_second"], plan["policy"]
    ratio = rate / rate_of(padded.result())
    return ("| | mu | N | simulated tokens/s | over FlexGen, paper | simulated | simulated / paper |\n"
            "| --- | --- | --- | --- | --- | --- | --- |\n"
            f"| FlexGen, padded | {micro_batch} | {batch} | {rate_of(padded.result()):.2f} | 1 | 1 |  |\n"
            f"| MoE-Lightning | {policy['micro_batch_size']} | {policy['batch_size']} | {rate:.2f} | up to {UNPADDED_GAIN} "
            f"| {ratio:.2f} | {mark(ratio / UNPADDED_GAIN)} |\n")


def scaling_table(simulations):
    text = ("| | answers of | 2 x T4 tokens/s | policy | 4 x T4 | policy | 4 / 2 | paper |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- |\n")
    submitted = {(name, tokens): [simulations.submit(simulations.plan, config, MACHINES[machine][0],
                                                     f"{prompts},gen={tokens}") for machine in ("S6, S8", "S7, S9")]
                 for name, config, prompts, lengths, _ in SCALING for tokens in lengths}
    for name, _, _, lengths, paper in SCALING:
        for tokens in lengths:
            two, four = (future.result() for future in submitted[name, tokens])
            rates = [plan["predicted"]["generation_tokens_per_second"] for plan in (two, four)]
            words = [f"N {p['policy']['batch_size']}, mu {p['policy']['micro_batch_size']}, "
                     f"{p['device_memory']['pinned_experts']} experts stay" for p in (two, four)]
            text += (f"| {name} | {tokens} | {rates[0]:.1f} | {words[0]} | {rates[1]:.1f} | {words[1]} | "
                     f"{rates[1] / rates[0]:.2f} | {paper} |\n")
    return text


def hybrimoe_table(simulations):
    """Simulates weights in 4 bits and one sequence: a prompt of 128 tokens, then answers."""
    def rates(config, policy, share):
        def flags(workload, policy, memory):
            path = pathlib.Path(simulations.folder.name) / f"hybrimoe-{policy}.json"
            path.write_text(json.dumps(HYBRIMOE_POLICIES[policy]))
            return ("--config", config, "--weights", "hqq4", "--kv-dtype", "bf16", "--hardware", MACHINES["H"][0],
                    "--batch-size", 1, "--micro-batch-size", 1,
                    "--prefill-chunk", 128, "--context-length", 512, "--policy", path, "--workload",
                    workload + ",requests=1", "--gpu-memory", memory)
        def simulate(workload):
            plan = simulations.penstock.json("plan", *flags(workload, policy, "40GiB"), "--schedule", "hybrid")
            memory = plan["choices"][0]["device_memory"]
            num_experts = memory["expert_slots"]
            slot_bytes = memory["expert_bytes"] // num_experts
            room = int(share * plan["choices"][0]["memory"]["experts"]) * slot_bytes
            needed = memory["dense_bytes"] + memory["kv_bytes"] + memory["activation_bytes"] + room
            return simulations.penstock.json("simulate", *flags(workload, policy, f"{needed}B"), "--schedule", "hybrid",
                                             *GATES)["schedules"][0]
        return {"prefill": 1 / simulate("prompt=128,gen=1")["seconds"]["prefill"],
                "decode": 1 / simulate("prompt=16,gen=128")["seconds"]["decode"]}

    submitted = {(name, share, policy): simulations.submit(rates, config, policy, share)
                 for name, config in HYBRIMOE for share in (0.25, 0.5, 0.75) for policy in HYBRIMOE_POLICIES}
    text = ("| | experts on the GPU | prefill over fixed | nothing ahead | decode over fixed | nothing ahead |\n"
            "| --- | --- | --- | --- | --- | --- |\n")
    gains = {(stage, policy): [] for stage in HYBRIMOE_PAPER for policy in ("hybrid", "nothing ahead")}
    for name, _ in HYBRIMOE:
        for share in (0.25, 0.5, 0.75):
            fixed, hybrid, plain = (submitted[name, share, policy].result() for policy in HYBRIMOE_POLICIES)
            cells = [f"{rates[stage] / fixed[stage]:.2f}" for stage in HYBRIMOE_PAPER for rates in (hybrid, plain)]
            for stage in HYBRIMOE_PAPER:
                gains[stage, "hybrid"].append(hybrid[stage] / fixed[stage])
                gains[stage, "nothing ahead"].append(plain[stage] / fixed[stage])
            text += f"| {name} | {share:.0%} | " + " | ".join(cells) + " |\n"
    text += ("\nGeometric means, of the paper's:\n\n| | paper | simulated | simulated / paper | nothing ahead | / paper |\n"
             "| --- | --- | --- | --- | --- | --- |\n")
    for stage, paper in HYBRIMOE_PAPER.items():
        mean, plain = (statistics.geometric_mean(gains[stage, policy]) for policy in ("hybrid", "nothing ahead"))
        text += (f"| {stage} | {paper} | {mean:.2f} | {mark(mean / paper)} | {plain:.2f} | "
                 f"{mark.uncounted(plain / paper)} |\n")
    return text


def document(simulations):
    machines = MACHINES | {name: (f"{hardware}, --network {network}", eps_moe.SOURCES[name])
                           for name, (hardware, network) in eps_moe.MACHINES.items()}
    machines["D"] = (sida.HARDWARE, sida.SOURCE)
    text = INTRODUCTION.format(
        machines="\n".join(f"| {name} | `{spec}` | {source} |" for name, (spec, source) in machines.items()),
        rivals="\n".join(f"| {name} | {source} |" for name, (_, source) in RIVALS.items()))
    parts = []

    def begin(title, section):
        mark.begin(section)
        parts.append(f"\n## {title}\n")

    begin("MoE-Lightning, Table 5: MT-Bench under S1, answers of 128", "MoE-Lightning, Table 5")
    parts.append("\n" + lightning_table(simulations, "S1", MTBENCH, TABLE5, 0))
    begin("MoE-Lightning, Table 4: HELM", "MoE-Lightning, Table 4")
    for (name, workload, machine), rows in TABLE4.items():
        parts.append(f"\n### {name.capitalize()} under {machine}\n\n" +
                     lightning_table(simulations, machine, workload, rows, 1))
    begin("MoE-Lightning without padding: MT-Bench under S1", "MoE-Lightning, unpadded")
    parts.append("\n" + unpadded_table(simulations))
    begin("MoE-Lightning over several T4s", "MoE-Lightning over T4s")
    parts.append("\n" + scaling_table(simulations))
    begin("HybriMoE over a fixed mapping", "HybriMoE")
    parts.append("\n" + HYBRIMOE_TEXT + "\n" + hybrimoe_table(simulations))
    begin("Klotski, Table 3: prompts of 512, answers of 32", "Klotski, Table 3")
    parts.append(klotski_tables(simulations))
    begin("SiDA over standard inference", "SiDA")
    parts.append("\n" + sida.SidaTables(simulations, mark).text())
    begin("EPS-MoE", "EPS-MoE")
    parts.append("\n" + eps_moe.EpsTables(simulations, mark).text())
    return text + "\n## Summary\n\n" + SUMMARY_TEXT + "\n" + mark.summary() + "".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=penstock_program.DEFAULT)
    parser.add_argument("--jobs", type=int, default=2, help="simulations at once")
    parser.add_argument("--notes", type=pathlib.Path, default=pathlib.Path(__file__).parent / "notes.md",
                        help="put at the end of the document")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs" / "paper-tables.md")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the document would change")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    text = document(Simulations(args)) + "\n" + args.notes.read_text()
    if args.check:
        changes = list(difflib.unified_diff(args.output.read_text().splitlines(), text.splitlines(), str(args.output),
                                            "simulated now", lineterm=""))
        if changes:
            raise SystemExit("\n".join(changes))
        return
    args.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
