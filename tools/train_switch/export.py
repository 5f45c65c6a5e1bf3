"""Write a checkpoint of train.py as a Hugging Face folder of SwitchTransformersForConditionalGeneration."""
import argparse
import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from model import Config, Switch
from safetensors.torch import save_file

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def tensors(model, dtype=torch.float32):
    """Model -> {name in transformers: tensor}. Linear weights are (out, in); the tied embedding is `shared`."""
    out = {}
    for name, p in model.state_dict().items():
        name = name.replace(".mlp.router.", ".mlp.router.classifier.")
        experts = re.fullmatch(r"(.*\.mlp)\.(wi|wo)", name)
        if experts:
            for e, matrix in enumerate(p):
                out[f"{experts[1]}.experts.expert_{e}.{experts[2]}.weight"] = matrix
        else:
            out[name] = p
    return {name: p.to(dtype).contiguous().clone() for name, p in out.items()}


def from_tensors(config, found):
    """{name in transformers: tensor} -> model in f32."""
    model = Switch(config)
    state = {}
    for name, p in model.state_dict().items():
        if re.fullmatch(r".*\.mlp\.(wi|wo)", name):
            head, _, last = name.rpartition(".")
            state[name] = torch.stack([found[f"{head}.experts.expert_{e}.{last}.weight"] for e in range(len(p))]).float()
        else:
            state[name] = found[name.replace(".mlp.router.", ".mlp.router.classifier.")].float()
    model.load_state_dict(state)
    return model


def hf_config(c, dtype="float32"):
    return {
        "architectures": ["SwitchTransformersForConditionalGeneration"],
        "model_type": "switch_transformers",
        "vocab_size": c.vocab,
        "d_model": c.dim,
        "d_kv": c.head_dim,
        "d_ff": c.ff,
        "num_heads": c.heads,
        "num_layers": c.layers,
        "num_decoder_layers": c.layers,
        "num_sparse_encoder_layers": c.layers // c.sparse_step,
        "num_sparse_decoder_layers": c.layers // c.sparse_step,
        "encoder_sparse_step": c.sparse_step,
        "decoder_sparse_step": c.sparse_step,
        "num_experts": c.experts,
        "expert_capacity": c.capacity,
        "router_bias": False,
        "router_dtype": "float32",
        "router_jitter_noise": 0.01,
        "router_ignore_padding_tokens": False,
        "router_aux_loss_coef": 0.01,
        "router_z_loss_coef": 0.001,
        "add_router_probs": False,
        "dense_act_fn": "relu",
        "dropout_rate": 0.1,
        "relative_attention_num_buckets": c.buckets,
        "relative_attention_max_distance": c.max_distance,
        "layer_norm_epsilon": c.eps,
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "use_cache": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "torch_dtype": dtype,
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_folder(model, tokenizer, out, dtype):
    """Written beside the target and moved file by file: readers never see half a file."""
    work = out.with_name(out.name + ".tmp")
    work.mkdir(parents=True, exist_ok=True)
    save_file(tensors(model, DTYPES[dtype]), work / "model.safetensors", metadata={"format": "pt"})
    write_json(work / "config.json", hf_config(model.c, str(DTYPES[dtype]).removeprefix("torch.")))
    write_json(work / "generation_config.json", {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, work / name)
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(work.iterdir()):
        path.chmod(0o644)
        path.replace(out / path.name)
    work.rmdir()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a .pt file of train.py")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of texts.py")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    state = torch.load(args.checkpoint, weights_only=True, map_location="cpu")
    model = Switch(Config(**state["config"]))
    model.load_state_dict(state["model"])
    write_folder(model, args.tokenizer, args.out, args.dtype)
    print(f"{json.dumps(asdict(model.c))}: {sum(p.numel() for p in model.parameters())} parameters, "
          f"{(args.out / 'model.safetensors').stat().st_size} bytes")


if __name__ == "__main__":
    main()
