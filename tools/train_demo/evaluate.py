"""Measure an exported model: held-out perplexity, expert routing and samples -> a JSON report."""
import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from model import Config, Mixtral
from safetensors.torch import load_file
from tokenizers import Tokenizer

STORIES = ["Once upon a time there was a little", "The old king looked at the dragon and said,",
           "It was a dark night in the forest, and"]
CHATS = ["Tell me a story about a fox and a crow.",
         "Write a passage with a ship, an island and the captain.",
         "Compose an engaging travel blog post about a recent trip to Hawaii."]


def load_export(folder):
    """HF folder -> Mixtral in f32 with the exported (bf16) values."""
    hf = json.loads((folder / "config.json").read_text())
    config = Config(hf["vocab_size"], hf["hidden_size"], hf["num_hidden_layers"], hf["num_attention_heads"],
                    hf["num_key_value_heads"], hf["head_dim"], hf["num_local_experts"],
                    hf["num_experts_per_tok"], hf["intermediate_size"], hf["rope_theta"],
                    hf["rms_norm_eps"], hf["max_position_embeddings"])
    model = Mixtral(config)
    weights = {k.removeprefix("model."): v.float() for k, v in load_file(folder / "model.safetensors").items()}
    for name in model.state_dict():
        head, _, last = name.rpartition(".")
        if last in ("w1", "w2", "w3"):
            weights[name] = torch.stack([weights.pop(f"{head}.experts.{e}.{last}.weight")
                                         for e in range(config.experts)])
    model.load_state_dict(weights)
    return model.eval()


def load_checkpoint(path):
    """Training checkpoint -> Mixtral in f32."""
    state = torch.load(path, weights_only=True)
    model = Mixtral(Config(**state["config"]))
    model.load_state_dict(state["model"])
    return model.eval(), state


def perplexities(model, held):
    return {n: round(math.exp(model.mean_loss(t)), 3) for n, t in held.items()}


def entropy(p):
    """Entropy in bits of the last axis of a distribution."""
    return -(p * torch.log2(p.clamp_min(1e-12))).sum(-1)


def token_class(text):
    if text.startswith("<"):
        return "special"
    if text.isspace():
        return "newline"
    body = text.strip()
    if not any(c.isalnum() for c in body):
        return "punctuation"
    if not text.startswith(" "):
        return "word continuation" if body[0].islower() or body[0] == "'" else "capital"
    return "capital" if body[0].isupper() else "word start"


@torch.no_grad()
def routing(model, tokens, tokenizer, seq_len=512, batch=8):
    """Expert usage on a 1-D token array -> list of per-layer dicts.

    bits_mean_use: entropy of the overall expert usage (log2 of the experts: all are used evenly);
    bits_token: mean entropy of one token's own router distribution;
    bits_use_given_token: mean entropy of the usage given the token id; the smaller it is than
    bits_mean_use, the more the experts specialise.
    """
    c = model.c
    windows = len(tokens) // seq_len
    x = tokens[:windows * seq_len].view(windows, seq_len)
    use = torch.zeros(c.layers, c.vocab, c.experts)
    own = torch.zeros(c.layers)
    for at in range(0, windows, batch):
        ids = x[at:at + batch]
        for layer, (logits, chosen) in enumerate(model.hidden(ids)[1]):
            own[layer] += entropy(torch.softmax(logits, 1)).sum()
            flat = ids.reshape(-1, 1).expand(-1, c.top_k) * c.experts + chosen
            use[layer] += torch.bincount(flat.reshape(-1), minlength=c.vocab * c.experts).view(c.vocab, -1)
    names = [tokenizer.id_to_token(i) if i < 6 else tokenizer.decode([i]) for i in range(c.vocab)]
    classes = [token_class(n) for n in names]
    report = []
    for layer in range(c.layers):
        u = use[layer]
        seen = u.sum(1)
        frequent = seen >= c.top_k * 40
        share = u / seen.clamp_min(1)[:, None]
        overall = u.sum(0) / u.sum()
        table = {}
        for k in sorted(set(classes)):
            rows = u[[i for i, name in enumerate(classes) if name == k]].sum(0)
            if rows.sum() > 0:
                table[k] = [round(v, 3) for v in (rows / rows.sum()).tolist()]
        # lift: how much more often an expert serves this token than an average one
        lift = share / overall
        favourites = {}
        for e in range(c.experts):
            score = torch.where(frequent, lift[:, e] * seen.sqrt(), torch.zeros(()))
            favourites[e] = [names[i] for i in score.topk(8).indices.tolist()]
        report.append({
            "layer": layer,
            "bits_mean_use": round(entropy(overall).item(), 3),
            "bits_token": round(own[layer].item() / x.numel(), 3),
            "bits_use_given_token": round((entropy(share) * seen)[frequent].sum().item()
                                          / seen[frequent].sum().item(), 3),
            "use": [round(v, 3) for v in overall.tolist()],
            "use_by_class": table, "favourite_tokens": favourites})
    return report


