#!/usr/bin/env python3
"""Writes golden models as GGUF files, with the names and layouts that llama.cpp's converter gives them.

usage: make_gguf.py [--golden tests/golden] [--only VARIANT ...]

Each variant of WHOLE gets GGUF files with its weights in their own dtype: the engine must compute the same bits from them.
The repository keeps their headers, VARIANT/gguf/*.gguf.header, and in the variant's recipe where their weights come from
(gguf_recipe()). Names come from the package gguf (its tensor maps), the layouts below from what the converter does with each
architecture: heads of llama, granitemoe and arctic have the rows that RoPE rotates together as neighbours; experts are
stacked; what a family fuses is taken apart; MLA's kv_b becomes k_b, transposed, and v_b.
"""

import argparse
import itertools
import json
import math
import re
import tempfile
from pathlib import Path

import gguf
import gguf_families
import numpy as np
import safetensors.torch
import torch
import weights
import xxhash

# Variant: options of write_gguf.
WHOLE = {
    "arctic-tiny": {}, "dbrx-tiny": {}, "deepseek2-tiny": {}, "deepseek3-tiny": dict(old_mla=True), "deepseek2-odd": {},
    "dots1-tiny": {}, "ernie45-tiny": {}, "glm4moe-tiny": {}, "gptoss-tiny": {}, "granite-tiny": {}, "hunyuan-tiny": {},
    "mixtral-tiny": dict(split=9),
    "mixtral-bf16": {}, "mixtral-f16": dict(old_experts=True), "minimaxm2-tiny": {}, "minimaxm2-odd": {},
    "olmoe-tiny": {}, "phimoe-tiny": {}, "qwen2moe-tiny": {}, "qwen3moe-tiny": {}, "granite-odd": {},
    "llama4-tiny": {}, "qwen3vl-tiny": {}, "glm4v-tiny": {},
    "deepseek32-tiny": {}, "glm5-odd": {},
    "hyv3-tiny": {}, "exaone-tiny": {}, "mellum-tiny": {}, "graniteswa-tiny": {}, "qwen3next-tiny": {},
    "qwen35moe-tiny": {}, "gemma4-tiny": {}, "lfm2moe-tiny": {}, "granite4h-tiny": {}, "granite4h-odd": {},
    "nemotronh-tiny": {}, "nemotronh-odd": {}, "nemotronh-latent": {}, "kimilinear-tiny": {}, "jamba-tiny": {},
    "jamba-odd": {}, "mistral4-tiny": {},
}
ARCHITECTURES = {
    "MixtralForCausalLM": "LLAMA", "Qwen2MoeForCausalLM": "QWEN2MOE", "Qwen3MoeForCausalLM": "QWEN3MOE",
    "OlmoeForCausalLM": "OLMOE", "PhimoeForCausalLM": "PHIMOE", "GraniteMoeForCausalLM": "GRANITE_MOE",
    "GraniteMoeSharedForCausalLM": "GRANITE_MOE", "Glm4MoeForCausalLM": "GLM4_MOE", "Dots1ForCausalLM": "DOTS1",
    "DbrxForCausalLM": "DBRX", "GptOssForCausalLM": "GPT_OSS", "ArcticForCausalLM": "ARCTIC",
    "Ernie4_5_MoeForCausalLM": "ERNIE4_5_MOE", "DeepseekV2ForCausalLM": "DEEPSEEK2", "DeepseekV3ForCausalLM": "DEEPSEEK2",
    "MiniMaxM2ForCausalLM": "MINIMAXM2", "HunYuanMoEV1ForCausalLM": "HUNYUAN_MOE", "HYV3ForCausalLM": "HY_V3",
    "ExaoneMoeForCausalLM": "EXAONE_MOE", "MellumForCausalLM": "MELLUM", "GraniteMoeSWAForCausalLM": "GRANITE_SWA",
    "Qwen3NextForCausalLM": "QWEN3NEXT", "Qwen3_5MoeForCausalLM": "QWEN35MOE",
    "Llama4ForCausalLM": "LLAMA4", "Qwen3VLMoeForConditionalGeneration": "QWEN3VLMOE",
    "Glm4vMoeForConditionalGeneration": "GLM4_MOE",
    "DeepseekV32ForCausalLM": "DEEPSEEK32", "GlmMoeDsaForCausalLM": "GLM_DSA",
    "Gemma4ForCausalLM": "GEMMA4", "Lfm2MoeForCausalLM": "LFM2MOE", "GraniteMoeHybridForCausalLM": "GRANITE_HYBRID",
    "NemotronHForCausalLM": "NEMOTRON_H_MOE", "KimiLinearForCausalLM": "KIMI_LINEAR", "JambaForCausalLM": "JAMBA",
    "Mistral4ForCausalLM": "MISTRAL4",
}
# Architectures that the package does not have yet: the name in files, and an architecture with the same tensors.
NEWER = {"HY_V3": ("hy_v3", "DOTS1"), "MELLUM": ("mellum", "QWEN3MOE"), "GRANITE_SWA": ("granite_swa", "GRANITE_MOE"),
         "DEEPSEEK32": ("deepseek32", "GLM_DSA")}
