"""Compare the logits of model.py with those of transformers, f32, on random weights or a model folder.

With random weights the capacity is small, so that many tokens are dropped. Exit status 1 if logits differ by more
than --tolerance, or if no token was dropped.
"""
import argparse
import json
import sys
from pathlib import Path

import torch
from export import from_tensors, hf_config, tensors
from model import Config, Switch
from safetensors.torch import load_file
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration


def config_of(folder):
    """config.json -> Config"""
    d = json.loads((folder / "config.json").read_text())
    return Config(vocab=d["vocab_size"], dim=d["d_model"], heads=d["num_heads"], head_dim=d["d_kv"], ff=d["d_ff"],
                  layers=d["num_layers"], experts=d["num_experts"], capacity=d["expert_capacity"],
                  sparse_step=d["num_layers"] // d["num_sparse_encoder_layers"],
                  buckets=d["relative_attention_num_buckets"], max_distance=d["relative_attention_max_distance"],
                  eps=d["layer_norm_epsilon"])


def load(folder):
    return from_tensors(config_of(folder), load_file(folder / "model.safetensors"))


def reference(model):
    """The same model in transformers, f32."""
    other = SwitchTransformersForConditionalGeneration(SwitchTransformersConfig(**hf_config(model.c)))
    missing, unexpected = other.load_state_dict(tensors(model), strict=False)
    assert not unexpected and all(name.endswith(("embed_tokens.weight", "lm_head.weight")) for name in missing), missing
    other.tie_weights()
    return other.eval()


def batch(c, generator, sequences=6, length=200, answer=40):
    """Random ids, right-padded: inputs (B, S) and targets (B, T)."""
    inputs = torch.randint(3, c.vocab, (sequences, length), generator=generator)
    targets = torch.randint(3, c.vocab, (sequences, answer), generator=generator)
    for row in range(1, sequences):
        inputs[row, length - 25 * row:] = 0
        targets[row, answer - 5 * row:] = 0
    return inputs, targets


@torch.no_grad()
def compare(model, inputs, targets):
    """-> (largest difference of logits at real tokens, tokens dropped, tokens), summed over the sparse layers"""
    other = reference(model)
    model.eval()
    logits, routings = model(inputs, targets)
    expected = other(input_ids=inputs, attention_mask=(inputs != 0).long(),
                     labels=targets.masked_fill(targets == 0, -100)).logits
    real = targets != 0
    dropped = sum(int((r & ~kept).sum()) for (_, _, kept), r in routings)
    return float((logits - expected)[real].abs().max()), dropped, sum(int(r.sum()) for _, r in routings)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder of export.py; without it, random weights")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    cases = [("folder", load(args.model))] if args.model else []
    for experts in () if args.model else (4, 8, 32, 128):
        config = Config(vocab=512, dim=64, heads=3, head_dim=16, ff=40, experts=experts, capacity=max(2, 64 // experts))
        cases.append((f"{experts} experts", Switch(config)))
    bad = False
    for name, model in cases:
        difference, dropped, tokens = compare(model, *batch(model.c, torch.Generator().manual_seed(args.seed)))
        bad |= difference > args.tolerance or not args.model and not dropped
        print(f"{name}: largest difference of logits {difference:.2e}, {dropped} of {tokens} tokens dropped")
    sys.exit(bad)


if __name__ == "__main__":
    main()
