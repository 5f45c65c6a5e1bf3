"""Measure model folders with the forward pass of transformers, in f32 on the CPU.

For each folder: the accuracy on each task's lines (the choice with the largest log-likelihood of its tokens before
</s>), the share of the most frequent label, the share of tokens that the capacity dropped, and how evenly each
sparse layer uses its experts. Writes one JSON object, {name of the folder: numbers}.
"""
import argparse
import json
import math
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, SwitchTransformersForConditionalGeneration


class Usage:
    """Counts each router's choices and the tokens without room, padding left out."""

    def __init__(self, model):
        self.real, self.counts, self.dropped = None, {}, {}
        for name, module in model.named_modules():
            if name.endswith(".router"):
                module.register_forward_hook(self.hook(".".join(name.split(".")[:3])))

    def hook(self, name):
        return lambda module, given, out: self.count(name, out)

    def count(self, name, out):
        """out: one-hot choices without the dropped ones (B, T, E), probabilities, logits (B, T, E)"""
        taken, _, logits = out
        real = self.real if name.startswith("encoder") else torch.ones(logits.shape[:2], dtype=torch.bool)
        found = torch.bincount(logits.argmax(-1)[real], minlength=logits.shape[-1])
        self.counts[name] = self.counts.get(name, 0) + found
        self.dropped[name] = self.dropped.get(name, 0) + int((real & (taken.sum(-1) == 0)).sum())

    def report(self):
        layers = {}
        for name, counts in self.counts.items():
            share = counts.double() / counts.sum()
            entropy = -(share * share.clamp(min=1e-12).log()).sum().item() / math.log(len(share))
            layers[name] = {"entropy": round(entropy, 4), "largest_share": round(share.max().item(), 4),
                            "unused_experts": int((counts == 0).sum()),
                            "dropped": round(self.dropped[name] / int(counts.sum()), 5)}
        total = sum(int(c.sum()) for c in self.counts.values())
        return {"dropped": round(sum(self.dropped.values()) / total, 5), "layers": layers}


def batches(lines, tokenizer, rows, max_length):
    """Lines of like lengths together -> (lines, input ids (B, S), mask (B, S))"""
    ids = [tokenizer(line["prompt"], truncation=True, max_length=max_length).input_ids for line in lines]
    order = sorted(range(len(lines)), key=lambda i: len(ids[i]))
    for at in range(0, len(order), rows):
        part = order[at:at + rows]
        inputs = torch.zeros(len(part), len(ids[part[-1]]), dtype=torch.long)
        for row, i in enumerate(part):
            inputs[row, :len(ids[i])] = torch.tensor(ids[i])
        yield [lines[i] for i in part], inputs, (inputs != 0).long()


@torch.no_grad()
def accuracy(model, tokenizer, lines, usage, rows, max_length):
    """Share of lines whose labelled choice has the largest log-likelihood."""
    right = 0
    for part, inputs, mask in batches(lines, tokenizer, rows, max_length):
        usage.real = mask.bool()
        states = model.encoder(input_ids=inputs, attention_mask=mask)
        scores = []
        for choice in part[0]["choices"]:
            labels = torch.tensor(tokenizer(choice, add_special_tokens=False).input_ids).repeat(len(part), 1)
            logits = model(encoder_outputs=states, attention_mask=mask, labels=labels).logits
            each = torch.log_softmax(logits, -1).gather(2, labels[..., None])[..., 0]
            scores.append(each.sum(1))
        best = torch.stack(scores, 1).argmax(1)
        right += sum(int(b) == line["label"] for b, line in zip(best, part, strict=True))
    return right / len(lines)


def measure(folder, tasks, rows, max_length):
    model = SwitchTransformersForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    usage, found = Usage(model), {}
    for name, lines in tasks.items():
        share = sum(line["label"] for line in lines) / len(lines)
        found[name] = {"accuracy": round(accuracy(model, tokenizer, lines, usage, rows, max_length), 4),
                       "majority": round(max(share, 1 - share), 4), "lines": len(lines)}
    parameters = sum(p.numel() for p in model.parameters())
    return {"parameters": parameters, "experts": model.config.num_experts, "tasks": found, **usage.report()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="folders of export.py")
    parser.add_argument("--tasks", type=Path, nargs="+", required=True, help="JSONL files of tasks.py, such as val/*.jsonl")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tasks = {p.stem: [json.loads(s) for s in p.read_text(encoding="utf-8").splitlines()] for p in args.tasks}
    report = {}
    for folder in args.models:
        begin = time.monotonic()
        report[folder.name] = measure(folder, tasks, args.batch, args.max_length)
        report[folder.name]["seconds"] = round(time.monotonic() - begin, 1)
        print(folder.name, json.dumps({n: t["accuracy"] for n, t in report[folder.name]["tasks"].items()}), flush=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
