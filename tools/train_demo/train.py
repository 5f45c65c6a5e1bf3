"""Train the demo model. The schedule is a function of elapsed time, so a run ends on time.

A killed run continues from its checkpoint when started again with the same arguments.
"""
import argparse
import json
import math
import os
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from model import Config, Mixtral


def orthogonalise(g, steps):
    """Newton-Schulz: nearest semi-orthogonal matrices. g: (batch, rows, cols), rows <= cols."""
    x = g / (g.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x


class Muon:
    """Momentum with orthogonalised updates; parameters of one shape are treated as one batch."""

    def __init__(self, params, momentum=0.95, steps=5, decay=0.05):
        self.momentum, self.steps, self.decay = momentum, steps, decay
        self.groups = {}
        for p in params:
            rows, cols = p.shape[-2:]
            self.groups.setdefault((min(rows, cols), max(rows, cols)), []).append(p)
        self.buffers = [torch.zeros_like(p) for group in self.groups.values() for p in group]

    @torch.no_grad()
    def step(self, lr):
        buffers = iter(self.buffers)
        for params in self.groups.values():
            updates = []
            for p in params:
                m = next(buffers)
                m.lerp_(p.grad, 1 - self.momentum)
                u = p.grad.lerp(m, self.momentum)
                u = u.view(-1, *u.shape[-2:])
                updates.append(u.mT if u.shape[-2] > u.shape[-1] else u)
            done = orthogonalise(torch.cat(updates), self.steps)
            for p, u in zip(params, done.split([len(u) for u in updates]), strict=True):
                if p.shape[-2] > p.shape[-1]:
                    u = u.mT
                p.mul_(1 - lr * self.decay)
                p.add_(u.reshape(p.shape), alpha=-lr * max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5)


class Data:
    """Random windows of the token arrays, a function of (seed, step) only."""

    def __init__(self, folder, seed):
        self.seed = seed
        self.parts = {n: (np.load(folder / f"{n}.npy"), np.load(folder / f"{n}.starts.npy"))
                      for n in ("children", "novels", "chat_children", "chat_novels")}

    def batch(self, step, sequences, seq_len, children, chat):
        """-> tokens and targets, both (sequences, seq_len) int64. children, chat: probabilities."""
        rng = np.random.default_rng((self.seed, step))
        out = np.empty((sequences, seq_len + 1), dtype=np.int64)
        for row in out:
            name = "children" if rng.random() < children else "novels"
            is_chat = rng.random() < chat
            tokens, starts = self.parts["chat_" + name if is_chat else name]
            at = starts[rng.integers(len(starts))]
            if is_chat:
                at = min(at, len(tokens) - len(row))
                row[:] = tokens[at:at + len(row)]
            else:
                at = min(at, len(tokens) - len(row) + 1)
                row[0] = 0  # <s>
                row[1:] = tokens[at:at + len(row) - 1]
        data = torch.from_numpy(out)
        return data[:, :-1].contiguous(), data[:, 1:].contiguous()


def schedule(progress, warmup=0.02, hold=0.2):
    """Learning rate factor at progress in [0, 1]: rise, hold, fall linearly to zero."""
    if progress < warmup:
        return max(progress / warmup, 0.02)
    return min(1.0, max(0.0, (1 - progress) / (1 - hold)))


def save(path, state):
    """Write a checkpoint so that a kill never leaves half a file."""
    tmp = path.with_suffix(".tmp")
    torch.save(state, tmp)
    os.replace(tmp, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint.pt and log.jsonl go here")
    parser.add_argument("--layers", type=int, default=Config.layers)
    parser.add_argument("--experts", type=int, default=Config.experts, help="of a layer")
    parser.add_argument("--top-k", type=int, default=Config.top_k, help="experts of a token")
    parser.add_argument("--expert-dim", type=int, default=Config.expert_dim, help="width of an expert")
    parser.add_argument("--seconds", type=float, default=6400, help="time budget over all resumes")
    parser.add_argument("--max-steps", type=int, default=10**9, help="stop early (for speed tests)")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--short-seq-len", type=int, default=256, help="used before --short-until")
    parser.add_argument("--short-until", type=float, default=0.65, help="part of the time budget")
    parser.add_argument("--batch", type=int, default=8192, help="tokens a step")
    parser.add_argument("--micro", type=int, default=2048, help="tokens a forward pass")
    parser.add_argument("--optimizer", choices=["muon", "adamw"], default="muon")
    parser.add_argument("--lr", type=float, default=0.02, help="Muon step, hidden matrices")
    parser.add_argument("--adam-lr", type=float, default=3e-3, help="AdamW step, everything else")
    parser.add_argument("--ns-steps", type=int, default=5, help="Newton-Schulz iterations")
    parser.add_argument("--chat", type=float, default=0.34, help="share of chat-shaped sequences")
    parser.add_argument("--balance", type=float, default=0.01)
    parser.add_argument("--z-loss", type=float, default=1e-3)
    parser.add_argument("--eval-seconds", type=float, default=400)
    parser.add_argument("--save-seconds", type=float, default=240)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    config = Config(layers=args.layers, experts=args.experts, top_k=args.top_k, expert_dim=args.expert_dim)
    model = Mixtral(config)
    hidden = [p for n, p in model.named_parameters()
              if p.dim() > 1 and "embed" not in n and ".gate." not in n]
    other = [p for p in model.parameters() if not any(p is q for q in hidden)]
    muon = Muon(hidden if args.optimizer == "muon" else [], steps=args.ns_steps)
    if args.optimizer == "adamw":
        other = list(model.parameters())
    adam = torch.optim.AdamW(other, lr=args.adam_lr, betas=(0.9, 0.97), weight_decay=0.01, fused=True)
    data = Data(args.data, args.seed)
    held = {n: torch.from_numpy(np.load(args.data / f"heldout_{n}.npy").astype(np.int64))
            for n in ("children", "novels")}

    step, elapsed, path = 0, 0.0, args.out / "checkpoint.pt"
    if path.exists():
        state = torch.load(path, weights_only=True)
        if state["config"] != asdict(config):
            raise SystemExit(f"{path} has another shape: {state['config']}")
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        muon.buffers = state["muon"]
        step, elapsed = state["step"], state["elapsed"]
        print(f"resumed at step {step}, {elapsed:.0f} s")
    else:
        print(f"{sum(p.numel() for p in model.parameters())} parameters")

    log = open(args.out / "log.jsonl", "a", buffering=1)

    def checkpoint():
        save(path, {"model": model.state_dict(), "adam": adam.state_dict(), "muon": muon.buffers,
                    "step": step, "elapsed": elapsed, "config": asdict(config)})

    def write(**row):
        log.write(json.dumps({"step": step, "tokens": step * args.batch, **row,
                              "seconds": round(elapsed, 1)}) + "\n")

    def evaluate(limit):
        model.eval()
        write(**{f"heldout_{n}_ppl": round(math.exp(model.mean_loss(t[:limit])), 3) for n, t in held.items()})
        model.train()

    last_save = last_eval = elapsed
    if step == 0 and args.max_steps > 10**6:
        evaluate(8193)
    running, count, clock = 0.0, 0, time.monotonic()
    while elapsed < args.seconds and step < args.max_steps:
        progress = elapsed / args.seconds
        children = 0.5 if progress < 0.65 else 0.8
        seq_len = args.short_seq_len if progress < args.short_until else args.seq_len
        x, y = data.batch(step, args.batch // seq_len, seq_len, children, args.chat)
        for xs, ys in zip(x.split(args.micro // seq_len), y.split(args.micro // seq_len), strict=True):
            total, balance, z = model.losses(xs, ys)
            part = args.micro / args.batch
            (total / args.batch + part * (args.balance * balance + args.z_loss * z)).backward()
            running += total.item() / args.batch
        norm = torch.nn.utils.clip_grad_norm_(other, 1.0)
        factor = schedule(progress)
        for group in adam.param_groups:
            group["lr"] = args.adam_lr * factor
        adam.step()
        muon.step(args.lr * factor)
        model.zero_grad(set_to_none=True)
        step, count = step + 1, count + 1
        now = time.monotonic()
        elapsed, clock = elapsed + now - clock, now
        if step % 20 == 0:
            write(loss=round(running / count, 4), balance=round(balance.item(), 4), lr=round(factor, 4),
                  norm=round(norm.item(), 3))
            running, count = 0.0, 0
        if elapsed - last_save > args.save_seconds:
            checkpoint()
            last_save = elapsed
        if elapsed - last_eval > args.eval_seconds:
            evaluate(16385)
            last_eval = elapsed
    checkpoint()
    if args.max_steps > 10**6:
        evaluate(None)


if __name__ == "__main__":
    main()
