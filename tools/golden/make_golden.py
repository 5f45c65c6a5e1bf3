#!/usr/bin/env python3
"""Makes tiny random-weight MoE models and the results Hugging Face transformers computes for them.

Every entry of VARIANTS becomes a folder OUT/<variant>/ with a model in HF layout (config.json,
generation_config.json, model.safetensors or shards with model.safetensors.index.json) and

  expected.json         versions, seed, dtype, prompts (lists of token ids), greedy (NUM_NEW ids for
                        each prompt), smallest margins (see margins())
  expected.safetensors  for each prompt i and each MoE layer L:
      logits.i               f32 [prompt_len, vocab]       weights upcast to f32, f32 arithmetic
      logits_bf16.i          f32 [prompt_len, vocab]       bf16 arithmetic, bf16 variants only
      routing.i.L            f32 [prompt_len, num_topk]    experts by decreasing weight, f32 arithmetic
      routing_weights.i.L    f32 [prompt_len, num_topk]    the weights the expert outputs are scaled by
      routing_bf16.i.L       f32 [prompt_len, num_topk]    as routing, bf16 variants only

All results come from the model as read back from the folder, so the files are what is tested.
Model seeds and prompts are searched until greedy decoding and routing are clear of near-ties.
"""

import argparse
import copy
import json
import re
import shutil
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import save_file

PROMPT_LENGTHS = (1, 7, 33, 70)
NUM_NEW = 64            # greedy tokens after each prompt
MIN_MARGIN = 1e-3       # top-1 minus top-2 logit, as a fraction of the logit range (max - min)
MIN_ROUTER_MARGIN = 1e-3    # router logit of the last chosen minus that of the first rejected expert
MIN_ORDER_MARGIN = 1e-4     # router logit gap between neighbours among the chosen experts (prompts only)
MIN_DISTINCT = 12       # distinct tokens in a greedy continuation
BATCH = 48              # prompt candidates tried at once
BATCHES = 6             # batches before the next model seed is tried

MIXTRAL = dict(family="mixtral", hidden_size=32, intermediate_size=48, num_hidden_layers=2,
               num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
               num_experts_per_tok=2, vocab_size=96, rope_theta=1e6)
QWEN3 = dict(family="qwen3_moe", hidden_size=32, intermediate_size=40, moe_intermediate_size=24,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             num_experts=8, num_experts_per_tok=4, norm_topk_prob=True, vocab_size=96,
             rope_theta=1e6)
OLMOE = dict(family="olmoe", hidden_size=32, intermediate_size=12, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=4, num_experts=16, num_experts_per_tok=8,
             norm_topk_prob=False, vocab_size=96, rope_theta=10000.0, pad_token_id=1)

# Keys below are config.json keys, except: dtype; layout "plain" (files exactly as save_pretrained
# writes them) or "classic" (config keys as in the published checkpoints, the default); shard (the
# max_shard_size of save_pretrained); generation (replaces generation_config.json).
VARIANTS = {
    "mixtral-tiny": dict(MIXTRAL, layout="plain"),
    "mixtral-odd": dict(MIXTRAL, hidden_size=44, intermediate_size=45, num_hidden_layers=3,
                        num_attention_heads=6, num_key_value_heads=3, head_dim=20,
                        num_local_experts=5, vocab_size=257, shard="350KB"),
    "mixtral-sliding": dict(MIXTRAL, sliding_window=16),
    "mixtral-bf16": dict(MIXTRAL, dtype="bfloat16", hidden_size=64, shard="90KB"),
    "mixtral-f16": dict(MIXTRAL, dtype="float16"),
    "qwen3moe-tiny": dict(QWEN3, layout="plain"),
    "qwen3moe-odd": dict(QWEN3, hidden_size=37, intermediate_size=29, moe_intermediate_size=19,
                         num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=3,
                         head_dim=10, num_experts=7, num_experts_per_tok=3, norm_topk_prob=False,
                         decoder_sparse_step=2, mlp_only_layers=[3], attention_bias=True,
                         tie_word_embeddings=True, vocab_size=131),
    "qwen3moe-bf16": dict(QWEN3, dtype="bfloat16", hidden_size=48, head_dim=32,
                          generation=dict(bos_token_id=1, do_sample=True, eos_token_id=[2, 3],
                                          pad_token_id=1, temperature=0.6, top_k=20, top_p=0.95)),
    "olmoe-tiny": dict(OLMOE, layout="plain"),
    "olmoe-odd": dict(OLMOE, hidden_size=60, intermediate_size=13, num_attention_heads=6,
                      num_key_value_heads=2, num_experts=6, num_experts_per_tok=3,
                      norm_topk_prob=True, clip_qkv=0.8, vocab_size=113),
    "olmoe-bf16": dict(OLMOE, dtype="bfloat16", hidden_size=64),
}

