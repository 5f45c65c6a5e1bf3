"""Train a Switch Transformer: `pretrain` by span corruption, then `finetune` on the tasks, all in one model.

The learning rate depends on the share of --max-seconds (or --max-steps) that has passed, so a run ends on time.
--resume continues from OUT/checkpoint.pt. Output folder:
  checkpoint.pt  weights, optimizer, average; written every --save-seconds and at the end
  weights.pt     the weights to export: after pretraining the last ones; after fine-tuning the average of the
                 weights with the best mean accuracy on the part dev
  log.jsonl      progress; times are the stage's seconds
"""
import argparse
import json
import os
import random
import time
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from batches import Finetuning, Pretraining
from model import Config, Sparse, Switch, router_losses


def groups(model, lr, decay):
    """AdamW's groups. The embedding has large entries and takes larger steps; only matrices decay."""
    embedding, matrices, rest = [], [], []
    for name, p in model.named_parameters():
        small = p.dim() < 2 or "relative" in name or "router" in name
        (embedding if name.startswith("shared") else rest if small else matrices).append(p)
    return [{"params": embedding, "scale": 4 * lr, "weight_decay": 0.0},
            {"params": matrices, "scale": lr, "weight_decay": decay},
            {"params": rest, "scale": lr, "weight_decay": 0.0}]


def cross_entropy(model, inputs, targets):
    """Mean loss of the targets' tokens, padding left out, in nats."""
    logits, _ = model(inputs, targets)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=0)


