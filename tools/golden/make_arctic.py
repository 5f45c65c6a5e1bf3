#!/usr/bin/env python3
"""Makes tiny Snowflake Arctic models, and computes the expected results with a NumPy reference.

transformers does not have the family, so the forward pass below follows the published description of the model
(Snowflake 2024, "dense-MoE hybrid transformer"; config and tensor names as in its checkpoints). In a layer

    h = x + attention(rms_norm(x; input_layernorm))
    r = h + residual_mlp(rms_norm(h; residual_layernorm))
    y = r + experts(rms_norm(x; post_attention_layernorm))      with parallel_attn_mlp_res, as published

where attention has grouped KV heads and rotary positions, and the top-k softmax weights of the experts are
renormalised. The files are those of make_golden.py. Logits are computed in f64 from the f32 or bf16 weights.
"""

import argparse
import json
import tempfile
from pathlib import Path

import expected_file
import make_golden as golden
import numpy as np
import torch
import weights
from safetensors.torch import load_file, save_file

ARCTIC = dict(architectures=["ArcticForCausalLM"], model_type="arctic", hidden_size=32, intermediate_size=24,
              num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_local_experts=8,
              num_experts_per_tok=2, vocab_size=96, max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=1e4,
              moe_layer_frequency=1, parallel_attn_mlp_res=True, use_residual=True, attention_bias=False,
              hidden_act="silu", tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, torch_dtype="float32")
VARIANTS = {
    "arctic-tiny": dict(ARCTIC),
    "arctic-odd": dict(ARCTIC, hidden_size=42, intermediate_size=13, num_hidden_layers=4, num_attention_heads=7,
                       num_key_value_heads=1, num_local_experts=5, moe_layer_frequency=2, vocab_size=101),
    "arctic-bf16": dict(ARCTIC, torch_dtype="bfloat16", hidden_size=48),
}


def tensor_shapes(c):
    """Returns {name: shape} of a checkpoint with config c."""
    dim, ffn = c["hidden_size"], c["intermediate_size"]
    kv_dim = dim // c["num_attention_heads"] * c["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], dim), "model.norm.weight": (dim,),
              "lm_head.weight": (c["vocab_size"], dim)}
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        shapes |= {p + "input_layernorm.weight": (dim,), p + "post_attention_layernorm.weight": (dim,)}
        shapes |= {p + f"self_attn.{name}_proj.weight": (rows, dim)
                   for name, rows in (("q", dim), ("k", kv_dim), ("v", kv_dim), ("o", dim))}

        def mlp(prefix, width):
            return {prefix + "w1.weight": (width, dim), prefix + "w3.weight": (width, dim),
                    prefix + "w2.weight": (dim, width)}
        if not has_experts(c, layer):
            shapes |= mlp(p + "block_sparse_moe.mlp.", ffn)
            continue
        shapes |= mlp(p + "residual_mlp.", dim) | {p + "residual_layernorm.weight": (dim,),
                                                   p + "block_sparse_moe.gate.weight": (c["num_local_experts"], dim)}
        for expert in range(c["num_local_experts"]):
            shapes |= mlp(p + f"block_sparse_moe.experts.{expert}.", ffn)
    return shapes


def has_experts(c, layer):
    return (layer + 1) % c["moe_layer_frequency"] == 0


def write_random(folder, c, seed):
    """Writes the weights' file and its recipe; returns the tensors."""
    dtype = {"float32": "F32", "bfloat16": "BF16"}[c["torch_dtype"]]
    tensors = [weights.recipe_of(name, shape, dtype) for name, shape in tensor_shapes(c).items()]
    weights.write_files(folder, seed, {"model.safetensors": tensors})
    return load_file(folder / "model.safetensors")


