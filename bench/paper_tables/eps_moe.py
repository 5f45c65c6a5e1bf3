"""EPS-MoE's tables: our ranks in virtual time, on H800s joined by NVLink. paper_tables.py puts them into the page."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).parent
MIXTRAL = ROOT / "tests" / "data" / "configs" / "mixtral-8x7b.json"
DEEPSEEK = HERE / "deepseek-v2.json"
# DeepSeek-V2's experts without its attention and vocabulary, to measure a layer of experts.
EXPERTS = HERE / "deepseek-v2-experts.json"

# An H800 SXM computes and reads its memory like an H100 SXM. Machines with their networks.
MACHINES = {
    "E1": ("h100:gpu-efficiency=0.29", "100GB/s"),
    "E2": ("h100:gpu-efficiency=1", "100GB/s"),
    "E3": ("h100", "100GB/s"),
}
SOURCES = {
    "E1": "network: assumed, half of NVLink's 200 GB/s in each direction; GPU: from the layer without overlap (5.698 ms), "
          "whose experts have 115 rows each",
    "E2": "network: as E1; GPU: none; products of 8 bits at half of their peak, which is the peak of 16 bits",
    "E3": "network: as E1; GPU: none; the preset's efficiency",
}
# DeepSeek-V2 was trained so that all ranks get equally many rows.
EVEN = ("--routing-skew", 0, "--routing-repeat", 0, "--routing-follow", 0)
TEXT = """\
Each rank is one GPU. The paper's figures are those of its text. All experts are equally likely here, because
DeepSeek-V2 was trained to give all ranks equally many rows. With the popularity of the other tables, the rank
with the most popular experts takes 1.9 times as long, and all others wait for it.

All experts and the KV cache lie on the GPUs, and rows and outputs travel in 16 bits where the paper's do. PN
is the number of groups of a rank's experts.