FAMILIES = {
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "olmoe": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM),
}

LAYER = r"model\.layers\.\d+\."
COMMON_NAMES = (r"model\.embed_tokens\.weight|model\.norm\.weight|lm_head\.weight|"
                + LAYER + r"(input_layernorm|post_attention_layernorm)\.weight|"
                + LAYER + r"self_attn\.[qkvo]_proj\.(weight|bias)")
CLASSIC_NAMES = {
    "mixtral": COMMON_NAMES + "|" + LAYER + r"block_sparse_moe\.(gate|experts\.\d+\.w[123])\.weight",
    "qwen3_moe": COMMON_NAMES + "|" + LAYER + r"self_attn\.[qk]_norm\.weight|" + LAYER
    + r"mlp\.(gate|(experts\.\d+\.)?(gate|up|down)_proj)\.weight",
    "olmoe": COMMON_NAMES + "|" + LAYER + r"self_attn\.[qk]_norm\.weight|" + LAYER
    + r"mlp\.(gate|experts\.\d+\.(gate|up|down)_proj)\.weight",
}


def split_variant(variant):
    """Returns (family, config keyword arguments, the variant's own options)."""
    config = dict(bos_token_id=1, eos_token_id=2, max_position_embeddings=256, **variant)
    own = {key: config.pop(key, default) for key, default in
           dict(dtype="float32", layout="classic", shard="1GB", generation=None).items()}
    return config.pop("family"), config, own


def randomize(model, seed):
    """Fills every parameter of the model (f32) with random values.

    Norm weights are near 1, biases and the router are large enough to matter, and linear layers have
    a standard deviation of gain / sqrt(fan_in) with a gain that keeps the layers, not the embedding
    of the last token, in charge of the logits.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, param in sorted(model.named_parameters()):
            noise = torch.randn(param.shape, generator=generator)
            if "norm" in name:
                param.copy_(1.0 + 0.2 * noise)
            elif name.endswith(".bias"):
                param.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                param.copy_(0.4 * noise)
            else:
                gain = 2.0 if "mlp.gate.weight" in name else 1.5
                param.copy_(gain / param.shape[-1] ** 0.5 * noise)


def classic_config(config, family):
    """Rewrites a config.json dict of this transformers version with the published checkpoints' keys."""
    config = dict(config)
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["torch_dtype"] = config.pop("dtype")
    if config.get("head_dim", 0) is None:
        del config["head_dim"]
    if family == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
        config["max_window_layers"] = config["num_hidden_layers"]
    if family != "mixtral":
        config["rope_scaling"] = None
    return dict(sorted(config.items()))


def read_tensors(folder):
    """All tensors of a model folder: {name: tensor}."""
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors.update(safetensors.torch.load_file(path))
    return tensors