class Arctic:
    """The reference model; weights are {name: f64 array}."""

    def __init__(self, config, tensors):
        self.c = config
        self.w = {name: tensor.double().numpy() for name, tensor in tensors.items()}

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * self.w[name + ".weight"]

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T

    def mlp(self, x, prefix):
        gate = self.linear(x, prefix + "w1")
        return self.linear(gate / (1 + np.exp(-gate)) * self.linear(x, prefix + "w3"), prefix + "w2")

    def attention(self, x, prefix):
        heads, kv_heads = self.c["num_attention_heads"], self.c["num_key_value_heads"]
        length, head_dim = len(x), self.c["hidden_size"] // heads
        q, k, v = (self.linear(x, prefix + name).reshape(length, -1, head_dim) for name in ("q_proj", "k_proj", "v_proj"))
        exponents = np.arange(0, head_dim, 2) / head_dim
        angles = np.arange(length)[:, None, None] / self.c["rope_theta"] ** exponents
        q, k = (np.concatenate([first * np.cos(angles) - second * np.sin(angles),
                                second * np.cos(angles) + first * np.sin(angles)], axis=-1)
                for first, second in (np.split(x, 2, axis=-1) for x in (q, k)))
        out = np.empty_like(q)
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, kv_head].T / np.sqrt(head_dim)
            scores[np.triu_indices(length, 1)] = -np.inf
            p = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = p / p.sum(-1, keepdims=True) @ v[:, kv_head]
        return self.linear(out.reshape(length, -1), prefix + "o_proj")

    def experts(self, x, prefix):
        """Returns the experts' output, and (router logits, weights, experts by decreasing weight)."""
        logits, num_topk = self.linear(x, prefix + "gate"), self.c["num_experts_per_tok"]
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        chosen = np.argsort(-p, axis=-1, kind="stable")[:, :num_topk]
        weights = np.take_along_axis(p, chosen, axis=-1)
        weights /= weights.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for row in range(len(x)):
            for weight, expert in zip(weights[row], chosen[row], strict=True):
                out[row] += weight * self.mlp(x[row], f"{prefix}experts.{expert}.")
        return out, (logits, weights, chosen)

    def forward(self, ids):
        """ids [len] -> logits [len, vocab] and {layer with experts: its routing}."""
        x, routing = self.w["model.embed_tokens.weight"][ids], {}
        for layer in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            h = x + self.attention(self.norm(x, p + "input_layernorm"), p + "self_attn.")
            if has_experts(self.c, layer):
                r = h + self.mlp(self.norm(h, p + "residual_layernorm"), p + "residual_mlp.")
                out, routing[layer] = self.experts(self.norm(x, p + "post_attention_layernorm"), p + "block_sparse_moe.")
                x = r + out
            else:
                x = h + self.mlp(self.norm(h, p + "post_attention_layernorm"), p + "block_sparse_moe.mlp.")
        return self.linear(self.norm(x, "model.norm"), "lm_head"), routing


def continue_greedily(model, prompt):
    """Returns the continuation, the smallest margin of its logits and that of all router logits, as in make_golden.py."""
    ids, margins = list(prompt), []
    for _ in range(golden.NUM_NEW):
        logits = model.forward(np.array(ids))[0][-1]
        first, second = np.sort(logits)[:-3:-1]
        margins.append((first - second) / (logits.max() - logits.min()))
        if margins[-1] < golden.MIN_MARGIN:
            return None
        ids.append(int(logits.argmax()))
    num_topk = model.c["num_experts_per_tok"]
    gaps = [-np.diff(-np.sort(-router, axis=-1), axis=-1)[:, num_topk - 1].min()
            for router, _weights, _experts in model.forward(np.array(ids[:-1]))[1].values()]
    return ids[len(prompt):], float(min(margins)), float(min(gaps))


def find_prompt(model, length, rng):
    for _ in range(40):
        prompt = rng.integers(3, model.c["vocab_size"], length)
        found = continue_greedily(model, prompt)
        if found and found[2] > golden.MIN_ROUTER_MARGIN and len(set(found[0])) >= golden.MIN_DISTINCT:
            return (prompt, *found)
    return None


def make_variant(folder, config):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for seed in range(1, 100):
        model, rng, found = Arctic(config, write_random(folder, config, seed)), np.random.default_rng(seed), []
        for length in golden.PROMPT_LENGTHS:
            found.append(find_prompt(model, length, rng))
            if found[-1] is None:
                break
        if None not in found:
            break
    else:
        raise SystemExit(f"{folder.name}: no seed is clear of ties")
    results = {}
    for i, (prompt, *_rest) in enumerate(found):
        logits, routing = model.forward(prompt)
        results[f"logits.{i}"] = logits
        for layer, (_router, topk_weights, experts) in routing.items():
            results[f"routing.{i}.{layer}"] = experts
            results[f"routing_weights.{i}.{layer}"] = topk_weights
    save_file({name: torch.from_numpy(np.ascontiguousarray(value)).float() for name, value in results.items()},
              folder / "expected.safetensors")
    expected_file.write_expected(folder, {
        "numpy": np.__version__, "seed": seed, "dtype": config["torch_dtype"],
        "min_margin": round(min(m for _, _, m, _ in found), 6),
        "min_router_margin": round(min(m for _, _, _, m in found), 6),
        "prompts": [prompt.tolist() for prompt, _, _, _ in found], "greedy": [new for _, new, _, _ in found]})


def main():
    parser = argparse.ArgumentParser(description="Make the golden models of Snowflake Arctic.")
    parser.add_argument("--output", type=Path, default=Path("tests/golden"), help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, metavar="VARIANT", default=list(VARIANTS))
    args = parser.parse_args()
    for name in args.only:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / name
            make_variant(folder, VARIANTS[name])
            weights.keep(folder, args.output / name)
        print(name, flush=True)


if __name__ == "__main__":
    main()
