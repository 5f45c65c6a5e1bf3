"""Write a checkpoint as a Hugging Face Mixtral folder (bf16 safetensors, classic tensor names)."""
import argparse
import json
import shutil
from pathlib import Path

import torch
from model import Config, Mixtral
from safetensors.torch import save_file

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n<|assistant|>\\n' }}{% endif %}")


def tensors(model):
    """Model -> {classic HF Mixtral name: bf16 tensor}. Linear weights are (out, in)."""
    out = {}
    for name, p in model.state_dict().items():
        head, _, last = name.rpartition(".")
        if last in ("w1", "w2", "w3"):
            for e, matrix in enumerate(p):
                out[f"model.{head}.experts.{e}.{last}.weight"] = matrix
        else:
            out["model." + name] = p
    return {k: v.to(torch.bfloat16).contiguous().clone() for k, v in out.items()}


def hf_config(c):
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": c.vocab,
        "hidden_size": c.dim,
        "intermediate_size": c.expert_dim,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "num_local_experts": c.experts,
        "num_experts_per_tok": c.top_k,
        "hidden_act": "silu",
        "max_position_embeddings": c.max_positions,
        "rms_norm_eps": c.eps,
        "rope_theta": c.rope_theta,
        "sliding_window": None,
        "attention_dropout": 0.0,
        "router_aux_loss_coef": 0.01,
        "router_jitter_noise": 0.0,
        "output_router_logits": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 5,
        "torch_dtype": "bfloat16",
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json from prepare.py")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    state = torch.load(args.checkpoint, weights_only=True)
    config = Config(**state["config"])
    model = Mixtral(config)
    model.load_state_dict(state["model"])

    # Written beside the target and moved file by file: readers never see half a file.
    work = args.out.with_name(args.out.name + ".tmp")
    work.mkdir(parents=True, exist_ok=True)
    save_file(tensors(model), work / "model.safetensors", metadata={"format": "pt"})
    write_json(work / "config.json", hf_config(config))
    write_json(work / "generation_config.json", {
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 5,
        "do_sample": True, "temperature": 0.7, "top_p": 0.9, "max_new_tokens": 300})
    write_json(work / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "additional_special_tokens": ["<|user|>", "<|assistant|>", "<|system|>"],
        "add_bos_token": True, "add_prefix_space": False, "clean_up_tokenization_spaces": False,
        "model_max_length": config.max_positions, "chat_template": CHAT_TEMPLATE})
    shutil.copyfile(args.tokenizer, work / "tokenizer.json")
    args.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(work.iterdir()):
        path.chmod(0o644)
        path.replace(args.out / path.name)
    work.rmdir()
    print(f"step {state['step']}: {sum(p.numel() for p in model.parameters())} parameters, "
          f"{sum(p.stat().st_size for p in args.out.iterdir())} bytes in {args.out.name}")


if __name__ == "__main__":
    main()