def load(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()


def write_model(folder, variant, seed):
    """Writes the model files of a variant; returns the model read back with f32 weights."""
    family, keys, own = split_variant(variant)
    config_class, model_class = FAMILIES[family]
    shutil.rmtree(folder, ignore_errors=True)
    model = model_class(config_class(**keys))
    randomize(model, seed)
    dtype = getattr(torch, own["dtype"])
    copy.deepcopy(model).to(dtype).save_pretrained(folder, max_shard_size=own["shard"])
    if own["layout"] == "classic":
        path = folder / "config.json"
        config = classic_config(json.loads(path.read_text()), family)
        path.write_text(json.dumps(config, indent=2) + "\n")
    if own["generation"]:
        text = json.dumps(dict(own["generation"], transformers_version=transformers.__version__), indent=2)
        (folder / "generation_config.json").write_text(text + "\n")

    for name, tensor in read_tensors(folder).items():
        assert re.fullmatch(CLASSIC_NAMES[family], name), f"{folder.name}: unexpected tensor {name}"
        assert tensor.dtype == dtype, name
    loaded = load(folder, torch.float32)
    ids = torch.arange(20)[None]
    model.eval().set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    with torch.no_grad():
        for param in model.parameters():    # not .to(dtype), which would also round the RoPE frequencies
            param.copy_(param.to(dtype))
        want, got = model.state_dict(), loaded.state_dict()
        assert want.keys() == got.keys()
        assert all(torch.equal(want[name], got[name]) for name in want), folder.name
        assert torch.equal(model(ids).logits, loaded(ids).logits), folder.name
    return loaded


@torch.no_grad()
def forward(model, ids):
    """Runs full sequences ids [batch, len].

    Returns logits f32 [batch, len, vocab] and {MoE layer: (router logits, weights, experts)} with f32
    [batch, len, num_experts], f32 [batch, len, num_topk] and i64 [batch, len, num_topk].
    """
    routing = {}

    def hook_for(layer):
        def hook(_module, _inputs, output):
            routing[layer] = tuple(part.reshape(*ids.shape, -1) for part in output)
        return hook

    handles = [layer.mlp.gate.register_forward_hook(hook_for(index))
               for index, layer in enumerate(model.model.layers) if hasattr(layer.mlp, "gate")]
    logits = model(ids, use_cache=False).logits.float()
    for handle in handles:
        handle.remove()
    return logits, {layer: (r.float(), w.float(), e) for layer, (r, w, e) in routing.items()}


@torch.no_grad()
def greedy(model, ids):
    """Greedy continuations of ids [batch, len] with a KV cache: [batch, NUM_NEW]."""
    output = model(ids, use_cache=True)
    tokens = [output.logits[:, -1].argmax(-1, keepdim=True)]
    while len(tokens) < NUM_NEW:
        output = model(tokens[-1], past_key_values=output.past_key_values, use_cache=True)
        tokens.append(output.logits[:, -1].argmax(-1, keepdim=True))
    return torch.cat(tokens, dim=1)


def margins(model, prompts, new):
    """Distances from a tie for prompts [batch, len] with continuations new [batch, NUM_NEW].

    Returns f32 [batch] each: the smallest top-1 margin of a greedy step (fraction of the logit range;
    negative where the full-sequence pass disagrees with the continuation), the smallest router
    margin over all tokens, and the smallest order margin over prompt tokens (router logits).
    """
    length = prompts.shape[1]
    logits, routing = forward(model, torch.cat([prompts, new[:, :-1]], dim=1))
    logits = logits[:, length - 1:]
    top = logits.topk(2, dim=-1).values
    margin = (top[..., 0] - top[..., 1]) / (logits.amax(-1) - logits.amin(-1))
    margin[logits.argmax(-1) != new] = -1.0
    router_margins, order_margins = [], []
    for router, _weights, experts in routing.values():
        num_topk = experts.shape[-1]
        gaps = -router.sort(dim=-1, descending=True).values.diff(dim=-1)
        router_margins.append(gaps[..., num_topk - 1].amin(-1))
        order_margins.append(gaps[:, :length, :num_topk - 1].amin((-1, -2)))
    return (margin.amin(-1), torch.stack(router_margins).amin(0), torch.stack(order_margins).amin(0))


def find_prompt(model, length, generator):
    """Searches for a prompt of the given length clear of ties; the widest of a batch wins.

    Returns (prompt [length], continuation [NUM_NEW], margins as (logit, router)) or None.
    """
    vocab = model.config.vocab_size
    for _ in range(BATCHES):
        prompts = torch.randint(3, vocab, (BATCH, length), generator=generator)
        new = greedy(model, prompts)
        margin, router, order = margins(model, prompts, new)
        distinct = torch.tensor([len(set(row)) for row in new.tolist()])
        good = ((margin > MIN_MARGIN) & (router > MIN_ROUTER_MARGIN) & (order > MIN_ORDER_MARGIN)
                & (distinct >= MIN_DISTINCT))
        if good.any():
            best = int(torch.where(good, margin, -1.0).argmax())
            return prompts[best], new[best], (float(margin[best]), float(router[best]))
    return None


def make_variant(folder, variant, first_seed, num_seeds):
    """Writes one variant; returns its expected.json contents."""
    own = split_variant(variant)[2]
    for seed in range(first_seed, first_seed + num_seeds):
        model = write_model(folder, variant, seed)
        generator = torch.Generator().manual_seed(seed)
        found = []
        for length in PROMPT_LENGTHS:
            found.append(find_prompt(model, length, generator))
            if found[-1] is None:
                break
        if None not in found and len({tuple(new.tolist()) for _, new, _ in found}) == len(found):
            break
    else:
        raise SystemExit(f"{folder.name}: no seed in {first_seed}..{seed} is clear of ties")

    tensors = {}
    model_bf16 = load(folder, torch.bfloat16) if own["dtype"] == "bfloat16" else None
    for i, (prompt, _new, _margins) in enumerate(found):
        logits, routing = forward(model, prompt[None])
        tensors[f"logits.{i}"] = logits[0]
        for layer, (_router, weights, experts) in routing.items():
            assert (weights.diff(dim=-1) <= 0).all()
            tensors[f"routing.{i}.{layer}"] = experts[0].float()
            tensors[f"routing_weights.{i}.{layer}"] = weights[0]
        if model_bf16 is not None:
            logits, routing = forward(model_bf16, prompt[None])
            tensors[f"logits_bf16.{i}"] = logits[0]
            for layer, (_router, _weights, experts) in routing.items():
                tensors[f"routing_bf16.{i}.{layer}"] = experts[0].float()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              folder / "expected.safetensors")

    expected = {
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "seed": seed,
        "dtype": own["dtype"],
        "min_margin": round(min(m[0] for _, _, m in found), 6),
        "min_router_margin": round(min(m[1] for _, _, m in found), 6),
        "prompts": [prompt.tolist() for prompt, _, _ in found],
        "greedy": [new.tolist() for _, new, _ in found],
    }
    lines = [f'  "{key}": ' + (json.dumps(value) if key not in ("prompts", "greedy") else
             "[\n    " + ",\n    ".join(json.dumps(row) for row in value) + "\n  ]")
             for key, value in expected.items()]
    (folder / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return expected


def main():
    parser = argparse.ArgumentParser(description="Make the golden models and their expected results.")
    parser.add_argument("--output", type=Path, default=Path("tests/golden"), help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, metavar="VARIANT", default=list(VARIANTS))
    parser.add_argument("--seed", type=int, default=1, help="first model seed tried")
    parser.add_argument("--num-seeds", type=int, default=20, help="model seeds tried per variant")
    args = parser.parse_args()

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in args.only:
        folder = args.output / name
        expected = make_variant(folder, VARIANTS[name], args.seed, args.num_seeds)
        size = sum(path.stat().st_size for path in folder.glob("model*.safetensors"))
        largest = max(path.stat().st_size for path in folder.iterdir())
        total = sum(path.stat().st_size for path in folder.iterdir())
        distinct = [len(set(row)) for row in expected["greedy"]]
        print(f"{name:16} seed {expected['seed']:2}  weights {size:7}  folder {total:7}  largest file "
              f"{largest:7}  margin {expected['min_margin']:.4f}  router margin "
              f"{expected['min_router_margin']:.4f}  distinct {distinct}", flush=True)


if __name__ == "__main__":
    main()
