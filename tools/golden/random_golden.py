#!/usr/bin/env python3
"""Makes golden models of random dims and switches for tests/engine/golden_test.cc, more than tests/golden can hold.

    tools/golden/random_golden.py --output /tmp/random --count 100
    PENSTOCK_TEST_GOLDEN_DIR=/tmp/random build/release/tests/engine_test --gtest_filter='*/GoldenTest.*-*Bf16*'

Each model mixes the variants of one family (make_golden.py), and changes the values of some of their keys. All keys of
Switch Transformers are random. A model is left out and counted if transformers itself refuses it or if it is close to a
tie. In bf16 arithmetic, the routers of such models are close to ties (transformers' own bf16 logits are as far away).
The folders are whole models, with weights and their recipe.
"""

import argparse
import random
import shutil
from pathlib import Path

import make_encoder_golden
import make_golden
import torch
import transformers

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk")
HEAD_DIMS = (6, 8, 10, 16, 20, 32)
WIDTHS = (7, 13, 24, 29, 40, 45)
ROPE = ("default", "dynamic", "linear", "llama3", "yarn")
SWITCH = (False, True)
# Further values of keys that a family's variants have.
OTHER_VALUES = {
    "vocab_size": (61, 96, 131, 200), "hidden_size": (20, 33, 48, 70), "num_hidden_layers": (2, 3, 4),
    "intermediate_size": WIDTHS, "moe_intermediate_size": WIDTHS, "shared_expert_intermediate_size": WIDTHS,
    "shared_intermediate_size": WIDTHS, "kv_lora_rank": (9, 16, 31), "q_lora_rank": (12, 20), "v_head_dim": (5, 12, 16),
    "qk_nope_head_dim": (5, 8, 16), "qk_rope_head_dim": (4, 6, 8), "sliding_window": (5, 12, 30), "clip_qkv": (0.8, 3.0),
    "n_shared_experts": (1, 2), "num_shared_experts": (1, 2), "moe_num_shared_experts": (0, 1, 2),
    "routed_scaling_factor": (1.0, 1.8), "attention_bias": SWITCH, "norm_topk_prob": SWITCH, "use_qk_norm": SWITCH,
    "lm_head_bias": SWITCH, "swiglu_limit": (1.5, 7.0), "embedding_multiplier": (1.0, 12.0), "logits_scaling": (1.0, 6.0),
    "attention_multiplier": (0.25, 0.0625), "residual_multiplier": (1.0, 0.22), "router_jitter_noise": (0.01, 0.1, 0.4),
    "moe_layer_start_index": (0, 1), "first_k_dense_replace": (0, 1), "decoder_sparse_step": (1, 2),
}
# Lists with a value for each layer (made below), and keys related to others, which random values would contradict.
LEFT_OUT = ("layer_types", "mlp_layer_types", "mlp_only_layers", "max_window_layers", "generation", "topk_method", "n_group",
            "topk_group", "moe_layer_end_index", "layer_rope_theta")
WINDOWED = ("exaone_moe", "flint", "gpt_oss", "granitemoe_swa", "mellum")    # these have layer_types
SWITCH_FAMILY = "switch_transformers"    # made by make_encoder_golden.py
FAMILIES = sorted([*make_golden.FAMILIES, SWITCH_FAMILY])
# These families have their own form of rope_parameters.
OWN_ROPE = ("phimoe", "dbrx", "gpt_oss", "hunyuan_v1_moe", "mellum")


def rope(rng, old):
    """Returns other rope_parameters; the rotating part of a head stays as in `old`."""
    kind = rng.choice(ROPE)
    if kind == "yarn" and "partial_rotary_factor" in old:    # not defined for an odd number of dims
        kind = "linear"
    new = dict(rope_type=kind, rope_theta=rng.choice((37.5, 1e4, 1e6)))
    if "partial_rotary_factor" in old:
        new["partial_rotary_factor"] = old["partial_rotary_factor"]
    if kind != "default":
        new["factor"] = rng.choice((2.0, 3.7, 8.0))
    if kind == "llama3":
        new.update(low_freq_factor=1.0, high_freq_factor=4.0)
    if kind == "yarn" and rng.random() < 0.5:
        new.update(beta_fast=16, beta_slow=2, truncate=rng.choice(SWITCH), mscale=1.0, mscale_all_dim=rng.choice((0.4, 1.0)))
    if kind in ("llama3", "yarn"):
        new["original_max_position_embeddings"] = rng.choice((32, 64))
    return new


