"""Golden models whose weights are stored as codes: FP8, MXFP4, NVFP4, integers, and the quantised types of GGUF.

code_model() replaces the weights of a model folder by the values of their codes, so that transformers can compute the
expected results. write_coded() then replaces the weight files by the codes.
"""

import json
import re

import gguf
import make_gguf
import numpy as np
import safetensors.torch
import torch

# The GGUF type of a weight, by its name in Hugging Face's folders: the first matching pattern counts. Other weights
# stay f32.
GGUF_TYPES = {
    "q8_0": [(r"proj(\.weight)?$|w[123]\.weight|put_linear\.weight|lm_head|embed_tokens", "Q8_0")],
    "q4_0": [(r"v_proj|embed_tokens|lm_head", "Q8_0"), (r"proj\.weight|w[123]\.weight", "Q4_0")],
    "q5": [(r"embed_tokens|lm_head|v_proj", "Q8_0"), (r"w1|q_proj", "Q5_0"), (r"w2|k_proj", "Q5_1"), (r"w3|o_proj", "Q4_1")],
    "k": [(r"embed_tokens|lm_head|down_proj|v_proj", "Q6_K"), (r"up_proj|k_proj", "Q5_K"),
          (r"shared_expert\.gate_proj", "Q8_0"), (r"proj\.weight", "Q4_K")],
}


