"""Train SiDA's predictor on routing traces of a model, and write its file for `--predictor sida:FILE`.

The loss is SiDA's: lambda * CE(chosen experts) + distillation of the router's probabilities over its top T experts. A
killed run continues from its checkpoint when started again with the same arguments.
"""
import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from model import FORMAT, Config, Sida
from routing_trace import read_trace
from safetensors import safe_open
from safetensors.torch import save_file

EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight", "backbone.embedding.weight", "shared.weight")


def read_embeddings(folder):
    """The model's token embeddings as f32 [vocab_size, model_dim], from a folder with safetensors files."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in EMBEDDINGS:
                if name in file.keys():
                    return file.get_tensor(name).float()
    raise SystemExit(f"{folder}: no tensor is called {' or '.join(EMBEDDINGS)}")


class Data:
    """Pieces of sequences of at most `length` tokens, each with the state of a new sequence at its beginning."""

    def __init__(self, sequences, length, top):
        self.pieces = []
        for s in sequences:
            for at in range(0, len(s.tokens), length):
                part = slice(at, at + length)
                self.pieces.append((s.tokens[part].astype(np.int64), s.chosen[part].astype(np.int64),
                                    s.ranked[part, :, :top].astype(np.int64), s.scores[part, :, :top]))
        self.num_tokens = sum(len(piece[0]) for piece in self.pieces)

    def batch(self, indexes):
        """-> tokens, chosen, ranked, scores, is_token, padded to the longest piece."""
        pieces = [self.pieces[i] for i in indexes]
        length = max(len(piece[0]) for piece in pieces)

        def pad(i):
            return torch.from_numpy(np.stack([np.pad(piece[i], [(0, length - len(piece[i]))] + [(0, 0)] *
                                                     (piece[i].ndim - 1)) for piece in pieces]))
        is_token = torch.tensor([[t < len(piece[0]) for t in range(length)] for piece in pieces])
        return pad(0), pad(1), pad(2), pad(3), is_token


def losses(logits, chosen, ranked, scores, is_token):
    """-> CE of the chosen experts, distillation over the ranked ones; means over tokens and their layers."""
    goes = is_token.unsqueeze(-1) & (chosen[..., 0] >= 0)
    chances = logits.log_softmax(-1)
    ce = -chances.gather(-1, chosen.clamp(min=0)).mean(-1)
    teacher = scores / scores.sum(-1, keepdim=True).clamp(min=1e-9)
    student = logits.gather(-1, ranked).log_softmax(-1)
    tkd = (teacher * (teacher.clamp(min=1e-9).log() - student)).sum(-1)
    return ce[goes].mean(), tkd[goes].mean()


@torch.no_grad()
def hit_rates(model, data, embeddings, batch_size):
    """-> shares for each layer: the likeliest expert was chosen (top-1); chosen experts among the k likeliest (top-k),
    and among the 3 k likeliest (SiDA's top-3 if k = 1)."""
    model.eval()
    num_topk = data.pieces[0][1].shape[-1]
    num_wide = min(3 * num_topk, model.config.num_experts)
    first, all_, wide, count = (torch.zeros(model.config.num_layers) for _ in range(4))
    for at in range(0, len(data.pieces), batch_size):
        tokens, chosen, _, _, is_token = data.batch(range(at, min(at + batch_size, len(data.pieces))))
        named = model(embeddings[tokens]).topk(num_wide, dim=-1).indices
        hits = (named.unsqueeze(-1) == chosen.unsqueeze(-2)).any(-1).float()[is_token]
        first += hits[..., 0].sum(0)
        all_ += hits[..., :num_topk].sum(-1).sum(0) / num_topk
        wide += hits.sum(-1).sum(0) / num_topk
        count += (chosen[..., 0] >= 0)[is_token].sum(0)
    model.train()
    return tuple((hits / count.clamp(min=1)).tolist() for hits in (first, all_, wide))


def save(path, state):
    """Write a checkpoint so that a kill never leaves half a file."""
    tmp = path.with_suffix(".tmp")
    torch.save(state, tmp)
    os.replace(tmp, path)


def export(path, model, embeddings, fingerprint):
    tmp = path.with_suffix(".tmp")
    save_file(model.tensors(embeddings), tmp,
              metadata={"format": FORMAT, "window": str(model.config.window), "fingerprint": fingerprint})
    tmp.chmod(0o644)
    os.replace(tmp, path)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, required=True, action="append", help="may be given several times")
    parser.add_argument("--model", type=Path, required=True, help="folder with the model's safetensors files")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint.pt, log.jsonl and predictor.safetensors go here")
    parser.add_argument("--fingerprint", help="of the model that will run, if it is not the one that was recorded")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--top", type=int, default=30, help="T: experts of the router that are distilled")
    parser.add_argument("--ce", type=float, default=1.0, help="lambda; the paper's is 0.005")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--decay", type=float, default=0.01, help="AdamW's weight decay")
    parser.add_argument("--dropout", type=float, default=0.1, help="share of the compressed embedding's inputs")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8, help="pieces a step")
    parser.add_argument("--length", type=int, default=256, help="tokens of a piece")
    parser.add_argument("--held-out", type=float, default=0.1, help="share of the sequences that only validate")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def read_data(args):
    """-> header of the traces, data to train with, data to validate with."""
    sequences, headers = [], []
    for path in args.trace:
        header, found = read_trace(path)
        headers.append(header)
        sequences += found
    if any(header != headers[0] for header in headers):
        raise SystemExit("the traces are of different models, or record different numbers of experts")
    if headers[0].num_ranked == 0:
        raise SystemExit("the traces have no scores: record them with --record-scores")
    # Sequences are drawn, so that both parts have all kinds of prompts.
    order = np.random.default_rng(args.seed).permutation(len(sequences))
    num_held = max(1, round(args.held_out * len(sequences)))
    if num_held >= len(sequences):
        raise SystemExit(f"{len(sequences)} sequence(s): too few to hold one out")
    parts = [[sequences[i] for i in order[num_held:]], [sequences[i] for i in order[:num_held]]]
    return headers[0], *(Data(part, args.length, args.top) for part in parts)


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    header, data, held = read_data(args)
    embeddings = read_embeddings(args.model)
    if embeddings.shape[0] != header.vocab_size:
        raise SystemExit(f"the trace has {header.vocab_size} tokens, and the model {embeddings.shape[0]} embeddings")
    config = Config(header.vocab_size, embeddings.shape[1], header.num_layers, header.num_experts, args.dim, args.window)
    # Embeddings of any scale begin alike. The factor goes into the compression when the file is written.
    scale = 1 / embeddings.std()
    model = Sida(config)
    adam = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.decay)
    first_epoch, path = 0, args.out / "checkpoint.pt"
    best = {"top_k": 0.0, "model": model.state_dict()}
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        first_epoch, best = state["epoch"], state["best"]
        print(f"resumed after {first_epoch} epochs")
    print(f"{len(data.pieces)} pieces with {data.num_tokens} tokens; held out: {len(held.pieces)} with {held.num_tokens}")
    log = open(args.out / "log.jsonl", "a", buffering=1)
    steps_a_epoch = -(-len(data.pieces) // args.batch)
    for epoch in range(first_epoch, args.epochs):
        torch.manual_seed(args.seed * 1_000_003 + epoch)  # of dropout; a resumed run is the same as a whole one
        order = np.random.default_rng((args.seed, epoch)).permutation(len(data.pieces))
        start, sums = time.monotonic(), np.zeros(2)
        for step in range(steps_a_epoch):
            progress = (epoch + step / steps_a_epoch) / args.epochs
            for group in adam.param_groups:
                group["lr"] = args.lr * min(1.0, 20 * progress + 0.02) * (1 - progress)
            tokens, chosen, ranked, scores, is_token = data.batch(order[step * args.batch:(step + 1) * args.batch])
            inputs = torch.nn.functional.dropout(embeddings[tokens] * scale, args.dropout)
            ce, tkd = losses(model(inputs), chosen, ranked, scores, is_token)
            adam.zero_grad()
            (args.ce * ce + tkd).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            sums += [ce.item(), tkd.item()]
        first, all_, wide = hit_rates(model, held, embeddings * scale, args.batch)
        top_k = float(np.mean(all_))
        if top_k > best["top_k"]:
            best = {"top_k": top_k, "model": {name: value.clone() for name, value in model.state_dict().items()}}
        log.write(json.dumps({"epoch": epoch + 1, "ce": round(sums[0] / steps_a_epoch, 4),
                              "tkd": round(sums[1] / steps_a_epoch, 4), "top_1": [round(x, 4) for x in first],
                              "top_k": [round(x, 4) for x in all_], "top_3k": [round(x, 4) for x in wide],
                              "seconds": round(time.monotonic() - start, 1)}) + "\n")
        save(path, {"model": model.state_dict(), "adam": adam.state_dict(), "epoch": epoch + 1, "best": best})
    model.load_state_dict(best["model"])
    first, all_, wide = hit_rates(model, held, embeddings * scale, args.batch)
    num_topk = header.num_topk
    for layer in range(config.num_layers):
        print(f"layer {layer}: top-1 {100 * first[layer]:.1f}%, top-{num_topk} {100 * all_[layer]:.1f}%, "
              f"among the {3 * num_topk} likeliest {100 * wide[layer]:.1f}%")
    print(f"all layers: top-1 {100 * np.mean(first):.1f}%, top-{num_topk} {100 * np.mean(all_):.1f}%, among the "
          f"{3 * num_topk} likeliest {100 * np.mean(wide):.1f}%; by chance {100 * num_topk / header.num_experts:.1f}%")
    export(args.out / "predictor.safetensors", model, embeddings * scale, args.fingerprint or header.fingerprint)


if __name__ == "__main__":
    main()