def random_variant(rng, family):
    """Returns a variant as in make_golden.VARIANTS."""
    parents = [variant for variant in make_golden.VARIANTS.values()
               if variant["family"] == family and not variant.get("coded") and "dtype" not in variant]
    variant = {}
    for key in {key: None for parent in parents for key in parent}:
        parent = rng.choice(parents)
        if key in parent and key not in LEFT_OUT:
            variant[key] = parent[key]
        if key in variant and key in OTHER_VALUES and rng.random() < 0.6:
            variant[key] = rng.choice(OTHER_VALUES[key])
    for key in set(parents[0]) - set(variant) - set(LEFT_OUT):
        variant[key] = parents[0][key]
    if family != "dbrx":
        kv_heads = rng.choice((1, 2, 3))
        heads = kv_heads * rng.choice((1, 2, 3, 5))
        is_mla = "kv_lora_rank" in variant
        variant.update(num_attention_heads=heads, num_key_value_heads=heads if is_mla else kv_heads,
                       rms_norm_eps=rng.choice((1e-6, 1e-5, 1e-3)))
        if "head_dim" in variant:
            variant["head_dim"] = rng.choice(HEAD_DIMS)
        else:
            variant["hidden_size"] = heads * rng.choice(HEAD_DIMS)
    if family not in OWN_ROPE:
        variant["rope_parameters"] = rope(rng, variant.get("rope_parameters", {}))
        variant.pop("rope_theta", None)
    num_layers = variant.get("num_hidden_layers", 0)
    if family in WINDOWED:
        variant["layer_types"] = [rng.choice(("sliding_attention", "full_attention")) for _ in range(num_layers)]
    if family == "granitemoe_swa" and rng.random() < 0.7:
        variant["layer_rope_theta"] = [rng.choice((0, 500.0, 1e4, 1e6)) for _ in range(num_layers)]
    if family == "mellum":
        variant["rope_parameters"] = {kind: rope(rng, {}) for kind in ("full_attention", "sliding_attention")}
    for experts, chosen in ((e, c) for e in EXPERTS for c in CHOSEN if e in variant and c in variant):
        groups = rng.choice((1, 2, 3)) if "n_group" in parents[0] else 1
        variant[experts] = groups * rng.choice((2, 5, 8))
        if groups > 1:
            variant.update(n_group=groups, topk_group=rng.randint(1, groups))
        elif "n_group" in parents[0]:
            variant.update(n_group=1, topk_group=1)
        limit = variant[experts] // groups * variant.get("topk_group", 1)
        variant[chosen] = 2 if family == "phimoe" else rng.randint(1, min(6, limit))
    variant.update(dtype=rng.choice(("float32", "float32", "bfloat16", "float16")), shard=rng.choice(("1GB", "60KB")),
                   layout="plain" if family == "mellum" else rng.choice(("plain", "classic")))
    return variant


def random_switch_variant(rng):
    """Returns a variant as in make_encoder_golden.VARIANTS."""
    num_layers = dict(encoder=rng.randint(1, 6), decoder=rng.randint(1, 6))
    # transformers makes at least one sparse layer, unless it should make more than there are layers.
    num_sparse = {stack: rng.randint(0, number) for stack, number in num_layers.items()}
    if rng.random() < 0.3:
        dense = rng.choice(("encoder", "decoder"))
        num_sparse[dense] = num_layers[dense] + 1
    num_buckets = rng.choice((4, 5, 6, 7, 8, 10, 12, 17, 20, 30, 32))
    vocab_size = rng.choice(OTHER_VALUES["vocab_size"])
    return dict(
        vocab_size=vocab_size, d_model=rng.choice(OTHER_VALUES["hidden_size"]), d_kv=rng.choice((5, *HEAD_DIMS)),
        d_ff=rng.choice(WIDTHS), num_heads=rng.choice((1, 2, 3, 5, 8)),
        num_layers=num_layers["encoder"], num_decoder_layers=num_layers["decoder"],
        num_sparse_encoder_layers=num_sparse["encoder"], num_sparse_decoder_layers=num_sparse["decoder"],
        num_experts=rng.choice((1, 2, 3, 5, 8, 16)), expert_capacity=rng.choice((1, 2, 3, 5, 9, 64)),
        relative_attention_num_buckets=num_buckets,
        relative_attention_max_distance=max(num_buckets // 2 + 1, rng.choice((3, 9, 20, 33, 64, 128))),
        layer_norm_epsilon=rng.choice((1e-6, 1e-5, 1e-3)), decoder_start_token_id=rng.randrange(vocab_size),
        pad_token_id=rng.randrange(vocab_size), router_bias=rng.choice(SWITCH), router_jitter_noise=rng.choice((0.0, 0.1)),
        router_ignore_padding_tokens=rng.choice(SWITCH), add_router_probs=rng.choice(SWITCH),
        dtype=rng.choice(("float32", "float32", "bfloat16", "float16")), shard=rng.choice(("1GB", "60KB")),
        scale=rng.choice((0.6, 0.8, 1.0, 1.3)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100, help="number of models to try; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", choices=FAMILIES, help="only this family")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    make_golden.BATCH, make_golden.MIN_DISTINCT = 24, 4
    make_encoder_golden.BATCH, make_encoder_golden.MIN_DISTINCT = 24, 2    # its answers soon repeat tokens
    # T5's scores are not scaled by 1 / sqrt(head_dim), so roundings grow: other orders of sums gave up to 6 times this.
    make_encoder_golden.MAX_ROUNDING = 1.5e-5
    make_golden.CLASSIC_NAMES.clear()    # these belong to the variants' own switches
    num_made = 0
    for number in range(args.seed, args.seed + args.count):
        rng = random.Random(number)
        family = args.family or rng.choice(FAMILIES)
        is_switch = family == SWITCH_FAMILY
        variant = random_switch_variant(rng) if is_switch else random_variant(rng, family)
        folder = args.output / f"{family.replace('_', '')}-{number}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            (make_encoder_golden if is_switch else make_golden).make_variant(folder, variant, 1, 3)
            num_made += 1
            print(f"{folder.name}: {variant}", flush=True)
        except (Exception, SystemExit) as error:
            shutil.rmtree(folder, ignore_errors=True)
            print(f"{folder.name}: left out: {type(error).__name__}: {str(error)[:200]}", flush=True)
    print(f"{num_made} of {args.count} models made")


if __name__ == "__main__":
    main()