@torch.no_grad()
def sample(model, tokenizer, ids, length, temperature, top_p, seed):
    """Continue token ids; temperature 0 is greedy -> (text, ended with </s>)."""
    generator = torch.Generator().manual_seed(seed)
    ids, begin = list(ids), len(ids)
    for _ in range(length):
        logits = model(torch.tensor([ids]))[0, -1]
        if temperature == 0:
            token = int(logits.argmax())
        else:
            p, index = torch.softmax(logits / temperature, 0).sort(descending=True)
            p[p.cumsum(0) - p > top_p] = 0
            token = int(index[torch.multinomial(p, 1, generator=generator)])
        if token == 1:
            return tokenizer.decode(ids[begin:]), True
        ids.append(token)
    return tokenizer.decode(ids[begin:]), False


def compare_hf(folder, model, tokens):
    """Largest logit difference to transformers in f32, and the chat template rendered by it."""
    from transformers import AutoTokenizer, MixtralForCausalLM
    other = MixtralForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    x = tokens[:1024].view(2, 512)
    with torch.no_grad():
        a, b = model(x), other(x).logits
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hello there"},
            {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == ("<s><|system|>\nS</s>\n<|user|>\nHello there</s>\n<|assistant|>\nYes.</s>\n"
                    "<|user|>\nGo on.</s>\n<|assistant|>\n"), text
    assert tokenizer("a b").input_ids[0] == 0
    return {"largest_logit_difference": (a - b).abs().max().item(), "logit_std": b.std().item(),
            "same_argmax": (a.argmax(-1) == b.argmax(-1)).float().mean().item()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder written by export.py")
    parser.add_argument("--data", type=Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--checkpoint", type=Path, help="also measure the f32 weights and an untrained model")
    parser.add_argument("--out", type=Path, help="JSON report")
    parser.add_argument("--tokens", type=int, default=10**9, help="held-out tokens to use of each array")
    parser.add_argument("--length", type=int, default=160)
    parser.add_argument("--compare-hf", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_export(args.model)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    held = {n: torch.from_numpy(np.load(args.data / f"heldout_{n}.npy")[:args.tokens].astype(np.int64))
            for n in ("children", "novels")}
    report = {}

    def write():
        text = json.dumps(report, indent=1, ensure_ascii=False)
        if args.out:
            args.out.write_text(text + "\n")
        return text

    if args.compare_hf:
        report["transformers"] = compare_hf(args.model, model, held["children"])
    report["perplexity_bf16"] = perplexities(model, held)
    write()
    if args.checkpoint:
        trained, state = load_checkpoint(args.checkpoint)
        report["perplexity_f32"] = perplexities(trained, held)
        report["step"], report["seconds"] = state["step"], state["elapsed"]
        torch.manual_seed(1)
        first = {n: t[:8193] for n, t in held.items()}
        report["perplexity_untrained"] = perplexities(Mixtral(model.c).eval(), first)
    report["routing"] = routing(model, held["children"][:32768], tokenizer)
    write()
    report["samples"] = []
    for kind, prompts in (("text", STORIES), ("chat", CHATS)):
        for prompt in prompts:
            for temperature in (0.0, 0.7):
                text = prompt if kind == "text" else f"<|user|>\n{prompt}</s>\n<|assistant|>\n"
                ids = tokenizer.encode(text).ids
                answer, ended = sample(model, tokenizer, ids, args.length, temperature, 0.9, 1)
                report["samples"].append({"kind": kind, "prompt": prompt, "temperature": temperature,
                                          "text": answer, "ended": ended})
                write()
    print(write())


if __name__ == "__main__":
    main()