Our splits exchange other bytes than the paper's formulas. A row's outputs travel one by one, because their
sum would depend on the number of ranks: k instead of g. TP attention sends its output projection's inputs to
the rows' own rank. So its exchange has (D - 1) / D^2 of the rows' floats instead of (D - 1) / D.
`tests/simulate/simulated_ranks_test.cc` compares the counted bytes with these formulas.
"""


class EpsTables:
    def __init__(self, simulations, mark):
        self.simulations, self.mark = simulations, mark

    def seconds(self, config, machine, ranks, prompt, batch, steps, groups, weights="bf16", parallel="auto"):
        """Returns the seconds of a step of `batch` prompts on each rank. Experts come to the GPU in the first steps, so
        two runs are compared."""
        policy = pathlib.Path(self.simulations.folder.name) / f"groups-{groups}.json"
        policy.write_text(json.dumps({"expert_groups": groups, "kv_tier": "device"}))
        hardware, network = MACHINES[machine]
        totals = []
        for num_steps in (steps, 2 * steps):
            result = self.simulations.penstock.json(
                "simulate", "--config", config, "--weights", weights, "--dtype", "bf16", "--hardware", hardware, "--ranks",
                ranks, "--network", network, "--batch-size", batch, "--prefill-chunk", prompt * batch, "--schedule",
                "on-demand", "--policy", policy, "--comm-dtype", "bf16", "--parallel", parallel, "--workload",
                f"prompt={prompt},gen=1,requests={num_steps * batch * ranks}", *EVEN)
            totals.append(result["schedules"][0]["seconds"]["total"])
        return (totals[1] - totals[0]) / steps

    def submit(self, *row, **keywords):
        return self.simulations.submit(self.seconds, *row, **keywords)

    def layer(self):
        """A layer [5120, 1536], 3,072 rows on each of 4 GPUs."""
        num_layers = json.loads(EXPERTS.read_text())["num_hidden_layers"]
        rows = [("without overlap", 1, 5.698), ("PN 2", 2, None), ("PN 4", 4, 4.837), ("PN 8", 8, None),
                ("PN chosen", 0, None)]
        results = [self.submit(EXPERTS, "E1", 4, 3072, 1, 2, groups) for _, groups, _ in rows]
        times = [1e3 * result.result() / num_layers for result in results]
        text = ("| | paper, ms | simulated | simulated / paper | of no overlap, paper | simulated |\n"
                "| --- | --- | --- | --- | --- | --- |\n")
        for (name, _, paper), ms in zip(rows, times, strict=True):
            share, is_base = ms / times[0], name == rows[0][0]
            cells = ("", "", "") if paper is None else (f"{paper}", self.mark(ms / paper, calibrated=is_base),
                                                           f"{paper / rows[0][2]:.2f}")
            text += (f"| {name} | {cells[0]} | {ms:.2f} | {cells[1]} | {cells[2]} | "
                     f"{f'{share:.2f}' if paper is None or is_base else self.mark(share, paper / rows[0][2])} |\n")
        return text

    def deepseek(self):
        """DeepSeek-V2 on 8 GPUs, prompts of 2,048."""
        rows = [("without overlap", 1, 100), ("PN 2", 2, None), ("PN 4", 4, 120), ("PN chosen", 0, None)]
        results = [self.submit(DEEPSEEK, "E2", 8, 2048, 4, 1, groups, weights="fp8") for _, groups, _ in rows]
        rates = [8 * 4 * 2048 / result.result() / 1e3 for result in results]
        text = ("| | paper, thousand tokens/s | simulated | simulated / paper | gain in the paper | simulated |\n"
                "| --- | --- | --- | --- | --- | --- |\n")
        for (name, _, paper), rate in zip(rows, rates, strict=True):
            gain, is_base = rate / rates[0], name == rows[0][0]
            cells = ("", "", "") if paper is None else (f"{paper}", self.mark(rate / paper), f"{paper / rows[0][2]:.2f}")
            text += (f"| {name} | {cells[0]} | {rate:.1f} | {cells[1]} | {cells[2]} | "
                     f"{f'{gain:.2f}' if paper is None or is_base else self.mark(gain, paper / rows[0][2])} |\n")
        return text

    def mixtral(self):
        """Mixtral 8x7B on 4 GPUs, prompts of 4,096: the time to the first token, and what reduces it."""
        splits = [("TP + TP", "attention=tp,experts=tp", 1), ("TP + EP", "attention=tp,experts=ep", 1),
                  ("TP + EP, overlapped", "attention=tp,experts=ep", 0), ("DP + EP", "attention=dp,experts=ep", 1),
                  ("DP + EP, overlapped", "attention=dp,experts=ep", 0), ("DP + TP", "attention=dp,experts=tp", 1)]
        paper = {"TP + EP": "8 to 13 %", "TP + EP, overlapped": "4.8 % more"}
        batches = (1, 2, 4)
        submitted = {(name, batch): self.submit(MIXTRAL, "E3", 4, 4096, batch, 2, groups, parallel=parallel)
                     for name, parallel, groups in splits for batch in batches}
        columns = " | ".join(f"{4 * batch} prompts, ms | less" for batch in batches)
        text = (f"| | paper, less than TP + TP | {columns} |\n"
                "| --- | --- |" + " --- | --- |" * len(batches) + "\n")
        base = {batch: submitted[splits[0][0], batch].result() for batch in batches}
        for name, _, _ in splits:
            text += f"| {name} | {paper.get(name, '')} |"
            for batch in batches:
                seconds = submitted[name, batch].result()
                text += f" {1e3 * seconds:.0f} | {1 - seconds / base[batch]:.1%} |"
            text += "\n"
        return text

    def crossover(self):
        """From how many rows on groups help, for DeepSeek-V2's experts on 8 GPUs."""
        counts = (64, 256, 512, 1024, 1700, 2048, 4096)
        submitted = {(count, groups): self.submit(EXPERTS, "E1", 8, count, 1, 2, groups)
                     for count in counts for groups in (1, 4, 0)}
        text = ("| rows of a rank | PN 4, of no overlap | PN chosen, of no overlap |\n| --- | --- | --- |\n")
        for count in counts:
            plain, four, chosen = (submitted[count, groups].result() for groups in (1, 4, 0))
            text += f"| {count} | {four / plain:.2f} | {chosen / plain:.2f} |\n"
        return text

    def text(self):
        return (TEXT + "\n### A layer of DeepSeek-V2's experts, 4 H800s, 3,072 rows each\n\n" +
                self.layer() + "\n### From how many rows on groups help, 8 H800s\n\nThe paper has a gain from about 1,700 "
                "rows on.\n\n" + self.crossover() + "\n### DeepSeek-V2, 8 H800s, prompts of 2,048\n\n" + self.deepseek() +
                "\n### Mixtral 8x7B, 4 H800s, prompts of 4,096: time to the first token\n\n" + self.mixtral())
