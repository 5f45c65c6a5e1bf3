"""SiDA's throughput over standard inference: Switch Transformers on one GPU in virtual time. paper_tables.py puts the
table into the page."""

import json
import pathlib

CONFIG = pathlib.Path(__file__).parent / "switch-base.json"
HARDWARE = "a100:dram=512GiB"
SOURCE = "none: data sheets, and the presets' efficiencies"
# The task, tokens of a sentence, and how many experts of an encoder's layer a sentence uses, by the number of experts.
# Measured with the models of tools/train_switch on sentences that they were not trained on (docs/decisions/sida.md).
# The paper's sentences of MRPC have 50 to 80 tokens; so have these. Those of MultiRC have 200 to 500, these 207 to 256.
TASKS = [("SST-2", 22, {8: 5.63, 32: 11.99, 128: 15.69}), ("MRPC", 70, {8: 7.79, 32: 20.17, 128: 30.13}),
         ("MultiRC", 247, {8: 8.00, 32: 28.41, 128: 69.06})]
NUM_SPARSE = 6       # layers with experts of the encoder, and as many of the decoder
SELECTION = 0.74     # share of the time that Switch-base-256 spends on selecting experts for SST-2 (paper, figure 3)
PAPER = {("SST-2", 128): 2.60, ("SST-2", 256): 3.93, ("MRPC", 128): 2.52, ("MRPC", 256): 3.83, ("MultiRC", 128): 1.26,
         ("MultiRC", 256): 1.57}
TEXT = """\
The paper's GPU holds all experts here, and sentences come one at a time. Its standard inference visits every
expert of a layer, to see which rows chose it. With its tables, SiDA visits only experts that have rows. Each
visit takes the same time in both. So

    throughput over standard = (time of the rest + 12 E c) / (time of the rest + visits c)

- **The time of the rest** is simulated: a sentence of so many tokens, and the decoder's first token, by our
  `on-demand`.
- **c, a visit**, is the one number that was calibrated: {visit_us:.1f} us. With it, selecting takes
  {selection:.0%} of the time of Switch-base-256 on SST-2 (the paper's figure 3). So that row's ratio is not wholly
  predicted.
- **The visits** are those of our own trained models. A sentence's row in the decoder visits one expert. For
  256 experts the number is extrapolated: it grows from 128 to 256 as it did, on the average, from 32 to 64
  and from 64 to 128.

Our own `mode=replace` is not simulated: made-up sentences have no tokens. The predictor's time does not
count. For a sentence of 247 tokens it is 1 to 4 ms on one CPU core (`schedules_sida_network_bench`), on a
lane beside the GPU.
"""


class SidaTables:
    def __init__(self, simulations, mark):
        self.simulations, self.mark = simulations, mark

    def seconds(self, tokens):
        """Returns the seconds of a sentence. Experts come to the GPU with the first ones, so two runs are compared."""
        config = pathlib.Path(self.simulations.folder.name) / "switch-base-8.json"
        config.write_text(json.dumps(json.loads(CONFIG.read_text()) | {"num_experts": 8}))
        totals = [self.simulations.penstock.json(
            "simulate", "--config", config, "--weights", "f32", "--hardware", HARDWARE, "--schedule", "on-demand",
            "--batch-size", 1, "--context-length", 512, "--workload",
            f"prompt={tokens},gen=1,requests={count}")["schedules"][0]["seconds"]["total"] for count in (200, 400)]
        return (totals[1] - totals[0]) / 200

    def text(self):
        futures = [self.simulations.submit(self.seconds, tokens) for _, tokens, _ in TASKS]
        rest = {task: future.result() for (task, *_), future in zip(TASKS, futures, strict=True)}
        visit = SELECTION / (1 - SELECTION) * rest["SST-2"] / (2 * NUM_SPARSE * 256)
        text = (TEXT.format(visit_us=1e6 * visit, selection=SELECTION) +
                "\n| | tokens | experts | the rest, ms | visits | paper | simulated | simulated / paper |\n"
                "| --- | --- | --- | --- | --- | --- | --- | --- |\n")
        for task, tokens, active in TASKS:
            for experts in (8, 128, 256):
                of_layer = active.get(experts) or active[128] * (active[128] / active[32]) ** 0.5
                visits = NUM_SPARSE * (of_layer + 1)
                gain = (rest[task] + 2 * NUM_SPARSE * experts * visit) / (rest[task] + visits * visit)
                paper = PAPER.get((task, experts))
                is_base = (task, experts) == ("SST-2", 256)
                cells = ("", "") if paper is None else (f"{paper:.2f}", self.mark(gain / paper, calibrated=is_base))
                text += (f"| {task} | {tokens} | {experts} | {1e3 * rest[task]:.2f} | {visits:.0f} | {cells[0]} | "
                         f"{gain:.2f} | {cells[1]} |\n")
        return text + ("\nFor 8 experts the paper says only that SiDA is about as fast as standard inference.\n")