BLOCK_MAPPINGS = dict(gguf.TensorNameMap.block_mappings_cfg)
HYBRIDS = ("QWEN3NEXT", "QWEN35MOE")
MLA = ("DEEPSEEK2", "DEEPSEEK32", "GLM_DSA", "MISTRAL4", "KIMI_LINEAR")
PAIRED = ("LLAMA", "GRANITE_MOE", "GRANITE_SWA", "GRANITE_HYBRID", "NEMOTRON_H_MOE", "ARCTIC")


def name_in_files(arch):
    return NEWER[arch][0] if arch in NEWER else gguf.MODEL_ARCH_NAMES[getattr(gguf.MODEL_ARCH, arch)]


def first(config, *names, default=None):
    """Returns the first of the fields that the config has; names with dots are paths."""
    for name in names:
        value = config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return value
    return default


def count_layers(config):
    return first(config, "num_hidden_layers", "n_layers") or len(config["layers_block_type"])


def pair(rows, num_heads):
    """Reorders [heads, two halves, ...] to [heads, ..., pairs]."""
    return rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def stack(tensors, pattern, num_experts):
    return torch.stack([tensors.pop(pattern.format(expert)) for expert in range(num_experts)])


def take_experts(tensors, config, arch, layer, old_experts):
    """Removes the experts of a layer from `tensors`; returns {name in GGUF: tensor}."""
    taken = {}
    num = first(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts",
                "ffn_config.moe_num_experts")
    root = f"model.layers.{layer}."
    if arch == "DBRX":
        root = f"transformer.blocks.{layer}.ffn.experts.mlp."
        w1, v1, w2 = (tensors.pop(root + name).view(num, config["ffn_config"]["ffn_hidden_size"], config["d_model"])
                      for name in ("w1", "v1", "w2"))
        return {"ffn_gate_exps.weight": w1, "ffn_up_exps.weight": v1, "ffn_down_exps.weight": w2.transpose(1, 2)}
    if arch == "LLAMA4":
        both = tensors.pop(root + "feed_forward.experts.gate_up_proj").transpose(1, 2)
        half = both.shape[1] // 2
        return {"ffn_gate_exps.weight": both[:, :half], "ffn_up_exps.weight": both[:, half:],
                "ffn_down_exps.weight": tensors.pop(root + "feed_forward.experts.down_proj").transpose(1, 2)}
    if arch == "QWEN3VLMOE":
        both = tensors.pop(root + "mlp.experts.gate_up_proj")
        half = both.shape[1] // 2
        return {"ffn_gate_exps.weight": both[:, :half], "ffn_up_exps.weight": both[:, half:],
                "ffn_down_exps.weight": tensors.pop(root + "mlp.experts.down_proj")}
    if arch == "GPT_OSS":
        gate_up = tensors.pop(root + "mlp.experts.gate_up_proj").transpose(1, 2)
        bias = tensors.pop(root + "mlp.experts.gate_up_proj_bias")
        return {"ffn_gate_exps.weight": gate_up[:, ::2], "ffn_up_exps.weight": gate_up[:, 1::2],
                "ffn_down_exps.weight": tensors.pop(root + "mlp.experts.down_proj").transpose(1, 2),
                "ffn_gate_exps.bias": bias[:, ::2], "ffn_up_exps.bias": bias[:, 1::2],
                "ffn_down_exps.bias": tensors.pop(root + "mlp.experts.down_proj_bias")}
    if arch == "GRANITE_SWA":
        return {"attn_sinks.weight": tensors.pop(root + "self_attn.sinks"),
                "ffn_gate_up_exps.weight": tensors.pop(root + "block_sparse_moe.experts.gate_up_proj"),
                "ffn_down_exps.weight": tensors.pop(root + "block_sparse_moe.experts.down_proj"),
                "ffn_gate_inp.weight": tensors.pop(root + "block_sparse_moe.router.weight"),
                "ffn_up_shexp.weight": tensors.pop(root + "shared_mlp.input_linear.weight"),
                "ffn_down_shexp.weight": tensors.pop(root + "shared_mlp.output_linear.weight")}
    if arch in ("GRANITE_MOE", "GRANITE_HYBRID"):
        both = tensors.pop(root + "block_sparse_moe.input_linear.weight")
        taken = {"ffn_gate_exps.weight": both[:, :both.shape[1] // 2], "ffn_up_exps.weight": both[:, both.shape[1] // 2:],
                 "ffn_down_exps.weight": tensors.pop(root + "block_sparse_moe.output_linear.weight")}
        if root + "shared_mlp.input_linear.weight" in tensors:
            both = tensors.pop(root + "shared_mlp.input_linear.weight")
            taken |= {"ffn_gate_shexp.weight": both[:both.shape[0] // 2],
                      "ffn_up_shexp.weight": both[both.shape[0] // 2:],
                      "ffn_down_shexp.weight": tensors.pop(root + "shared_mlp.output_linear.weight")}
        return taken
    for name, w, proj in (("gate", "w1", "gate_proj"), ("up", "w3", "up_proj"), ("down", "w2", "down_proj")):
        for pattern in (f"{root}block_sparse_moe.experts.{{}}.{w}.weight", f"{root}mlp.experts.{{}}.{proj}.weight",
                        f"{root}feed_forward.experts.{{}}.{w}.weight", f"{root}feed_forward.experts.{{}}.{proj}.weight",
                        f"backbone.layers.{layer}.mixer.experts.{{}}.{proj}.weight"):
            if pattern.format(0) in tensors:
                stacked = stack(tensors, pattern, num)
                if old_experts:
                    taken |= {f"ffn_{name}.{expert}.weight": stacked[expert] for expert in range(num)}
                else:
                    taken[f"ffn_{name}_exps.weight"] = stacked
    return taken


def take_heads(tensors, config, layer, old_mla):
    name = f"model.layers.{layer}.self_attn.kv_b_proj.weight"
    if name not in tensors:
        return {}
    kv_b = tensors.pop(name)
    if old_mla:
        return {"attn_kv_b.weight": kv_b}
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    heads = kv_b.view(config["num_attention_heads"], nope + value, -1)
    return {"attn_k_b.weight": heads[:, :nope].transpose(1, 2), "attn_v_b.weight": heads[:, nope:]}


def tile_value_heads(rows, config):
    """Reorders axis 0, the value heads, from heads of one key head side by side to one of each key head after another."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return rows.reshape(keys, heads // keys, -1, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


def take_delta_net(tensors, config, arch, layer):
    """Removes the tensors of a layer with gated DeltaNet; Qwen3.5's value heads are in the order of ggml's broadcasts."""
    root = f"model.layers.{layer}.linear_attn."
    if root + "A_log" not in tensors:
        return {}
    own = {name[len(root):]: tensors.pop(name) for name in list(tensors) if name.startswith(root)}
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    conv = own["conv1d.weight"].squeeze(1)
    taken = {"ssm_norm.weight": own["norm.weight"]}
    if arch == "QWEN3NEXT":
        heads, dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
        qkvz = own["in_proj_qkvz.weight"]
        groups = qkvz.reshape(heads, -1, qkvz.shape[-1])
        values = (groups.shape[1] - 2 * dim) // 2
        q, k, v, z = (part.reshape(-1, qkvz.shape[-1]) for part in groups.split([dim, dim, values, values], dim=1))
        return taken | {"attn_qkv.weight": torch.cat([q, k, v]), "attn_gate.weight": z, "ssm_conv1d.weight": conv,
                        "ssm_ba.weight": own["in_proj_ba.weight"], "ssm_dt.bias": own["dt_bias"], "ssm_a": own["A_log"],
                        "ssm_out.weight": own["out_proj.weight"]}
    qkv = own["in_proj_qkv.weight"]
    return taken | {
        "attn_qkv.weight": torch.cat([qkv[:2 * keys], tile_value_heads(qkv[2 * keys:], config)]),
        "ssm_conv1d.weight": torch.cat([conv[:2 * keys], tile_value_heads(conv[2 * keys:], config)]),
        "ssm_out.weight": tile_value_heads(own["out_proj.weight"].T, config).T,
        **{name: tile_value_heads(own[stored], config) for name, stored in (
            ("attn_gate.weight", "in_proj_z.weight"), ("ssm_beta.weight", "in_proj_b.weight"),
            ("ssm_alpha.weight", "in_proj_a.weight"), ("ssm_dt.bias", "dt_bias"), ("ssm_a", "A_log"))}}


def change_of(name, arch):
    """Returns how the converter changes a tensor's values, as recipes name it."""
    if name.endswith("ssm_a") and arch in HYBRIDS + gguf_families.RATES:
        return "minus_exp"
    return "plus_one" if arch in HYBRIDS and name.endswith("norm.weight") and "ssm_norm" not in name else None


def changed(tensor, change):
    if change == "minus_exp":
        return (-torch.exp(tensor.double())).float()
    return tensor.float() + 1 if change == "plus_one" else tensor


def convert(tensors, config, arch, options):
    """Returns {name in GGUF: tensor} of a Hugging Face state dict."""
    num_layers = count_layers(config)
    # The package's table is global: names of an architecture would stay there for all later ones.
    gguf.TensorNameMap.block_mappings_cfg = dict(BLOCK_MAPPINGS)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, NEWER[arch][1] if arch in NEWER else arch), num_layers)
    num_heads = first(config, "num_attention_heads", "n_heads")
    num_kv_heads = first(config, "num_key_value_heads", "attn_config.kv_n_heads", default=num_heads)
    # The towers have a file of their own.
    tensors = {name.replace("model.language_model.", "model."): tensor for name, tensor in tensors.items()
               if not name.startswith("model.visual.")}
    result = {}
    for layer in range(num_layers):
        own = take_experts(tensors, config, arch, layer, options.get("old_experts", False)) \
            if any(re.search(rf"\.{layer}\..*expert|\.{layer}\..*input_linear", name) for name in tensors) else {}
        own |= take_heads(tensors, config, layer, options.get("old_mla", False))
        own |= take_delta_net(tensors, config, arch, layer)
        own |= gguf_families.take_layer(tensors, config, arch, layer)
        result |= {f"blk.{layer}.{name}": tensor for name, tensor in own.items()}
    for name, tensor in tensors.items():
        if arch in PAIRED and re.search(r"(self_attn|mixer)\.[qk]_proj\.(weight|bias)$", name):
            tensor = pair(tensor, num_heads if "q_proj" in name else num_kv_heads)
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        name += ".weight" if name.endswith("sinks") else ""
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, name
        result[mapped] = tensor.reshape(-1) if "ffn_gate_inp_shexp" in mapped else tensor
    return result


def add_parameters(writer, config, arch, options):
    """Adds the keys that the converter writes for these models."""
    rope = first(config, "rope_parameters", "rope_scaling", default={}) or {}
    hidden, heads = first(config, "hidden_size", "d_model"), first(config, "num_attention_heads", "n_heads")
    writer.add_block_count(count_layers(config))
    writer.add_context_length(first(config, "max_position_embeddings", "max_seq_len", "model_max_length"))
    writer.add_embedding_length(hidden)
    if (ffn_dim := first(config, "intermediate_size_mlp", "intermediate_size",
                         "ffn_config.ffn_hidden_size")) is not None and arch != "NEMOTRON_H_MOE":
        writer.add_feed_forward_length(ffn_dim)
    writer.add_head_count(heads)
    if arch not in gguf_families.WITHOUT_ROPE:
        writer.add_rope_freq_base(first(config, "rope_theta", "rope_parameters.rope_theta", "attn_config.rope_theta",
                                        "rope_parameters.full_attention.rope_theta", default=1e4))
    eps = first(config, "rms_norm_eps", "norm_eps", default=1e-6 if arch in MLA[:2] else 1e-5)
    if arch == "DBRX":
        writer.add_layer_norm_eps(1e-5)
    elif arch != "NEMOTRON_H_MOE":
        writer.add_layer_norm_rms_eps(eps)
    writer.add_expert_count(first(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts",
                                  "ffn_config.moe_num_experts"))
    writer.add_expert_used_count(first(config, "num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token",
                                       "top_k_experts", "ffn_config.moe_top_k"))
    head_dim = first(config, "head_dim", default=hidden // heads)
    if arch in MLA:
        rope_dim, nope, rank = config["qk_rope_head_dim"], config["qk_nope_head_dim"], config["kv_lora_rank"]
        if options.get("old_mla"):
            if arch != "KIMI_LINEAR":
                writer.add_head_count_kv(heads)
            writer.add_key_length(nope + rope_dim)
            writer.add_value_length(config["v_head_dim"])
        else:
            if arch != "KIMI_LINEAR":
                writer.add_head_count_kv(1)
            writer.add_key_length(rank + rope_dim)
            writer.add_value_length(rank)
            writer.add_key_length_mla(nope + rope_dim)
            writer.add_value_length_mla(config["v_head_dim"])
        writer.add_kv_lora_rank(rank)
        if config.get("q_lora_rank"):
            writer.add_q_lora_rank(config["q_lora_rank"])
        writer.add_rope_dimension_count(rope_dim)
        if (scale := rope.get("mscale_all_dim")) is not None:
            writer.add_rope_scaling_yarn_log_mul(0.1 * scale)
        is_sigmoid = config["architectures"][0] not in ("DeepseekV2ForCausalLM", "Mistral4ForCausalLM")
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if is_sigmoid else
                                      gguf.ExpertGatingFuncType.SOFTMAX)
        if "index_topk" in config:
            writer.add_indexer_head_count(config["index_n_heads"])
            writer.add_indexer_key_length(config["index_head_dim"])
            writer.add_indexer_top_k(config["index_topk"])
        if "indexer_types" in config:
            writer.add_array("glm-dsa.attention.indexer.types", [kind == "full" for kind in config["indexer_types"]])
    elif arch not in gguf_families.LAYER_NAMES:
        writer.add_head_count_kv(first(config, "num_key_value_heads", "attn_config.kv_n_heads", default=heads))
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        partial = first(config, "partial_rotary_factor", "rope_parameters.partial_rotary_factor",
                        default=0.5 if arch == "GLM4_MOE" else 1.0)
        writer.add_rope_dimension_count(int(head_dim * partial))
    gguf_families.add_parameters(writer, config, arch)
    if arch == "LLAMA4":
        writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if arch in HYBRIDS:
        heads_of_values = config["linear_num_value_heads"]
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(heads_of_values)
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * heads_of_values)
        writer.add_array(f"{name_in_files(arch)}.attention.recurrent_layers",
                         [kind == "linear_attention" for kind in config["layer_types"]])
        writer.add_uint32(f"{name_in_files(arch)}.full_attention_interval", 4)
    if arch in ("GLM4_MOE", "DOTS1", "MINIMAXM2", "HY_V3", "EXAONE_MOE"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    for field, add in (("moe_intermediate_size", writer.add_expert_feed_forward_length),
                       ("shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
                       ("shared_intermediate_size", writer.add_expert_shared_feed_forward_length),
                       ("n_shared_experts", writer.add_expert_shared_count),
                       ("moe_num_shared_experts", writer.add_expert_shared_count),
                       ("moe_layer_start_index", writer.add_leading_dense_block_count),
                       ("moe_layer_interval", writer.add_interleave_moe_layer_step),
                       ("first_k_dense_replace", writer.add_leading_dense_block_count),
                       ("routed_scaling_factor", writer.add_expert_weights_scale),
                       ("router_scaling_factor", writer.add_expert_weights_scale),
                       ("n_group", writer.add_expert_group_count), ("topk_group", writer.add_expert_group_used_count),
                       ("sliding_window", writer.add_sliding_window), ("clip_qkv", writer.add_clamp_kqv),
                       ("attn_config.clip_qkv", writer.add_clamp_kqv),
                       ("attention_multiplier", writer.add_attention_scale),
                       ("embedding_multiplier", writer.add_embedding_scale),
                       ("residual_multiplier", writer.add_residual_scale), ("logits_scaling", writer.add_logit_scale)):
        if (value := first(config, field)) is not None:
            add(value)
    if arch == "HY_V3" or config.get("norm_topk_prob") and arch not in ("MELLUM", "LFM2MOE", *HYBRIDS):
        writer.add_expert_weights_norm(True)
    if "num_shared_experts" in config and arch != "KIMI_LINEAR":
        writer.add_expert_shared_feed_forward_length(config["num_shared_experts"] * config["moe_intermediate_size"])
    if arch == "EXAONE_MOE":
        writer.add_expert_shared_count(config["num_shared_experts"])
    if arch in ("EXAONE_MOE", "MELLUM", "GRANITE_SWA"):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if arch == "GRANITE_SWA":
        writer.add_array("granite_swa.attention.rope_pattern", [theta != 0 for theta in config["layer_rope_theta"]])
    if "sliding_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if rope.get("rope_type", "default") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope.get("rope_type", "default") == "longrope":
        original = first(config, "original_max_position_embeddings", "rope_scaling.original_max_position_embeddings",
                         "rope_parameters.original_max_position_embeddings")
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(
            first(rope, "short_mscale", default=math.sqrt(1 + math.log(scale) / math.log(original))))
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], dtype=np.float32))