def fp8(weight, block_rows):
    """Returns (codes, scales, values) of a matrix."""
    rows, inputs = weight.shape
    scales = torch.empty(-(-rows // block_rows), -(-inputs // 128))
    codes = torch.empty(rows, inputs, dtype=torch.float8_e4m3fn)
    values = torch.empty(rows, inputs)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            place = slice(i * block_rows, (i + 1) * block_rows), slice(j * 128, (j + 1) * 128)
            scales[i, j] = weight[place].abs().max() / 448
            codes[place] = (weight[place] / scales[i, j]).to(torch.float8_e4m3fn)
            values[place] = codes[place].float() * scales[i, j]
    return codes, scales, values


def fp8_channels(weight):
    """Returns (codes, scales [outputs, 1], values) of a matrix, as compressed-tensors stores them."""
    scales = (weight.abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
    codes = (weight / scales.float()).to(torch.float8_e4m3fn)
    return codes, scales, codes.float() * scales.float()


# Integer codes: (how they are stored, bits, whether they have zero points).
INTEGERS = {"int4_rows": ("rows", 4, False), "uint4_rows": ("rows", 4, True), "int8_rows": ("rows", 8, False),
            "int4_columns": ("columns", 4, False), "uint4_columns": ("columns", 4, True),
            "uint4_act": ("columns", 4, True), "awq": ("awq", 4, True)}


def integers(weight, group, bits, has_zeros):
    """Returns (codes [outputs, inputs], zero points and scales f16 [outputs, groups], values).

    weight = (code - zero point) * scale
    """
    parts, largest = weight.split(group, dim=1), (1 << bits) - 1
    if has_zeros:
        low = torch.stack([part.amin(1).clamp(max=0) for part in parts], dim=1)
        scales = ((torch.stack([part.amax(1).clamp(min=0) for part in parts], dim=1) - low) / largest).half()
        zeros = (-low / scales.float()).round().clamp(0, largest).to(torch.int32)
    else:
        scales = torch.stack([part.abs().amax(1) / (largest / 2) for part in parts], dim=1).half()
        zeros = torch.full_like(scales, 1 << (bits - 1), dtype=torch.int32)
    scale, zero = (x.repeat_interleave(group, dim=1)[:, :weight.shape[1]] for x in (scales.float(), zeros))
    codes = (weight / scale + zero).round().clamp(0, largest).to(torch.int32)
    return codes, zeros, scales, (codes - zero).float() * scale


def pack(codes, bits=4, order=range(8)):
    """Packs neighbouring codes of a row into an i32, code order[i] in place i from the lowest bits: [rows, words]."""
    per_word = 32 // bits
    codes = torch.nn.functional.pad(codes.to(torch.int64), (0, -codes.shape[1] % per_word))
    words = codes.reshape(codes.shape[0], -1, per_word)[..., list(order)[:per_word]]
    packed = (words << (bits * torch.arange(per_word))).sum(-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def integer_tensors(name, kind, weight, group):
    """Returns ({name: tensor of the checkpoint}, values); the weight itself is None there."""
    stored, bits, has_zeros = INTEGERS[kind]
    # With desc_act, groups consist of inputs in another order.
    order = torch.arange(weight.shape[1])
    if kind == "uint4_act":
        order = torch.from_numpy(np.random.default_rng(len(name)).permutation(weight.shape[1]))
    codes, zeros, scales, values = integers(weight[:, order], group, bits, has_zeros)
    groups = torch.arange(weight.shape[1]).int() // group
    codes, values, groups = (x[..., order.argsort()] for x in (codes, values, groups))
    if stored == "rows":
        parts = {name: None, name + "_packed": pack(codes, bits), name + "_scale": scales,
                 name + "_shape": torch.tensor(weight.shape)}
        return parts | ({name + "_zero_point": pack(zeros.T).T.contiguous()} if has_zeros else {}), values
    base = name.removesuffix(".weight")
    parts = {name: None, base + ".scales": scales.T.contiguous()}
    if stored == "awq":
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        return parts | {base + ".qweight": pack(codes.T, order=order), base + ".qzeros": pack(zeros.T, order=order)}, values
    # Words of zero points less one, as GPTQModel writes them: with a borrow from the next place.
    less_one = (pack(zeros.T).to(torch.int64) - 0x11111111 + (1 << 31)) % (1 << 32) - (1 << 31)
    return parts | {base + ".qweight": pack(codes).T.contiguous(), base + ".qzeros": less_one.to(torch.int32),
                    base + ".g_idx": groups}, values


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(weight):
    """Returns (blocks [.., inputs / 32, 16] u8, scales [.., inputs / 32] u8, values) of rows of weights."""
    groups = weight.reshape(*weight.shape[:-1], -1, 32)
    power = torch.floor(torch.log2(groups.abs().amax(-1))).to(torch.int32) - 2 + 127
    scaled = groups / torch.exp2((power - 127).float())[..., None]
    codes = (scaled[..., None] - E2M1).abs().argmin(-1)
    values = (E2M1[codes] * torch.exp2((power - 127).float())[..., None]).reshape(weight.shape)
    pairs = codes.reshape(*codes.shape[:-1], 16, 2)
    return (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8), power.to(torch.uint8), values


def nvfp4_tensors(name, kind, weight):
    """Returns ({name: tensor of the checkpoint}, values), as modelopt ("nvfp4") or compressed-tensors stores them."""
    groups = weight.reshape(weight.shape[0], -1, 16)
    largest = groups.abs().amax(-1)
    scale_of_scales = (largest.max() / (6 * 448)).float()
    scales = (largest / 6 / scale_of_scales).to(torch.float8_e4m3fn)
    inverse = (1 / scale_of_scales).float()
    scale = scales.float() * scale_of_scales if kind == "nvfp4" else scales.float() / inverse
    codes = (groups[..., None] - scale[..., None, None] * E2M1).abs().argmin(-1)
    values = (E2M1[codes] * scale[..., None]).reshape(weight.shape)
    pairs = codes.reshape(weight.shape[0], -1, 2)
    packed = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)
    base = name.removesuffix(".weight")
    if kind == "nvfp4":
        parts = {name: packed, name + "_scale": scales, name + "_scale_2": scale_of_scales,
                 base + ".input_scale": torch.tensor(0.01)}
        cache = {"k_proj": ".k_scale", "v_proj": ".v_scale"}.get(base.rsplit(".", 1)[-1])
        return parts | ({base + cache: torch.tensor(1.0)} if cache else {}), values
    return {name: None, name + "_packed": packed, name + "_scale": scales, name + "_global_scale": inverse[None],
            base + ".input_global_scale": torch.tensor([100.0])}, values


def k_blocks(kind, rows, inputs, spread, rng):
    """Returns random blocks of a K type as bytes [rows, row bytes]. The weights' standard deviation is about `spread`."""
    shape = (rows, inputs // 256)
    if kind == "Q6_K":
        scales = rng.integers(32, 64, (*shape, 16)) * rng.choice([-1, 1], (*shape, 16))
        d = np.full((*shape, 1), spread / (48 * 18.5), dtype=np.float16)
        codes = rng.integers(0, 256, (*shape, 192), dtype=np.uint8)
        return np.concatenate([codes, scales.astype(np.int8).view(np.uint8), d.view(np.uint8)], -1).reshape(rows, -1)
    levels = 16 if kind == "Q4_K" else 32
    d = np.full((*shape, 1), spread / (48 * levels / 3.46), dtype=np.float16)
    scales = rng.integers(32, 64, (*shape, 8))
    minima = np.clip(scales + rng.integers(-2, 3, (*shape, 8)), 0, 63)
    packed = np.concatenate([scales[..., :4] | scales[..., 4:] >> 4 << 6, minima[..., :4] | minima[..., 4:] >> 4 << 6,
                             scales[..., 4:] & 15 | (minima[..., 4:] & 15) << 4], -1).astype(np.uint8)
    codes = rng.integers(0, 256, (*shape, 128 if kind == "Q4_K" else 160), dtype=np.uint8)
    of_minima = (d.astype(np.float32) * (levels - 1) / 2).astype(np.float16)
    return np.concatenate([d.view(np.uint8), of_minima.view(np.uint8), packed, codes], -1).reshape(rows, -1)


def gguf_rows(kind, weight, rng):
    """Returns (bytes [.., row bytes] u8, values)."""
    rows = weight.reshape(-1, weight.shape[-1])
    number = gguf.GGMLQuantizationType[kind]
    if kind.endswith("_K"):
        coded = k_blocks(kind, *rows.shape, float(rows.std()), rng)
    else:
        coded = gguf.quants.quantize(rows.numpy(), number)
    values = torch.from_numpy(gguf.quants.dequantize(coded, number).copy())
    return torch.from_numpy(coded.reshape(*weight.shape[:-1], -1)), values.reshape(weight.shape)


def code_model(folder, own, seed):
    """Replaces weights by the values of their codes; returns {name: codes} for write_coded()."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    coded = {}
    rng = np.random.default_rng(seed)
    for name, tensor in tensors.items():
        if not re.search(own["coded_names"], name):
            continue
        if own["coded"] == "fp8" and \
                re.search(r"(?<!weights_)(proj(_with_mqa)?|\.w[123]|indexer\.w(q_b|k))\.weight$", name):
            codes, scales, tensors[name] = fp8(tensor, own["fp8_block_rows"])
            coded |= {name: codes, name + "_scale_inv": scales}
        elif own["coded"] == "mxfp4" and re.search(r"experts\.(gate_up|down)_proj$", name):
            blocks, scales, values = mxfp4(tensor.transpose(1, 2).contiguous())
            tensors[name] = values.transpose(1, 2).contiguous()
            coded |= {name: None, name + "_blocks": blocks, name + "_scales": scales}
        elif own["coded"] == "fp8_channels" and re.search(r"proj\.weight$", name):
            codes, scales, tensors[name] = fp8_channels(tensor)
            coded |= {name: codes, name + "_scale": scales}
        elif own["coded"] in INTEGERS and re.search(r"(proj|\.w[123])\.weight$", name):
            codes, tensors[name] = integer_tensors(name, own["coded"], tensor, own["int4_group"] or tensor.shape[1])
            coded |= codes
        elif own["coded"].startswith("nvfp4") and re.search(r"(proj|\.w[123])\.weight$", name):
            codes, tensors[name] = nvfp4_tensors(name, own["coded"], tensor)
            coded |= codes
        elif own["coded"] == "mxfp4_rows" and re.search(r"(proj|\.w[123])\.weight$", name):
            blocks, scales, tensors[name] = mxfp4(tensor)
            coded |= {name: None, name + "_packed": blocks.flatten(1), name + "_scale": scales}
        elif own["coded"] in GGUF_TYPES:
            kinds = [kind for pattern, kind in GGUF_TYPES[own["coded"]] if re.search(pattern, name)]
            if kinds and tensor.dim() > 1:
                codes, tensors[name] = gguf_rows(kinds[0], tensor, rng)
                coded[name] = (codes, kinds[0])
    assert coded
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return coded


# The weights of compressed-tensors' configs: (format, fields).
COMPRESSED = {
    "fp8_channels": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "int4_rows": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "actorder": None}),
    "uint4_rows": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "symmetric": False}),
    "int8_rows": ("pack-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "nvfp4_rows": ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
    "mxfp4_rows": ("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}),
}


def quantization_config(own):
    """Returns the field of config.json."""
    kind, group = own["coded"], own.get("int4_group")
    if kind in COMPRESSED:
        form, fields = COMPRESSED[kind]
        weights = {"symmetric": True, "group_size": group if fields["strategy"] == "group" else None, **fields}
        return {"quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": ["lm_head"],
                "format": form, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                                              "input_activations": None}}}
    if kind in INTEGERS and kind != "awq":
        return {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": not INTEGERS[kind][2],
                "desc_act": kind == "uint4_act", "checkpoint_format": "gptq", "lm_head": False}
    return {
        "fp8": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                "weight_block_size": [own["fp8_block_rows"], 128]},
        "awq": {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True,
                "modules_to_not_convert": ["mlp.gate"]},
        "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.*.mlp.gate"],
                  "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
                  "config_groups": {"group_0": {"targets": ["Linear"],
                                                "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
        "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    }[kind]


def write_coded(folder, own, coded):
    """Rewrites the folder as a checkpoint of these codes."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    if own["coded"] in GGUF_TYPES:
        config = json.loads((folder / "config.json").read_text())
        make_gguf.write_tensors(folder / "model.gguf", config, tensors, coded, own["gguf"])
        for old in [path, *folder.glob("*config.json")]:
            old.unlink()
        return
    tensors |= coded
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None},
                                path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization_config(own)
    (folder / "config.json").write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")
