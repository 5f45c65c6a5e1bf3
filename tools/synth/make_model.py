#!/usr/bin/env python3
"""Writes a random-weight Mixture-of-Experts model of any size: a folder in Hugging Face layout, and GGUF files.

The model computes nonsense at the speed and with the memory needs of a real one. Only numpy is needed. Weights are
N(0, 1/fan_in) (standard deviation 1/sqrt(fan_in)), and norm weights are near 1, so activations stay in range. A tensor's
content depends only on the seed, its name and its shape, not on how the model is split into shards.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import shutil
import signal
import statistics
import sys
import time
import zlib
from pathlib import Path

import gguf_model
import numpy as np

MIB = 1 << 20
CHUNK = 1 << 18     # values generated at once
COMMON_DIMS, COMMON_VALUE = 16, 4.0     # with a routing skew: the common columns of every embedding, and their value
DTYPES = {"bf16": ("BF16", 2, "bfloat16"), "f16": ("F16", 2, "float16"), "f32": ("F32", 4, "float32")}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
                   "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
                   "chat_template.json")

# Dimensions by option name; sizes in the comments are for bf16.
PRESETS = {
    # 2.0 GB
    "mixtral-2gb": dict(family="mixtral", model_dim=1024, num_layers=11, num_heads=16, num_kv_heads=4,
                        head_dim=64, num_experts=8, num_topk=2, expert_dim=3584, vocab_size=4096,
                        context=4096),
    # 2.1 GB, many small experts
    "qwen3moe-2gb": dict(family="qwen3_moe", model_dim=1024, num_layers=16, num_heads=16, num_kv_heads=4,
                         head_dim=64, num_experts=32, num_topk=4, expert_dim=640, vocab_size=4096,
                         context=4096),
    # 8.3 GB; 2.4 GB in hqq4
    "qwen3moe-8gb": dict(family="qwen3_moe", model_dim=2048, num_layers=16, num_heads=16, num_kv_heads=4,
                         head_dim=128, num_experts=32, num_topk=4, expert_dim=1280, vocab_size=4096,
                         context=4096),
    # 7.9 GB; 2.3 GB in hqq4. As in DBRX (Qwen2-57B-A14B and Mixtral are similar), attention has an eighth of the weights
    # of a token's experts.
    "dbrx-mini": dict(family="mixtral", model_dim=1536, num_layers=20, num_heads=12, num_kv_heads=2,
                      head_dim=128, num_experts=16, num_topk=4, expert_dim=2688, vocab_size=4096,
                      context=4096),
    # 9.5 GB
    "mixtral-mini": dict(family="mixtral", model_dim=2048, num_layers=16, num_heads=16, num_kv_heads=4,
                         head_dim=128, num_experts=8, num_topk=2, expert_dim=5632, vocab_size=32000,
                         context=32768),
    # 5.2 GB
    "qwen3moe-mini": dict(family="qwen3_moe", model_dim=1024, num_layers=24, num_heads=16, num_kv_heads=4,
                          head_dim=128, num_experts=64, num_topk=8, expert_dim=512, vocab_size=32000,
                          context=32768),
    # The shapes of Qwen3.5-35B-A3B and Qwen3.6-35B-A3B with their published 40 layers (69 GB), 8 layers (15 GB) and
    # 8 layers of 32 experts (2.5 GB). Three of four layers have gated DeltaNet in place of attention.
    "qwen35": dict(family="qwen3_5_moe_text", model_dim=2048, num_layers=40, num_heads=16, num_kv_heads=2,
                   head_dim=256, num_experts=256, num_topk=8, expert_dim=512, vocab_size=248320, context=262144),
    "qwen35-8layers": dict(family="qwen3_5_moe_text", model_dim=2048, num_layers=8, num_heads=16, num_kv_heads=2,
                           head_dim=256, num_experts=256, num_topk=8, expert_dim=512, vocab_size=248320,
                           context=262144),
    "qwen35-mini": dict(family="qwen3_5_moe_text", model_dim=2048, num_layers=8, num_heads=16, num_kv_heads=2,
                        head_dim=256, num_experts=32, num_topk=8, expert_dim=512, vocab_size=32000, context=32768),
    # The shape of Gemma 4 26B-A4B with 6 of its 30 layers and 32 of its 128 experts (3.1 GB). One of six layers has
    # wider heads and no window.
    "gemma4-mini": dict(family="gemma4_text", model_dim=2816, num_layers=6, num_heads=16, num_kv_heads=8, head_dim=256,
                        num_experts=32, num_topk=8, expert_dim=704, vocab_size=32000, context=32768),
}
# The dims of gated DeltaNet, as published.
DELTA_NET = dict(linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128,
                 linear_value_head_dim=128, linear_conv_kernel_dim=4)
# Heads of Gemma 4's layers without a window, as published.
GEMMA4 = dict(global_head_dim=512, num_global_key_value_heads=2, attention_k_eq_v=True)
# Defaults for the dimensions that neither the preset nor an option gives.
DEFAULTS = dict(model_dim=256, num_layers=4, num_heads=8, num_kv_heads=4, head_dim=None, num_experts=8,
                num_topk=2, expert_dim=512, vocab_size=4096, context=4096)


def tensor_list(dims):
    """Returns the model's tensors in file order: [(name, shape, kind)].

    The kind is "linear", "embedding", "norm" (near 1) or "offset" (near 0); with a routing skew of 1.2 also "linear+1.2"
    (a router) and "embedding+1.2". Linear weights are [output features, input features].
    """
    skew = f"+{dims['routing_skew']}" if dims["routing_skew"] > 0 else ""
    family, model_dim = dims["family"], dims["model_dim"]
    query_dim = dims["num_heads"] * dims["head_dim"]
    kv_dim = dims["num_kv_heads"] * dims["head_dim"]
    moe, gate, up, down = {
        "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
    }.get(family, ("mlp", "gate_proj", "up_proj", "down_proj"))

    if family == "gemma4_text":
        return gemma4_tensors(dims, skew)
    is_hybrid = family == "qwen3_5_moe_text"
    norm = "offset" if is_hybrid else "norm"    # stored as distances from 1
    tensors = [("model.embed_tokens", (dims["vocab_size"], model_dim), "embedding" + skew)]
    for layer in range(dims["num_layers"]):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        is_recurrent = is_hybrid and layer % 4 != 3
        tensors.append((prefix + "input_layernorm", (model_dim,), norm))
        if is_recurrent:
            tensors += delta_net_tensors(prefix + "linear_attn.", model_dim)
        else:
            tensors += [
                (attention + "q_proj", ((2 if is_hybrid else 1) * query_dim, model_dim), "linear"),
                (attention + "k_proj", (kv_dim, model_dim), "linear"),
                (attention + "v_proj", (kv_dim, model_dim), "linear"),
                (attention + "o_proj", (model_dim, query_dim), "linear"),
            ]
        if family == "qwen3_moe" or (is_hybrid and not is_recurrent):       # QK norm within each head
            tensors += [(attention + "q_norm", (dims["head_dim"],), norm),
                        (attention + "k_norm", (dims["head_dim"],), norm)]
        elif family == "olmoe":         # QK norm across all heads
            tensors += [(attention + "q_norm", (query_dim,), "norm"),
                        (attention + "k_norm", (kv_dim,), "norm")]
        tensors += [(prefix + "post_attention_layernorm", (model_dim,), norm),
                    (prefix + moe + ".gate", (dims["num_experts"], model_dim), "linear" + skew)]
        if is_hybrid:
            shared = prefix + "mlp.shared_expert."
            tensors += [(shared + "gate_proj", (dims["expert_dim"], model_dim), "linear"),
                        (shared + "up_proj", (dims["expert_dim"], model_dim), "linear"),
                        (shared + "down_proj", (model_dim, dims["expert_dim"]), "linear"),
                        (prefix + "mlp.shared_expert_gate", (1, model_dim), "linear")]
        for expert in range(dims["num_experts"]):
            name = f"{prefix}{moe}.experts.{expert}."
            tensors += [(name + gate, (dims["expert_dim"], model_dim), "linear"),
                        (name + up, (dims["expert_dim"], model_dim), "linear"),
                        (name + down, (model_dim, dims["expert_dim"]), "linear")]
    tensors += [("model.norm", (model_dim,), norm), ("lm_head", (dims["vocab_size"], model_dim), "linear")]
    return [(name if name.endswith(("A_log", "dt_bias")) else name + ".weight", shape, kind)
            for name, shape, kind in tensors]


def is_full_layer(layer):
    """Returns whether a layer of Gemma 4 has no window."""
    return layer % 6 == 5


def gemma4_tensors(dims, skew):
    """Returns the tensors of a Gemma 4 model, as tensor_list() does."""
    model_dim, expert_dim, num_experts = dims["model_dim"], dims["expert_dim"], dims["num_experts"]
    tensors = [("model.embed_tokens.weight", (dims["vocab_size"], model_dim), "embedding" + skew)]
    for layer in range(dims["num_layers"]):
        prefix = f"model.layers.{layer}."
        attention, is_full = prefix + "self_attn.", is_full_layer(layer)
        head_dim = GEMMA4["global_head_dim"] if is_full else dims["head_dim"]
        kv_dim = (GEMMA4["num_global_key_value_heads"] if is_full else dims["num_kv_heads"]) * head_dim
        tensors += [(f"{prefix}{norm}layernorm{number}.weight", (model_dim,), "norm") for norm, number in (
            ("input_", ""), ("post_attention_", ""), ("pre_feedforward_", ""), ("pre_feedforward_", "_2"),
            ("post_feedforward_", ""), ("post_feedforward_", "_1"), ("post_feedforward_", "_2"))]
        tensors += [(attention + "q_proj.weight", (dims["num_heads"] * head_dim, model_dim), "linear"),
                    (attention + "k_proj.weight", (kv_dim, model_dim), "linear")]
        if not is_full:
            tensors.append((attention + "v_proj.weight", (kv_dim, model_dim), "linear"))
        tensors += [(attention + "o_proj.weight", (model_dim, dims["num_heads"] * head_dim), "linear"),
                    (attention + "q_norm.weight", (head_dim,), "norm"),
                    (attention + "k_norm.weight", (head_dim,), "norm"),
                    (prefix + "mlp.gate_proj.weight", (3 * expert_dim, model_dim), "linear"),
                    (prefix + "mlp.up_proj.weight", (3 * expert_dim, model_dim), "linear"),
                    (prefix + "mlp.down_proj.weight", (model_dim, 3 * expert_dim), "linear"),
                    (prefix + "router.proj.weight", (num_experts, model_dim), "embedding" + skew),
                    (prefix + "router.scale", (model_dim,), "norm"),
                    (prefix + "router.per_expert_scale", (num_experts,), "norm"),
                    (prefix + "layer_scalar", (1,), "norm"),
                    (prefix + "experts.gate_up_proj", (num_experts, 2 * expert_dim, model_dim), "linear"),
                    (prefix + "experts.down_proj", (num_experts, model_dim, expert_dim), "linear")]
    return tensors + [("model.norm.weight", (model_dim,), "norm")]


def delta_net_tensors(prefix, model_dim):
    """Returns the tensors of a layer with gated DeltaNet."""
    num_heads = DELTA_NET["linear_num_value_heads"]
    keys = DELTA_NET["linear_num_key_heads"] * DELTA_NET["linear_key_head_dim"]
    values = num_heads * DELTA_NET["linear_value_head_dim"]
    return [(prefix + "in_proj_qkv", (2 * keys + values, model_dim), "linear"),
            (prefix + "in_proj_z", (values, model_dim), "linear"),
            (prefix + "in_proj_b", (num_heads, model_dim), "linear"),
            (prefix + "in_proj_a", (num_heads, model_dim), "linear"),
            (prefix + "conv1d", (2 * keys + values, 1, DELTA_NET["linear_conv_kernel_dim"]), "linear"),
            (prefix + "dt_bias", (num_heads,), "offset"),
            (prefix + "A_log", (num_heads,), "offset"),
            (prefix + "norm", (DELTA_NET["linear_value_head_dim"],), "norm"),
            (prefix + "out_proj", (model_dim, values), "linear")]


def make_config(dims, dtype, bos_id, eos_id):
    """Returns the contents of config.json, with the keys of the published checkpoints."""
    config = {
        "hidden_act": "silu", "attention_dropout": 0.0, "bos_token_id": bos_id, "eos_token_id": eos_id,
        "hidden_size": dims["model_dim"], "num_hidden_layers": dims["num_layers"],
        "num_attention_heads": dims["num_heads"], "num_key_value_heads": dims["num_kv_heads"],
        "num_experts_per_tok": dims["num_topk"], "max_position_embeddings": dims["context"],
        "vocab_size": dims["vocab_size"], "tie_word_embeddings": False, "torch_dtype": DTYPES[dtype][2],
        "use_cache": True, "initializer_range": 0.02, "output_router_logits": False,
    }
    family = dims["family"]
    if family == "mixtral":
        config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "rope_theta": 1e6,
                   "rms_norm_eps": 1e-5, "head_dim": dims["head_dim"], "sliding_window": None,
                   "intermediate_size": dims["expert_dim"], "num_local_experts": dims["num_experts"]}
    elif family == "qwen3_moe":
        config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "rope_theta": 1e6,
                   "rms_norm_eps": 1e-6, "head_dim": dims["head_dim"], "attention_bias": False,
                   "sliding_window": None, "use_sliding_window": False, "rope_scaling": None,
                   "intermediate_size": 3 * dims["model_dim"], "moe_intermediate_size": dims["expert_dim"],
                   "num_experts": dims["num_experts"], "norm_topk_prob": True, "decoder_sparse_step": 1,
                   "mlp_only_layers": []}
    elif family == "qwen3_5_moe_text":
        config |= {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": family, "rms_norm_eps": 1e-6,
                   "head_dim": dims["head_dim"], "attention_bias": False, "moe_intermediate_size": dims["expert_dim"],
                   "shared_expert_intermediate_size": dims["expert_dim"], "num_experts": dims["num_experts"],
                   "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
                   **DELTA_NET}
    elif family == "gemma4_text":
        del config["hidden_act"]
        config |= {"architectures": ["Gemma4ForCausalLM"], "model_type": family, "rms_norm_eps": 1e-6,
                   "hidden_activation": "gelu_pytorch_tanh", "head_dim": dims["head_dim"], "attention_bias": False,
                   "tie_word_embeddings": True, "enable_moe_block": True, "intermediate_size": 3 * dims["expert_dim"],
                   "moe_intermediate_size": dims["expert_dim"], "num_experts": dims["num_experts"],
                   "top_k_experts": config.pop("num_experts_per_tok"), "sliding_window": 1024,
                   "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
                   "layer_types": [("full" if is_full_layer(layer) else "sliding") + "_attention"
                                   for layer in range(dims["num_layers"])],
                   "rope_parameters": {
                       "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                       "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}},
                   **GEMMA4}
    else:
        config |= {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "rope_theta": 10000.0,
                   "rms_norm_eps": 1e-5, "attention_bias": False, "clip_qkv": None, "rope_scaling": None,
                   "intermediate_size": dims["expert_dim"], "num_experts": dims["num_experts"],
                   "norm_topk_prob": False, "pad_token_id": None}
    return dict(sorted(config.items()))


def check_dims(dims):
    """Fills in head_dim; raises ValueError for impossible dimensions."""
    if dims["head_dim"] is None:
        if dims["model_dim"] % dims["num_heads"]:
            raise ValueError("--head-dim is needed: --model-dim is no multiple of --num-heads")
        dims["head_dim"] = dims["model_dim"] // dims["num_heads"]
    for key, value in dims.items():
        if key not in ("family", "routing_skew") and value < 1:
            raise ValueError(f"--{key.replace('_', '-')} must be positive")
    if dims["head_dim"] % 2:
        raise ValueError(f"head_dim {dims['head_dim']} must be even")
    if dims["num_heads"] % dims["num_kv_heads"]:
        raise ValueError("--num-heads must be a multiple of --num-kv-heads")
    if dims["num_topk"] > dims["num_experts"]:
        raise ValueError("--num-topk must not exceed --num-experts")
    if dims["family"] == "olmoe" and dims["num_heads"] * dims["head_dim"] != dims["model_dim"]:
        raise ValueError("olmoe needs --num-heads times --head-dim equal to --model-dim")


@functools.cache
def normal_quantiles():
    """Returns the 65536 midpoint quantiles of N(0, 1), scaled to variance 1: f32 [65536], within +-4.4."""
    inverse = statistics.NormalDist().inv_cdf
    table = np.array([inverse((i + 0.5) / 65536) for i in range(65536)])
    return (table / table.std()).astype(np.float32)


def to_dtype(values, dtype):
    """Rounds f32 values to the nearest, ties to even; bf16 is returned as its bits in u16."""
    if dtype == "bf16":
        bits = values.view(np.uint32)
        return ((bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)) >> 16).astype("<u2")
    return values.astype("<f2" if dtype == "f16" else "<f4")


def random_bytes(name, shape, kind, dtype, seed):
    """Yields the little-endian bytes of one tensor in chunks of CHUNK values.

    Each value is a random entry of a table of normal quantiles already in the tensor's scale and type.
    """
    rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))
    kind, _, skew = kind.partition("+")
    mean, std = {"norm": (1.0, 0.1), "offset": (0.0, 0.1), "embedding": (0.0, 1.0), "linear": (0.0, shape[-1] ** -0.5)}[kind]
    table = to_dtype(np.float32(mean) + np.float32(std) * normal_quantiles(), dtype)
    common = to_dtype(common_values(kind, shape[0], float(skew), rng), dtype) if skew else None
    size, done = math.prod(shape), 0
    while done < size:
        count = min(CHUNK, size - done)
        values = table[np.frombuffer(rng.bytes(2 * count), dtype="<u2")]
        if skew:
            rows, columns = np.divmod(np.arange(done, done + count), shape[-1])
            shared = columns < COMMON_DIMS
            values[shared] = common[rows[shared]]
        done += count
        yield memoryview(values).cast("B")


def common_values(kind, num_rows, skew, rng):
    """Returns each row's value in the first COMMON_DIMS columns, which all hidden states share: f32 [num_rows].

    For a router, it is the logarithm of 1/rank^skew for a random order of the experts. It works as far as hidden states
    still show what the embeddings share. That share shrinks from layer to layer, because attention and experts add to it.
    """
    if kind == "embedding":
        return np.full(num_rows, COMMON_VALUE, np.float32)
    popularity = -skew * np.log1p(rng.permutation(num_rows))
    return ((popularity - popularity.mean()) / (COMMON_DIMS * COMMON_VALUE / 2)).astype(np.float32)


def to_f32(data, dtype):
    """Returns the f32 values of little-endian bytes."""
    if dtype == "bf16":
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype="<f2" if dtype == "f16" else "<f4").astype(np.float32)


def write_gguf(path, dims, config, tensors, kind, args):
    """Writes the weights, rounded to dtype first: file and folder hold the same model (or its quantisation)."""
    def chunks(*tensor):
        return (to_f32(data, args.dtype) for data in random_bytes(*tensor, args.dtype, args.seed))

    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        gguf_model.write(partial, dims, config, tensors, kind, chunks, to_dtype, args.tokenizer_from)
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    print(f"{path}: {kind}, {path.stat().st_size / 1e9:.3f} GB", file=sys.stderr)


def split_shards(tensors, value_size, shard_size):
    """Splits [(name, shape, kind)] in order into lists of at most shard_size bytes each, one per shard.

    A larger tensor gets its own shard.
    """
    shards, used = [[]], 0
    for tensor in tensors:
        size = math.prod(tensor[1]) * value_size
        if shards[-1] and used + size > shard_size:
            shards.append([])
            used = 0
        shards[-1].append(tensor)
        used += size
    return shards


def write_shard(path, tensors, dtype, seed):
    """Writes one safetensors file: u64 header length, JSON header padded to 8 bytes, data."""
    code, value_size, _ = DTYPES[dtype]
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _kind in tensors:
        end = offset + math.prod(shape) * value_size
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, shape, kind in tensors:
            for chunk in random_bytes(name, shape, kind, dtype, seed):
                file.write(chunk)


def write_weights(folder, tensors, dtype, seed, shard_size):
    """Writes model.safetensors, or several shards and their index."""
    value_size = DTYPES[dtype][1]
    shards = split_shards(tensors, value_size, shard_size)
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_shard(folder / name, shard, dtype, seed)
        weight_map |= {tensor[0]: name for tensor in shard}
        print(f"{number}/{len(shards)} {name}", file=sys.stderr)
    if len(shards) > 1:
        count = sum(math.prod(shape) for _, shape, _ in tensors)
        index = {"metadata": {"total_parameters": count, "total_size": count * value_size},
                 "weight_map": dict(sorted(weight_map.items()))}
        write_json(folder / "model.safetensors.index.json", index)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def sentencepiece_count(data):
    """Returns the number of pieces in a tokenizer.model (protobuf ModelProto; pieces are its field 1)."""
    def varint(at):
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 0x80:
                return value, at

    count = at = 0
    while at < len(data):
        tag, at = varint(at)
        if tag & 7 != 2:
            raise ValueError("tokenizer.model: unexpected field")
        length, at = varint(at)
        at += length
        count += tag >> 3 == 1
    return count


def read_tokenizer(folder):
    """Returns (number of token ids, bos id or None, eos id or None) of a tokenizer folder."""
    ids = {}
    path = folder / "tokenizer.json"
    if path.exists():
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
        vocab = tokenizer["model"]["vocab"]
        if isinstance(vocab, list):     # Unigram: [[piece, score], ...]
            vocab = {piece[0]: number for number, piece in enumerate(vocab)}
        ids = vocab | {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
        count = max(ids.values()) + 1
    elif (folder / "tokenizer.model").exists():
        count = sentencepiece_count((folder / "tokenizer.model").read_bytes())
        ids = {"<s>": 1, "</s>": 2}
    else:
        raise ValueError(f"{folder}: neither tokenizer.json nor tokenizer.model")
    special = {}
    path = folder / "tokenizer_config.json"
    if path.exists():
        config = json.loads(path.read_text(encoding="utf-8"))
        for key in ("bos_token", "eos_token"):
            token = config.get(key)
            special[key] = ids.get(token["content"] if isinstance(token, dict) else token)
    return count, special.get("bos_token"), special.get("eos_token")


def parse_size(text):
    """Parses "500MB", "2GB" (decimal), "64MiB" (binary) or a plain number; returns bytes."""
    units = {"GIB": 1 << 30, "MIB": MIB, "KIB": 1 << 10, "GB": 10**9, "MB": 10**6, "KB": 10**3, "": 1}
    text = text.strip().upper()
    for unit, factor in units.items():
        if text.endswith(unit):
            with contextlib.suppress(ValueError):
                if (size := int(float(text[:len(text) - len(unit)]) * factor)) > 0:
                    return size
            break
    raise argparse.ArgumentTypeError(f"not a size: {text}")


def parse_args():
    parser = argparse.ArgumentParser(
        description="Write a random-weight Mixture-of-Experts model folder.",
        epilog="Options override the preset's dimensions. Folder and files appear only once they are complete.")
    parser.add_argument("--family", choices=("mixtral", "qwen3_moe", "qwen3_5_moe_text", "gemma4_text", "olmoe"))
    parser.add_argument("--preset", choices=PRESETS)
    for key, default in DEFAULTS.items():
        text = "model_dim / num_heads" if default is None else default
        parser.add_argument("--" + key.replace("_", "-"), type=int, metavar="N",
                            help=f"without a preset: {text}")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--routing-skew", type=float, default=0, metavar="Z",
                        help="in each layer, the r-th expert is chosen about 1/r^Z as often as the first; default: equally")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard-size", type=parse_size, default="500MB", help="default: %(default)s")
    parser.add_argument("--tokenizer-from", type=Path, metavar="DIR",
                        help="copy the tokenizer files of DIR; a GGUF file gets its vocabulary if it is of GPT-2's kind")
    parser.add_argument("--output", type=Path, metavar="DIR", help="the Hugging Face folder")
    parser.add_argument("--gguf", nargs=2, action="append", default=[], metavar=("TYPE", "FILE"),
                        help=f"the same weights as a GGUF file, {', '.join(gguf_model.TYPES)}; may be given several times")
    parser.add_argument("--force", action="store_true", help="replace an existing output")
    args = parser.parse_args()
    if not args.family and not args.preset:
        parser.error("--family or --preset is needed")
    if args.preset and args.family not in (None, PRESETS[args.preset]["family"]):
        parser.error(f"--preset {args.preset} is of family {PRESETS[args.preset]['family']}")
    if not args.output and not args.gguf:
        parser.error("--output or --gguf is needed")
    args.gguf = [(kind.lower(), Path(path)) for kind, path in args.gguf]
    for kind, _ in args.gguf:
        if kind not in gguf_model.TYPES:
            parser.error(f"--gguf {kind}: the types are {', '.join(gguf_model.TYPES)}")
    if args.routing_skew < 0:
        parser.error("--routing-skew must not be negative")
    if args.seed < 0:
        parser.error("--seed must not be negative")
    return args


def check_outputs(args, dims, tensors):
    """Raises ValueError for outputs that exist, cannot be written or do not fit on their disks."""
    sizes = [(path, gguf_model.file_size(tensors, kind, dims["family"])) for kind, path in args.gguf]
    if args.output:
        sizes.append((args.output, sum(math.prod(shape) for _, shape, _ in tensors) * DTYPES[args.dtype][1]))
    needed = {}
    for path, size in sizes:
        if path.exists() and not args.force:
            raise ValueError(f"{path} exists (--force replaces it)")
        parent = Path(os.path.abspath(path)).parent
        parent.mkdir(parents=True, exist_ok=True)
        _, total = needed.get(device := parent.stat().st_dev, (None, 0))
        needed[device] = (parent, total + size + MIB)
    for parent, size in needed.values():
        if shutil.disk_usage(parent).free < size:
            raise ValueError(f"{size / 1e9:.1f} GB are needed on the disk of {parent}")


def write_folder(args, config, tensors, bos_id, eos_id):
    """Writes the Hugging Face folder under a temporary name, and renames it when it is complete."""
    output = Path(os.path.abspath(args.output))
    partial = output.with_name(f"{output.name}.partial-{os.getpid()}")
    partial.mkdir()
    try:
        write_json(partial / "config.json", config)
        write_json(partial / "generation_config.json", {"bos_token_id": bos_id, "eos_token_id": eos_id})
        for name in TOKENIZER_FILES if args.tokenizer_from else ():
            if (args.tokenizer_from / name).exists():
                shutil.copyfile(args.tokenizer_from / name, partial / name)
        write_weights(partial, tensors, args.dtype, args.seed, args.shard_size)
        if output.exists():
            shutil.rmtree(output)
        partial.rename(output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def main():
    args = parse_args()
    dims = {"family": args.family, **DEFAULTS, **PRESETS.get(args.preset, {})}
    dims |= {key: getattr(args, key) for key in DEFAULTS if getattr(args, key) is not None}
    dims["routing_skew"] = args.routing_skew
    bos_id, eos_id = 1, 2
    try:
        check_dims(dims)
        for kind, _ in args.gguf:
            gguf_model.check(dims, kind)
        if args.tokenizer_from:
            count, bos, eos = read_tokenizer(args.tokenizer_from)
            if dims["vocab_size"] < count:
                raise ValueError(f"the tokenizer has {count} ids: --vocab-size must be at least that")
            bos_id, eos_id = (bos, eos) if eos is not None else (bos_id, eos_id)
        tensors = tensor_list(dims)
        check_outputs(args, dims, tensors)
    except (OSError, ValueError) as error:
        sys.exit(f"make_model.py: {error}")

    start = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    config = make_config(dims, args.dtype, bos_id, eos_id)
    if args.output:
        write_folder(args, config, tensors, bos_id, eos_id)
    for kind, path in args.gguf:
        write_gguf(path, dims, config, tensors, kind, args)
    count = sum(math.prod(shape) for _, shape, _ in tensors)
    print(f"{args.output or args.gguf[0][1]}: {count / 1e6:.1f} M parameters, {count * DTYPES[args.dtype][1] / 1e9:.3f} GB "
          f"as "
          f"{args.dtype}, {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
