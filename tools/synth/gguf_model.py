"""Writes a random model of make_model.py as a GGUF file, in the layout of llama.cpp's own converter.

The experts of a layer are one tensor. Everything is written chunk by chunk as it is generated.
"""
import json
import math

import numpy as np
from gguf_file import ARRAY, BOOL, F32, I32, STRING, U32, Gguf, Tensor

BLOCK = 32      # values that share a scale in Q8_0 and Q4_0

# name: (number of the type in GGUF, "file type" of a model that mostly has it, values per block, bytes per block)
TYPES = {
    "f32": (0, 0, 1, 4),
    "f16": (1, 1, 1, 2),
    "bf16": (30, 32, 1, 2),
    "q8_0": (8, 7, BLOCK, 2 + BLOCK),
    "q4_0": (2, 2, BLOCK, 2 + BLOCK // 2),
}
ARCHITECTURES = {"mixtral": "llama", "qwen3_moe": "qwen3moe", "qwen3_5_moe_text": "qwen35moe", "gemma4_text": "gemma4"}
NORMAL, CONTROL, UNUSED = 1, 3, 5   # token types

# Names within a layer; "{}" stands for the number of the expert.
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.experts.{}.w1": "ffn_gate_exps", "mlp.experts.{}.gate_proj": "ffn_gate_exps",
    "block_sparse_moe.experts.{}.w3": "ffn_up_exps", "mlp.experts.{}.up_proj": "ffn_up_exps",
    "block_sparse_moe.experts.{}.w2": "ffn_down_exps", "mlp.experts.{}.down_proj": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
# The whole names of Gemma 4 that differ from those above, or have no ".weight".
GEMMA4_NAMES = {
    "post_attention_layernorm.weight": "post_attention_norm.weight", "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight", "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight",
    "layer_scalar": "layer_output_scale.weight", "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight",
}
# Names without ".weight" in Hugging Face's files.
BARE_NAMES = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
GLOBAL_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def quantise_q8_0(values):
    """Returns blocks of an f16 scale and 32 signed bytes."""
    values = values.reshape(-1, BLOCK)
    scale = np.abs(values).max(axis=1) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    scaled = values * inverse[:, None]
    blocks = np.empty(len(values), dtype=[("scale", "<f2"), ("quants", "i1", BLOCK)])
    blocks["scale"] = scale
    blocks["quants"] = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    return blocks


def quantise_q4_0(values):
    """Returns blocks of an f16 scale and 32 nibbles, each 8 larger than its code. The largest value gets the code -8.

    Byte i holds value i in its low half and value i + 16 in its high half.
    """
    values = values.reshape(-1, BLOCK)
    largest = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)[:, 0]
    scale = largest / np.float32(-8)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    nibbles = np.minimum(15, (values * inverse[:, None] + np.float32(8.5)).astype(np.uint8))
    blocks = np.empty(len(values), dtype=[("scale", "<f2"), ("quants", "u1", BLOCK // 2)])
    blocks["scale"] = scale
    blocks["quants"] = nibbles[:, :BLOCK // 2] | nibbles[:, BLOCK // 2:] << 4
    return blocks


def encode(values, kind, round_to):
    """Encodes f32 values in a type of TYPES; round_to(values, dtype) rounds to the plain dtypes."""
    if kind == "q8_0":
        return quantise_q8_0(values)
    if kind == "q4_0":
        return quantise_q4_0(values)
    return round_to(values, kind)


def pair_rotations(weight, num_heads):
    """Reorders the rows of a q or k projection for the architecture "llama".

    It rotates neighbours (2i, 2i + 1) of a head, where Hugging Face rotates (i, i + head_dim / 2).
    """
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


def gguf_name(name, family):
    """Returns the GGUF tensor that a Hugging Face tensor becomes or (for an expert) is a part of."""
    stem = name.removesuffix(".weight")
    if stem in GLOBAL_NAMES:
        return GLOBAL_NAMES[stem] + ".weight"
    _, _, layer, rest = stem.split(".", 3)
    if family == "gemma4_text" and (own := name.split(".", 3)[3]) in GEMMA4_NAMES:
        return f"blk.{layer}.{GEMMA4_NAMES[own]}"
    if ".experts." in rest:
        parts = rest.split(".")
        parts[2] = "{}"
        rest = ".".join(parts)
    if rest in BARE_NAMES:
        return f"blk.{layer}.{BARE_NAMES[rest]}"
    is_hybrid = family == "qwen3_5_moe_text"
    name = "post_attention_norm" if is_hybrid and rest == "post_attention_layernorm" else LAYER_NAMES[rest]
    return f"blk.{layer}.{name}.weight"


def tile_value_heads(values, delta_net):
    """Reorders axis 0, the value heads, from heads of one key head side by side to one of each key head after another."""
    num_keys = delta_net["linear_num_key_heads"]
    groups = values.reshape(num_keys, -1, values.shape[0] // delta_net["linear_num_value_heads"], *values.shape[1:])
    return groups.swapaxes(0, 1).reshape(values.shape)


def delta_net_values(name, values, delta_net):
    """Changes a tensor of a qwen35moe model as llama.cpp's converter does: value heads in the order of ggml's broadcasts,
    rates in place of their logarithms, norms in place of distances from 1."""
    stem = name.split(".", 2)[-1]
    if stem in ("attn_qkv.weight", "ssm_conv1d.weight"):
        num_keys = 2 * delta_net["linear_num_key_heads"] * delta_net["linear_key_head_dim"]
        return np.concatenate([values[:num_keys], tile_value_heads(values[num_keys:], delta_net)])
    if stem == "ssm_out.weight":
        return np.ascontiguousarray(tile_value_heads(values.T, delta_net).T)
    if stem == "ssm_a":
        return -np.exp(tile_value_heads(values, delta_net))
    if stem in ("attn_gate.weight", "ssm_beta.weight", "ssm_alpha.weight", "ssm_dt.bias"):
        return tile_value_heads(values, delta_net)
    if name.endswith("norm.weight") and stem != "ssm_norm.weight":
        return values + np.float32(1)
    return values


def gather(tensors, kind, family):
    """Merges the experts. Returns [(name, shape, type, parts)]; a part is a Hugging Face tensor (name, shape, kind)."""
    merged = {}
    for tensor in tensors:
        merged.setdefault(gguf_name(tensor[0], family), []).append(tensor)
    result = []
    for name, parts in merged.items():
        shape = parts[0][1]
        if name.endswith("_exps.weight") and len(shape) == 2:
            shape = (len(parts), *shape)
        shape = tuple(size for size in shape if size > 1) or (1,)   # a convolution's middle, the shared expert's one gate
        # Vectors, convolutions and routers stay f32, as with llama.cpp's converter.
        plain = len(shape) == 1 or name.endswith(("ffn_gate_inp.weight", "ssm_conv1d.weight"))
        result.append((name, shape, "f32" if plain else kind, parts))
    return result


def metadata(dims, config, kind):
    """Returns [(key, value)]; an int is written as u32, a list as i32s or bools, a float as f32."""
    arch = ARCHITECTURES[dims["family"]]
    pairs = [
        ("general.architecture", arch), ("general.name", f"random {dims['family']}"), ("general.file_type", TYPES[kind][1]),
        ("general.quantization_version", 2), ("general.alignment", Gguf().alignment),
    ]
    own = {
        "vocab_size": dims["vocab_size"], "context_length": dims["context"], "embedding_length": dims["model_dim"],
        "block_count": dims["num_layers"], "feed_forward_length": config.get("intermediate_size"),
        "attention.head_count": dims["num_heads"], "attention.head_count_kv": dims["num_kv_heads"],
        "attention.key_length": dims["head_dim"], "attention.value_length": dims["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"], "rope.freq_base": config.get("rope_theta", 1e7),
        "rope.dimension_count": dims["head_dim"], "expert_count": dims["num_experts"], "expert_used_count": dims["num_topk"],
    }
    if dims["family"] != "mixtral":
        own["expert_feed_forward_length"] = dims["expert_dim"]
    if dims["family"] == "qwen3_5_moe_text":
        del own["feed_forward_length"]
        own |= {
            "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
            "ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": config["linear_num_value_heads"],
            "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
            "full_attention_interval": 4, "rope.dimension_count": dims["head_dim"] // 4,
            "rope.dimension_sections": [11, 11, 10, 0],
        }
    if dims["family"] == "gemma4_text":
        own |= gemma4_metadata(dims, config)
    return pairs + [(f"{arch}.{key}", value) for key, value in own.items()]


def gemma4_metadata(dims, config):
    """Returns the keys of Gemma 4, whose layers without a window have heads of their own."""
    has_window = [kind == "sliding_attention" for kind in config["layer_types"]]
    full, window, ropes = config["global_head_dim"], dims["head_dim"], config["rope_parameters"]
    return {
        "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": has_window,
        "attention.head_count_kv": [dims["num_kv_heads"] if has else config["num_global_key_value_heads"]
                                    for has in has_window],
        "attention.key_length": full, "attention.value_length": full, "attention.key_length_swa": window,
        "attention.value_length_swa": window, "rope.dimension_count": full, "rope.dimension_count_swa": window,
        "rope.freq_base": ropes["full_attention"]["rope_theta"],
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"], "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0, "final_logit_softcapping": config["final_logit_softcapping"],
    }


def rope_factors(config):
    """Returns {name: values} of the factors of Gemma 4's pairs of dims: those that do not rotate have 1e30."""
    if "global_head_dim" not in config:
        return {}
    factors = np.full(config["global_head_dim"] // 2, 1e30, dtype="<f4")
    factors[:int(len(factors) * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])] = 1
    return {"rope_freqs.weight": factors}


def vocabulary(folder, config):
    """Returns [(key, type, value)] for the tokenizer of a folder that splits texts as GPT-2 does. For any other tokenizer,
    and without a folder, the file has no vocabulary: the model takes and returns token ids."""
    path = folder / "tokenizer.json" if folder else None
    tokenizer = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
    splitter = tokenizer.get("pre_tokenizer") or {}
    if splitter.get("type") != "ByteLevel" or not splitter.get("use_regex", True) or tokenizer["model"]["type"] != "BPE":
        return [("tokenizer.ggml.model", STRING, "no_vocab")]
    tokens = [f"[PAD{number}]" for number in range(config["vocab_size"])]
    types = [UNUSED] * len(tokens)
    for token, number in tokenizer["model"]["vocab"].items():
        tokens[number], types[number] = token, NORMAL
    for token in tokenizer.get("added_tokens", []):
        tokens[token["id"]], types[token["id"]] = token["content"], CONTROL
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    own = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    fields = {
        "ggml.model": (STRING, "gpt2"), "ggml.pre": (STRING, "gpt-2"), "ggml.tokens": (ARRAY, (STRING, tokens)),
        "ggml.token_type": (ARRAY, (I32, types)), "ggml.merges": (ARRAY, (STRING, merges)),
        "ggml.bos_token_id": (U32, config["bos_token_id"]), "ggml.eos_token_id": (U32, config["eos_token_id"]),
        "ggml.add_bos_token": (BOOL, own.get("add_bos_token", False)),
    }
    if "chat_template" in own:
        fields["chat_template"] = (STRING, own["chat_template"])
    return [(f"tokenizer.{key}", *field) for key, field in fields.items()]


def num_bytes(shape, kind):
    _, _, per_block, block_bytes = TYPES[kind]
    return math.prod(shape) // per_block * block_bytes


def file_size(tensors, kind, family):
    """Returns the size of the tensors' data in bytes."""
    return sum(num_bytes(shape, actual) for _, shape, actual, _ in gather(tensors, kind, family))


def check(dims, kind):
    """Raises ValueError for a model that cannot be written."""
    if dims["family"] not in ARCHITECTURES:
        raise ValueError(f"--gguf knows the families {', '.join(ARCHITECTURES)}, not {dims['family']}")
    inner = [dims["model_dim"], dims["expert_dim"], dims["num_heads"] * dims["head_dim"]]
    if TYPES[kind][2] > 1 and any(size % BLOCK for size in inner):
        raise ValueError(f"--gguf {kind} needs rows of a multiple of {BLOCK} values; rows are {inner}")


def write(path, dims, config, tensors, kind, chunks, round_to, tokenizer):
    """Writes the file, with the vocabulary of the folder `tokenizer`. chunks(name, shape, kind) yields a tensor's values as
    f32 arrays.

    Their sizes are multiples of BLOCK, except for the last.
    """
    factors = rope_factors(config)
    entries = [(name, values.shape, "f32", ()) for name, values in factors.items()] + gather(tensors, kind, dims["family"])
    gguf = Gguf()
    for key, value in metadata(dims, config, kind):
        if isinstance(value, list):
            gguf.set(key, ARRAY, (BOOL if isinstance(value[0], bool) else I32, value))
        else:
            gguf.set(key, {str: STRING, float: F32, int: U32}[type(value)], value)
    for field in vocabulary(tokenizer, config):
        gguf.set(*field)
    for name, shape, actual, _ in entries:
        gguf.tensors.append(Tensor(name, shape[::-1], kind=TYPES[actual][0], num_bytes=num_bytes(shape, actual)))
    is_hybrid = dims["family"] == "qwen3_5_moe_text"
    heads = {}
    if dims["family"] == "mixtral":
        heads = {"attn_q": dims["num_heads"], "attn_k": dims["num_kv_heads"]}
    with open(path, "wb") as file:
        file.write(gguf.header())
        file.write(bytes(-file.tell() % gguf.alignment))
        for name, _, actual, parts in entries:
            num_heads = heads.get(name.split(".")[-2])
            if name in factors:
                file.write(factors[name])
            for part in parts:
                values = chunks(*part)
                if num_heads:
                    values = [pair_rotations(np.concatenate(list(values)).reshape(part[1]), num_heads).reshape(-1)]
                elif is_hybrid and "_exps" not in name and name.startswith(("blk.", "output_norm")):
                    values = [delta_net_values(name, np.concatenate(list(values)).reshape(part[1]), config).reshape(-1)]
                for chunk in values:
                    file.write(encode(chunk, actual, round_to).view(np.uint8))
            file.write(bytes(-file.tell() % gguf.alignment))
