"""Golden models whose weights are stored as codes: FP8, MXFP4, codes of four bits, and the quantised types of GGUF.

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


def int4(weight, group):
    """Returns (codes 0 to 15 [outputs, inputs], scales [outputs, groups] f16, values); weight = (code - 8) * scale."""
    parts = weight.split(group, dim=1)
    scales = torch.stack([part.abs().amax(1) / 7.5 for part in parts], dim=1).half()
    of_inputs = scales.float().repeat_interleave(group, dim=1)[:, :weight.shape[1]]
    codes = (weight / of_inputs + 8).round().clamp(0, 15).to(torch.int32)
    return codes, scales, (codes - 8).float() * of_inputs


def pack_int4(codes):
    """Packs 8 neighbouring codes of a row into an i32, the first in its lowest bits: [rows, columns / 8]."""
    eights = codes.reshape(codes.shape[0], -1, 8).to(torch.int64)
    packed = (eights << (4 * torch.arange(8))).sum(-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def int4_tensors(name, kind, weight, group):
    """Returns ({name: tensor of the checkpoint}, values); the weight itself is None there."""
    codes, scales, values = int4(weight, group)
    if kind == "int4_rows":
        return {name: None, name + "_packed": pack_int4(codes), name + "_scale": scales,
                name + "_shape": torch.tensor(weight.shape)}, values
    base = name.removesuffix(".weight")
    groups = scales.shape[1]
    zeros = torch.full((groups, -(-weight.shape[0] // 8)), 0x77777777, dtype=torch.int32)    # 8, less one
    return {name: None, base + ".qweight": pack_int4(codes).T.contiguous(), base + ".qzeros": zeros,
            base + ".scales": scales.T.contiguous(), base + ".g_idx": torch.arange(weight.shape[1]).int() // group}, values


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
        elif own["coded"].startswith("int4") and re.search(r"(proj|\.w[123])\.weight$", name):
            codes, tensors[name] = int4_tensors(name, own["coded"], tensor, own["int4_group"])
            coded |= codes
        elif own["coded"] in GGUF_TYPES:
            kinds = [kind for pattern, kind in GGUF_TYPES[own["coded"]] if re.search(pattern, name)]
            if kinds and tensor.dim() > 1:
                codes, tensors[name] = gguf_rows(kinds[0], tensor, rng)
                coded[name] = (codes, kinds[0])
    assert coded
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return coded


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
    if own["coded"] == "fp8":
        config["quantization_config"] = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                         "weight_block_size": [own["fp8_block_rows"], 128]}
    elif own["coded"] == "int4_columns":
        config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": own["int4_group"], "sym": True,
                                         "desc_act": False, "checkpoint_format": "gptq", "lm_head": False}
    elif own["coded"] in ("int4_rows", "fp8_channels"):
        weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": own.get("int4_group"),
                   "actorder": None}
        if own["coded"] == "fp8_channels":
            weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "group_size": None}
        config["quantization_config"] = {
            "quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": ["lm_head"],
            "format": "pack-quantized" if own["coded"] == "int4_rows" else "float-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}
    else:
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")
