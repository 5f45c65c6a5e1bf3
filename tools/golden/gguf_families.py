"""How llama.cpp's converter writes families whose layers differ from those of make_gguf.py's other ones: their tensors, and
their keys. Names that are not here come from the package gguf."""

import gguf
import torch

# {stored name below the layer: name in GGUF}, by architecture.
LAYER_NAMES = {
    "GEMMA4": {
        "layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
    },
    "LFM2MOE": {"feed_forward.expert_bias": "exp_probs_b.bias", "conv.conv.weight": "shortconv.conv.weight"},
    "GRANITE_HYBRID": {
        "mamba.A_log": "ssm_a", "mamba.D": "ssm_d", "mamba.dt_bias": "ssm_dt.bias", "mamba.norm.weight": "ssm_norm.weight",
        "mamba.conv1d.weight": "ssm_conv1d.weight",
    },
    "NEMOTRON_H_MOE": {
        "mixer.A_log": "ssm_a", "mixer.D": "ssm_d", "mixer.dt_bias": "ssm_dt.bias", "mixer.norm.weight": "ssm_norm.weight",
        "mixer.conv1d.weight": "ssm_conv1d.weight",
    },
    "KIMI_LINEAR": {
        "self_attn.A_log": "ssm_a", "self_attn.dt_bias": "ssm_dt.bias", "self_attn.q_conv1d.weight": "ssm_conv1d_q.weight",
        "self_attn.k_conv1d.weight": "ssm_conv1d_k.weight", "self_attn.v_conv1d.weight": "ssm_conv1d_v.weight",
        "block_sparse_moe.gate_proj.weight": "ffn_gate.weight", "block_sparse_moe.up_proj.weight": "ffn_up.weight",
        "block_sparse_moe.down_proj.weight": "ffn_down.weight",
    },
    "JAMBA": {"mamba.A_log": "ssm_a", "mamba.D": "ssm_d", "mamba.conv1d.weight": "ssm_conv1d.weight"},
    "MISTRAL4": {"mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight", "mlp.experts.down_proj": "ffn_down_exps.weight"},
}
RATES = ("GRANITE_HYBRID", "NEMOTRON_H_MOE", "KIMI_LINEAR", "JAMBA")   # ssm_a is -exp(A_log)
# Nothing rotates.
WITHOUT_ROPE = ("NEMOTRON_H_MOE", "KIMI_LINEAR", "JAMBA")


def shaped(tensor, name, config, arch):
    """Gives a tensor the dims that it has in GGUF."""
    if name.startswith("ssm_conv1d_"):
        return tensor.reshape(1, tensor.shape[0], 1, -1)
    if "conv" in name:
        return tensor.squeeze(1)
    if arch in ("GRANITE_HYBRID", "NEMOTRON_H_MOE"):
        if name in ("ssm_a", "ssm_d"):
            return tensor.reshape(-1, 1)
        if name == "ssm_norm.weight":
            return tensor.reshape(config.get("mamba_n_groups") or config["n_groups"], -1)
    return tensor


def take_layer(tensors, config, arch, layer):
    """Removes the tensors of LAYER_NAMES from `tensors`; returns {name in GGUF: tensor}."""
    taken = {}
    for root in (f"model.layers.{layer}.", f"backbone.layers.{layer}."):
        for stored, name in LAYER_NAMES.get(arch, {}).items():
            if root + stored in tensors:
                taken[name] = shaped(tensors.pop(root + stored), name, config, arch)
    return taken


def layer_kinds(config):
    """Returns the kind of each layer: "recurrent", "attention", or that of an FFN."""
    if "attn_layer_period" in config:
        period, offset = config["attn_layer_period"], config["attn_layer_offset"]
        return ["attention" if layer % period == offset else "recurrent" for layer in range(config["num_hidden_layers"])]
    kinds = {"conv": "recurrent", "linear_attention": "recurrent", "full_attention": "attention"}
    return [kinds.get(kind, kind) for kind in config.get("layer_types") or config["layers_block_type"]]


def per_layer(number, kind, config):
    """A list with the number for each layer of the kind, and 0 for the others."""
    return [number if own == kind else 0 for own in layer_kinds(config)]


def add_mamba(writer, config):
    heads = config.get("mamba_n_heads") or config.get("mamba_num_heads")
    writer.add_ssm_conv_kernel(config.get("mamba_d_conv") or config["conv_kernel"])
    writer.add_ssm_state_size(config.get("mamba_d_state") or config["ssm_state_size"])
    writer.add_ssm_time_step_rank(heads or config["mamba_dt_rank"])
    if heads:
        writer.add_ssm_group_count(config.get("mamba_n_groups") or config["n_groups"])
        writer.add_ssm_inner_size(heads * (config.get("mamba_d_head") or config["mamba_head_dim"]))
    else:
        writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])


def add_gemma4(writer, config):
    """Keys of Gemma 4, and the factors of its RoPE: those of pairs that do not rotate are 1e30. Returns these factors."""
    kinds = config["layer_types"]
    full = next(iter(config["per_layer_config"].values()))
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    writer.add_key_length(full["head_dim"])
    writer.add_value_length(full["head_dim"])
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_head_count_kv([config["num_key_value_heads"] if kind == "sliding_attention" else full["num_key_value_heads"]
                              for kind in kinds])
    writer.add_rope_dimension_count(full["head_dim"])
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    pairs = full["head_dim"] // 2
    rotating = int(pairs * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    factors = torch.full((pairs,), 1e30)
    factors[:rotating] = 1
    writer.add_tensor("rope_freqs.weight", factors.numpy())


def add_parameters(writer, config, arch):
    """Adds the keys of these families that other families do not have."""
    if arch == "GEMMA4":
        return add_gemma4(writer, config)
    if arch == "MISTRAL4":
        writer.add_attn_temperature_scale(config["rope_parameters"]["llama_4_scaling_beta"])
        return None
    if arch == "KIMI_LINEAR":
        writer.add_head_count_kv(per_layer(1, "attention", config))
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_kda_head_dim(config["linear_head_dim"])
        writer.add_expert_shared_count(config["num_shared_experts"])
        writer.add_leading_dense_block_count(config["mlp_layer_types"].index("sparse"))
        return None
    if arch not in LAYER_NAMES:
        return None
    writer.add_head_count_kv(per_layer(config["num_key_value_heads"], "attention", config))
    if arch == "LFM2MOE":
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        return None
    add_mamba(writer, config)
    if arch == "GRANITE_HYBRID":
        writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
    if arch == "NEMOTRON_H_MOE":
        writer.add_feed_forward_length(per_layer(config["moe_intermediate_size"], "moe", config))
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
        if config.get("moe_latent_size"):
            writer.add_moe_latent_size(config["moe_latent_size"])
    return None