class Run:
    """Model, optimizer and data of one stage."""

    def __init__(self, args):
        self.args, self.out, self.device = args, args.out, torch.device(args.device)
        self.out.mkdir(parents=True, exist_ok=True)
        start = torch.load(args.init, weights_only=True, map_location="cpu") if args.init else None
        names = Config.__dataclass_fields__
        config = Config(**start["config"]) if start else Config(**{k: v for k, v in vars(args).items() if k in names})
        torch.manual_seed(args.seed)
        self.model = Switch(config)
        if start:
            self.model.load_state_dict(start["model"])
        self.model.to(self.device)
        self.average = [p.detach().clone() for p in self.model.parameters()]
        self.optimizer = torch.optim.AdamW(groups(self.model, args.lr, args.decay), lr=0.0, betas=(0.9, 0.98),
                                           fused=self.device.type == "cuda")
        self.generator = torch.Generator(self.device)
        if args.stage == "pretrain":
            self.data = Pretraining(args.data, config.vocab, args, self.device)
        else:
            self.data = Finetuning(args.data / "tasks.npz", args, self.device)
        self.step, self.elapsed, self.best = 0, 0.0, -1.0
        path = self.out / "checkpoint.pt"
        if args.resume and path.exists():
            self.restore(torch.load(path, weights_only=True, map_location=self.device))

    def restore(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average = state["average"]
        self.step, self.elapsed, self.best = state["step"], state["elapsed"], state["best"]

    def log(self, **what):
        line = json.dumps({"step": self.step, "seconds": round(self.elapsed, 1), **what})
        print(line, flush=True)
        with open(self.out / "log.jsonl", "a") as file:
            file.write(line + "\n")

    def save(self, name, state):
        """A reader sees the old file or the new one, never a part."""
        torch.save({"config": asdict(self.model.c), **state}, self.out / (name + ".tmp"))
        os.replace(self.out / (name + ".tmp"), self.out / name)

    def checkpoint(self):
        self.save("checkpoint.pt", {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "average": self.average,
            "step": self.step, "elapsed": self.elapsed, "best": self.best})

    def precision(self):
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.bf16)

    def measure(self):
        """Measures the averaged weights (pretraining: the last ones), and saves them if they are the best."""
        averaged = self.args.stage == "finetune"
        current = [p.detach().clone() for p in self.model.parameters()]
        if averaged:
            with torch.no_grad():
                torch._foreach_copy_(list(self.model.parameters()), self.average)
        self.model.eval()
        self.model.regularise(0.0, 0.0, 0.0, None)
        with self.precision():
            found = self.data.measure(self.model, cross_entropy)
        self.log(**found)
        score = found.get("score", self.step)
        if score >= self.best:
            self.best = score
            self.save("weights.pt", {"model": self.model.state_dict(), "step": self.step})
        with torch.no_grad():
            torch._foreach_copy_(list(self.model.parameters()), current)
        self.model.train()
        self.regularise()

    def regularise(self):
        a = self.args
        self.model.regularise(a.drop, a.expert_drop, a.jitter, a.bucket_factor or None)

    def update(self, share):
        """One step -> name of the batch and its losses, on the device."""
        a = self.args
        factor = min(1.0, (self.step + 1) / a.warmup) * max(0.02, 1 - share)
        for group in self.optimizer.param_groups:
            group["lr"] = group["scale"] * factor
        self.generator.manual_seed(a.seed * 1_000_003 + self.step)
        name, inputs, targets = self.data.batch(self.generator, random.Random(a.seed * 1_000_003 + self.step),
                                                share)
        with self.precision():
            logits, routings = self.model(inputs, targets)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=0)
        balance, z, dropped = router_losses(routings, self.model.c.experts)
        total = loss + len(routings) * (a.aux_coef * balance + a.z_coef * z)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if a.stage == "finetune":
            with torch.no_grad():
                keep = min(a.average, (1 + self.step) / (10 + self.step))
                torch._foreach_lerp_(self.average, list(self.model.parameters()), 1 - keep)
        return name, torch.stack((loss.detach(), balance.detach(), z.detach(), dropped))

    def train(self):
        a = self.args
        self.model.train()
        self.regularise()
        before, begin = self.elapsed, time.monotonic()
        saved = measured = self.elapsed
        sums = {}
        while True:
            self.elapsed = before + time.monotonic() - begin
            share = max(self.elapsed / a.max_seconds, self.step / a.max_steps)
            if share >= 1:
                break
            name, losses = self.update(share)
            self.step += 1
            sums.setdefault(name, []).append(losses)
            if self.step % a.log_steps == 0:
                means = {n: torch.stack(s).mean(0).tolist() for n, s in sums.items()}
                self.log(**{n: [round(v, 4) for v in m] for n, m in means.items()})
                sums = {}
            if self.elapsed - saved > a.save_seconds:
                self.checkpoint()
                saved = self.elapsed
            if self.elapsed - measured > a.eval_seconds:
                self.measure()
                measured = self.elapsed
        self.checkpoint()
        self.measure()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=["pretrain", "finetune"], required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of texts.py (pretrain) or tasks.py (finetune)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--init", type=Path, help="weights.pt to begin with; its dims win over the flags")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--max-seconds", type=float, default=3600.0, help="of training; the last measurement comes after")
    parser.add_argument("--max-steps", type=int, default=10**9)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="autocast; routers stay in f32")
    parser.add_argument("--seed", type=int, default=1)
    for name, value in asdict(Config()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    parser.add_argument("--batch", type=int, default=128, help="sequences of a step")
    parser.add_argument("--window", type=int, default=248, help="tokens of plain text of a sequence")
    parser.add_argument("--tasks", nargs="+", default=["sst2", "mrpc", "multirc"])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.4, 0.15, 0.45], help="of the batches, one a task")
    parser.add_argument("--stars", type=float, default=0.3, help="share of fine-tuning with the labels that count stars")
    parser.add_argument("--dev-lines", type=int, default=800, help="of each task, to measure fine-tuning with")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--decay", type=float, default=0.05)
    parser.add_argument("--warmup", type=int, default=200, help="steps")
    parser.add_argument("--average", type=float, default=0.998, help="fine-tuning: decay of the average of weights")
    parser.add_argument("--drop", type=float, default=0.0)
    parser.add_argument("--expert-drop", type=float, default=0.0)
    parser.add_argument("--jitter", type=float, default=0.01)
    parser.add_argument("--aux-coef", type=float, default=0.01)
    parser.add_argument("--z-coef", type=float, default=0.001)
    parser.add_argument("--bucket-factor", type=float, default=4.0,
                        help="an expert's rows in a training step, as a multiple of the mean; more tokens are dropped; "
                        "0: no bound (the better choice on a CPU)")
    parser.add_argument("--log-steps", type=int, default=100)
    parser.add_argument("--eval-seconds", type=float, default=30.0)
    parser.add_argument("--save-seconds", type=float, default=60.0)
    return parser.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")
    run = Run(args)
    sparse = sum(isinstance(m, Sparse) for m in run.model.modules())
    run.log(parameters=sum(p.numel() for p in run.model.parameters()), sparse_layers=sparse, **asdict(run.model.c))
    run.train()


if __name__ == "__main__":
    main()