def write_tensors(path, config, tensors, coded, options):
    """Writes a state dict; coded: {name: (rows of blocks [.., bytes] u8, GGUF type)}, the weights that are no floats."""
    arch = ARCHITECTURES[config["architectures"][0]]
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    # Nothing below moves data within a row, so blocks are handled like floats, and so are the numbers of their types.
    tensors |= {name: codes for name, (codes, _) in coded.items()}
    marks = {name: torch.full(tensor.shape, int(gguf.GGMLQuantizationType[coded[name][1]]) if name in coded else -1)
             for name, tensor in tensors.items()}
    marks = {name: int(mark.flatten()[0]) for name, mark in convert(marks, config, arch, options).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, name_in_files(arch), split_max_tensors=options.get("split", 0))
    writer.add_type(gguf.GGUFType.MODEL)
    add_parameters(writer, config, arch, options)
    for name, tensor in convert(tensors, config, arch, options).items():
        tensor = changed(tensor, change_of(name, arch))
        if marks[name] >= 0:
            writer.add_tensor(name, tensor.contiguous().numpy(), raw_dtype=gguf.GGMLQuantizationType(marks[name]))
        elif tensor.dtype == torch.bfloat16:
            # Norms and biases are f32 in every file.
            if tensor.dim() == 1 or name.endswith("_norm.weight"):
                writer.add_tensor(name, tensor.float().numpy())
            else:
                writer.add_tensor(name, tensor.contiguous().view(torch.uint16).numpy().view(np.uint8),
                                  raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, (tensor.float() if tensor.dim() == 1 else tensor).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_folder(folder):
    """(state dict, config) of a Hugging Face folder."""
    tensors = {}
    for shard in sorted(folder.glob("model*.safetensors")):
        tensors |= safetensors.torch.load_file(shard)
    config = json.loads((folder / "config.json").read_text())
    # lm_head belongs to the whole model.
    whole = {key: config[key] for key in ("architectures", "tie_word_embeddings") if key in config}
    return tensors, config | config.get("text_config", {}) | whole


def take(indices):
    """Loops that count up these indices: [first, [count, step], ...], the outermost loop first; None if none do."""
    first, loops = int(indices[0]), []
    while len(indices) > 1:
        step = int(indices[1] - indices[0])
        breaks = np.flatnonzero(np.diff(indices) != step)
        count = int(breaks[0]) + 1 if len(breaks) else len(indices)
        runs = indices[:len(indices) // count * count].reshape(-1, count)
        if len(indices) % count or (runs != runs[:, :1] + np.arange(count) * step).any():
            return None
        loops.insert(0, [count, step])
        indices = runs[:, 0]
    return [first, *loops]


def takes(indices):
    """One or more loops that count up these indices one after another."""
    whole = take(indices)
    return [whole] if whole else [take(run) for run in np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)]


def gguf_recipe(tensors, config, files, options):
    """The recipe of GGUF files, {file: its tensors in their order}:

        {"of": PATTERN}    the elements of these tensors of the folder, one tensor after the other
        "take"             of each tensor only the elements that these loops count up, in their order
        "takes"            several such loops, one after the other
        "change"           each value x is replaced: "plus_one" (x + 1), "minus_exp" (-exp(x), computed in f64)
        "as"               the type, where it is not that of the folder

    or {"values": [[count, value], ...]}, numbers in f32 that the folder does not have.
    """
    bases = np.cumsum([0] + [tensor.numel() for tensor in tensors.values()])
    names = list(tensors)
    indices = {name: torch.arange(base, base + tensor.numel()).reshape(tensor.shape)
               for (name, tensor), base in zip(tensors.items(), bases[:-1], strict=True)}
    if config.get("tie_word_embeddings"):
        indices.pop("lm_head.weight", None)
    converted = convert(indices, config, ARCHITECTURES[config["architectures"][0]], options)
    types = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    recipe = {}
    for path in files:
        entries = recipe[path] = []
        for tensor in sorted(gguf.GGUFReader(path).tensors, key=lambda tensor: tensor.data_offset):
            if tensor.name not in converted:
                runs = [list(run) for _, run in itertools.groupby(tensor.data.tolist())]
                entries.append({"values": [[len(run), run[0]] for run in runs]})
                continue
            elements = converted[tensor.name].flatten().numpy()
            places = np.searchsorted(bases, elements, side="right") - 1
            sources = [int(part[0]) for part in np.split(places, np.flatnonzero(np.diff(places)) + 1)]
            taken = [takes(elements[places == source] - bases[source]) for source in sources]
            of = list(weights.patterns([names[source] for source in sources]))
            assert len(of) == 1 and list(weights.expand(of[0])) == [names[source] for source in sources]
            assert all(part == taken[0] for part in taken)
            entry = {"of": of[0]}
            if len(taken[0]) > 1:
                entry["takes"] = taken[0]
            elif taken[0][0] not in ([0], [0, [tensors[names[sources[0]]].numel(), 1]]):
                entry["take"] = taken[0][0]
            if (change := change_of(tensor.name, ARCHITECTURES[config["architectures"][0]])) is not None:
                entry["change"] = change
            if tensor.tensor_type.name != types[tensors[names[sources[0]]].dtype]:
                entry["as"] = tensor.tensor_type.name
            entries.append(entry)
    return recipe


def add_gguf(folder, options):
    """Writes the model of a golden folder as GGUF files, and puts their headers and recipe into the folder."""
    headers = folder / "gguf"
    headers.mkdir(exist_ok=True)
    for old in headers.iterdir():
        old.unlink()
    recipe = weights.read_recipe(folder)
    files = {name: file for name, file in recipe["files"].items() if "header" not in file}
    with tempfile.TemporaryDirectory() as temporary:
        model = Path(temporary)
        weights.make_folder(folder, model)
        tensors, config = read_folder(model)
        write_tensors(model / "gguf" / f"{folder.name}.gguf", config, dict(tensors), {}, options)
        paths = sorted((model / "gguf").iterdir())
        for path, entries in gguf_recipe(tensors, config, paths, options).items():
            data = path.read_bytes()
            header = headers / f"{path.name}.header"
            header.write_bytes(data[:gguf.GGUFReader(path).data_offset])
            files[f"gguf/{path.name}"] = {"xxh3": xxhash.xxh3_64_hexdigest(data), "header": f"gguf/{header.name}",
                                          "tensors": entries}
        weights.write_recipe(folder, recipe["seed"], files)
        return sum(path.stat().st_size for path in paths)


def main():
    parser = argparse.ArgumentParser(description="Write golden models as GGUF files.")
    parser.add_argument("--golden", type=Path, default=Path("tests/golden"), help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=WHOLE, metavar="VARIANT", default=list(WHOLE))
    args = parser.parse_args()
    for name in args.only:
        print(f"{name:16} {add_gguf(args.golden / name, WHOLE[name]):8} bytes", flush=True)


if __name__ == "__main__":
    main()
