"""A complete tiny Mixtral in Hugging Face layout, written with the standard library alone.

Two layers of four experts, model_dim 16, vocabulary 300, f32. Its answers are noise. Every byte of every file is known,
so that a test can spoil exactly one of them.
"""
import json
import os
import random
import shutil
import struct

VOCAB_SIZE = 300
MODEL_DIM = 16
NUM_LAYERS = 2
NUM_HEADS = 2
NUM_KV_HEADS = 1
HEAD_DIM = 8
NUM_EXPERTS = 4
EXPERT_DIM = 16
CONTEXT = 512
MERGES = [("a", "a"), ("aa", "aa"), ("t", "h"), ("th", "e"), ("\u0120", "a"), ("i", "n")]
SPECIAL_TOKENS = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
FIRST_SPECIAL_ID = 256 + len(MERGES)
CHAT_TEMPLATE = ("{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{{ message['content'] }}"
                 "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
SHARD = "model.safetensors"
INDEX = "model.safetensors.index.json"


def config():
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": VOCAB_SIZE,
            "hidden_size": MODEL_DIM, "intermediate_size": EXPERT_DIM, "num_hidden_layers": NUM_LAYERS,
            "num_attention_heads": NUM_HEADS, "num_key_value_heads": NUM_KV_HEADS, "head_dim": HEAD_DIM,
            "num_local_experts": NUM_EXPERTS, "num_experts_per_tok": 2, "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
            "eos_token_id": FIRST_SPECIAL_ID + 1, "torch_dtype": "float32"}


def shapes():
    """Returns name -> shape of every tensor of the model."""
    q_dim, kv_dim = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    out = {"model.embed_tokens.weight": [VOCAB_SIZE, MODEL_DIM], "lm_head.weight": [VOCAB_SIZE, MODEL_DIM],
           "model.norm.weight": [MODEL_DIM]}
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}."
        out[prefix + "input_layernorm.weight"] = [MODEL_DIM]
        out[prefix + "post_attention_layernorm.weight"] = [MODEL_DIM]
        out[prefix + "self_attn.q_proj.weight"] = [q_dim, MODEL_DIM]
        out[prefix + "self_attn.k_proj.weight"] = [kv_dim, MODEL_DIM]
        out[prefix + "self_attn.v_proj.weight"] = [kv_dim, MODEL_DIM]
        out[prefix + "self_attn.o_proj.weight"] = [MODEL_DIM, q_dim]
        out[prefix + "block_sparse_moe.gate.weight"] = [NUM_EXPERTS, MODEL_DIM]
        for expert in range(NUM_EXPERTS):
            for name, shape in (("w1", [EXPERT_DIM, MODEL_DIM]), ("w2", [MODEL_DIM, EXPERT_DIM]),
                                ("w3", [EXPERT_DIM, MODEL_DIM])):
                out[f"{prefix}block_sparse_moe.experts.{expert}.{name}.weight"] = shape
    return out


def num_values(shape):
    count = 1
    for dim in shape:
        count *= dim
    return count


def tensors():
    """Returns name -> (dtype, shape, bytes), the same in every run."""
    rng = random.Random(20261121)
    out = {}
    for name, shape in shapes().items():
        scale = 0.0 if name.endswith("norm.weight") else 0.3
        values = [1.0 if scale == 0.0 else rng.uniform(-scale, scale) for _ in range(num_values(shape))]
        out[name] = ("F32", shape, struct.pack(f"<{len(values)}f", *values))
    return out


def layout(parts):
    """Returns the header of a safetensors file as a dict, and its data."""
    header, data = {}, b""
    for name, (dtype, shape, content) in parts.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return header, data


def file_bytes(header, data):
    """Returns a safetensors file as bytes; `header` may be a dict or raw bytes in its place."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def byte_alphabet():
    """Returns the 256 characters that stand for bytes in byte-level BPE, as in GPT-2."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [byte for byte in range(256) if byte not in printable]
    chars = {byte: chr(byte) for byte in printable}
    chars.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return [chars[byte] for byte in range(256)]


def tokenizer():
    vocab = {char: byte for byte, char in enumerate(byte_alphabet())}
    for i, (left, right) in enumerate(MERGES):
        vocab[left + right] = 256 + i
    added = [{"id": FIRST_SPECIAL_ID + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, token in enumerate(SPECIAL_TOKENS)]
    return {"version": "1.0", "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": vocab, "merges": [f"{left} {right}" for left, right in MERGES]}}


def tokenizer_config():
    return {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}


class ModelFolder:
    """A copy of the tiny model that a test may spoil."""

    _seed = None  # file name -> bytes, made once

    def __init__(self, path):
        self.path = path
        os.makedirs(path)
        for name, content in self.seed().items():
            self.write(name, content)

    @classmethod
    def seed(cls):
        if cls._seed is None:
            header, data = layout(tensors())
            cls._seed = {SHARD: file_bytes(header, data), "config.json": json.dumps(config()).encode(),
                         "tokenizer.json": json.dumps(tokenizer()).encode(),
                         "tokenizer_config.json": json.dumps(tokenizer_config()).encode()}
        return cls._seed

    def file(self, name):
        return os.path.join(self.path, name)

    def write(self, name, content):
        with open(self.file(name), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)

    def remove(self, name):
        os.remove(self.file(name))

    def write_weights(self, header, data):
        self.write(SHARD, file_bytes(header, data))

    def edit_header(self, edit):
        """Calls edit(header dict) and writes the shard with the new header; the data is kept."""
        header, data = layout(tensors())
        edited = edit(header)
        self.write_weights(header if edited is None else edited, data)

    def edit_tensors(self, edit):
        """Calls edit(name -> (dtype, shape, bytes)) and writes a well-formed shard of the edited tensors."""
        parts = tensors()
        edit(parts)
        self.write_weights(*layout(parts))

    def edit_json(self, name, edit):
        with open(self.file(name), encoding="utf-8") as file:
            value = json.load(file)
        edited = edit(value)
        self.write(name, json.dumps(value if edited is None else edited))

    def split(self, names=("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"), edit=None):
        """Splits the shard in two, with an index; edit(weight_map) may change the index."""
        parts = list(tensors().items())
        self.remove(SHARD)
        weight_map = {}
        for name, half in zip(names, (parts[:5], parts[5:]), strict=True):
            self.write(name, file_bytes(*layout(dict(half))))
            weight_map.update({tensor: name for tensor, _ in half})
        if edit is not None:
            edit(weight_map)
        self.write(INDEX, json.dumps({"metadata": {}, "weight_map": weight_map}))

    def move(self, path):
        shutil.move(self.path, path)
        self.path = path
        return self
