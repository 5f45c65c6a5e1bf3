"""The tiny model (tiny_model.py) as a GGUF file."""
import pathlib
import sys

import tiny_model

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "synth"))
from gguf_file import ARRAY, BOOL, F32, I32, STRING, U16, U32, Gguf, Tensor  # noqa: E402


def paired(data, num_heads):
    """Returns the rows of a projection in an order in which the two that RoPE rotates together are neighbours."""
    row = 4 * tiny_model.MODEL_DIM
    rows = [data[i:i + row] for i in range(0, len(data), row)]
    half = len(rows) // num_heads // 2
    return b"".join(rows[head * 2 * half + i + part * half] for head in range(num_heads) for i in range(half)
                    for part in range(2))


def tiny():
    """Returns the whole model; it gives the same answers as tiny_model's folder."""
    parts = tiny_model.tensors()
    gguf = Gguf()
    for key, kind, value in (
            ("general.architecture", STRING, "llama"), ("general.alignment", U32, 32),
            ("llama.block_count", U32, tiny_model.NUM_LAYERS), ("llama.context_length", U32, tiny_model.CONTEXT),
            ("llama.embedding_length", U32, tiny_model.MODEL_DIM),
            ("llama.feed_forward_length", U32, tiny_model.EXPERT_DIM),
            ("llama.attention.head_count", U32, tiny_model.NUM_HEADS),
            ("llama.attention.head_count_kv", U32, tiny_model.NUM_KV_HEADS),
            ("llama.attention.key_length", U32, tiny_model.HEAD_DIM),
            ("llama.attention.value_length", U32, tiny_model.HEAD_DIM),
            ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5), ("llama.rope.freq_base", F32, 10000.0),
            ("llama.rope.dimension_count", U32, tiny_model.HEAD_DIM),
            ("llama.expert_count", U32, tiny_model.NUM_EXPERTS), ("llama.expert_used_count", U32, 2)):
        gguf.set(key, kind, value)
    tokens = list(tiny_model.tokenizer()["model"]["vocab"]) + tiny_model.SPECIAL_TOKENS
    types = [1] * (len(tokens) - len(tiny_model.SPECIAL_TOKENS)) + [3] * len(tiny_model.SPECIAL_TOKENS)
    for key, kind, value in (
            ("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "gpt-2"),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)), ("tokenizer.ggml.token_type", ARRAY, (I32, types)),
            ("tokenizer.ggml.merges", ARRAY, (STRING, [" ".join(merge) for merge in tiny_model.MERGES])),
            ("tokenizer.ggml.bos_token_id", U32, tiny_model.FIRST_SPECIAL_ID),
            ("tokenizer.ggml.eos_token_id", U32, tiny_model.FIRST_SPECIAL_ID + 1),
            ("tokenizer.ggml.add_bos_token", BOOL, 0),
            ("tokenizer.chat_template", STRING, tiny_model.CHAT_TEMPLATE)):
        gguf.set(key, kind, value)

    def add(name, source, num_heads=0):
        _, shape, data = parts[source]
        gguf.tensors.append(Tensor(name, shape[::-1], paired(data, num_heads) if num_heads else data))

    add("token_embd.weight", "model.embed_tokens.weight")
    add("output.weight", "lm_head.weight")
    add("output_norm.weight", "model.norm.weight")
    for layer in range(tiny_model.NUM_LAYERS):
        source, name = f"model.layers.{layer}.", f"blk.{layer}."
        add(name + "attn_norm.weight", source + "input_layernorm.weight")
        add(name + "ffn_norm.weight", source + "post_attention_layernorm.weight")
        add(name + "attn_q.weight", source + "self_attn.q_proj.weight", tiny_model.NUM_HEADS)
        add(name + "attn_k.weight", source + "self_attn.k_proj.weight", tiny_model.NUM_KV_HEADS)
        add(name + "attn_v.weight", source + "self_attn.v_proj.weight")
        add(name + "attn_output.weight", source + "self_attn.o_proj.weight")
        add(name + "ffn_gate_inp.weight", source + "block_sparse_moe.gate.weight")
        for part, w in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
            experts = [parts[f"{source}block_sparse_moe.experts.{e}.{w}.weight"] for e in range(tiny_model.NUM_EXPERTS)]
            gguf.tensors.append(Tensor(f"{name}ffn_{part}_exps.weight",
                                       experts[0][1][::-1] + [tiny_model.NUM_EXPERTS],
                                       b"".join(data for _, _, data in experts)))
    return gguf


def split(count):
    """Returns the whole model in `count` files, as a list of Gguf."""
    whole = tiny()
    parts = []
    for i in range(count):
        part = Gguf() if i else whole
        part.set("split.no", U16, i).set("split.count", U16, count)
        part.set("split.tensors.count", I32, len(tiny().tensors))
        parts.append(part)
    tensors = whole.tensors
    for i, part in enumerate(parts):
        part.tensors = tensors[i * len(tensors) // count:(i + 1) * len(tensors) // count]
    return parts


def split_name(i, count, base="tiny"):
    return f"{base}-{i + 1:05}-of-{count:05}.gguf"
