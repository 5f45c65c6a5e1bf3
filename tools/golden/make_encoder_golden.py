#!/usr/bin/env python3
"""Makes tiny random encoder-decoder models (Switch Transformers), and what Hugging Face transformers computes for them.

The folders are those of make_golden.py, except that prompts are what the encoder reads, and in expected.safetensors

      logits.i             f32 [NUM_NEW, vocab]         of the decoder: of its start token and of all greedy tokens but the
                                                        last, one after the other with a KV cache
      routing.i.L          f32 [prompt_len, 1] or [NUM_NEW, 1]    the expert of each row; L counts the encoder's layers,
                                                        then the decoder's
      routing_weights.i.L  f32, the same shape          0 where the expert was full (expert_capacity)

In the decoder a step has one row, so no expert is ever full, as when transformers generates with a KV cache.
"""

import copy
import shutil

import expected_file
import make_golden
import torch
import transformers
import weights
from make_golden import MAX_ROUNDING, MAX_ROUNDING_BF16, MIN_MARGIN, MIN_ROUTER_MARGIN, NUM_NEW, PROMPT_LENGTHS
from safetensors.torch import save_file

BATCH = 96          # prompt candidates tried before the next model seed
MIN_DISTINCT = 6    # distinct tokens in a greedy continuation

SWITCH = dict(vocab_size=96, d_model=32, d_kv=8, d_ff=40, num_layers=4, num_decoder_layers=4, num_sparse_encoder_layers=2,
              num_sparse_decoder_layers=2, num_heads=4, num_experts=4, expert_capacity=64, router_jitter_noise=0.0,
              decoder_start_token_id=0)

# Keys are those of config.json, except dtype and shard, as in make_golden.py, and the scale of the weights.
VARIANTS = {
    "switch-tiny": dict(SWITCH),
    # Odd sizes, more layers in the decoder than in the encoder, and experts that are full after a few rows.
    "switch-odd": dict(SWITCH, d_model=37, d_kv=10, d_ff=29, num_layers=3, num_decoder_layers=5,
                       num_sparse_encoder_layers=3, num_sparse_decoder_layers=2, num_heads=3, num_experts=5,
                       expert_capacity=4, vocab_size=107, relative_attention_num_buckets=12,
                       relative_attention_max_distance=20, router_bias=True, shard="120KB"),
    "switch-bf16": dict(SWITCH, dtype="bfloat16", d_model=64, num_layers=3, num_decoder_layers=2,
                        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, expert_capacity=9),
}


def write_model(folder, variant, seed):
    """Writes a variant's files; returns the model read back with f32 weights, and the dtype of the files."""
    keys = dict(variant)
    dtype, shard, scale = keys.pop("dtype", "float32"), keys.pop("shard", "1GB"), keys.pop("scale", 1.0)
    shutil.rmtree(folder, ignore_errors=True)
    config = transformers.SwitchTransformersConfig(**keys)
    model = transformers.SwitchTransformersForConditionalGeneration(config)
    copy.deepcopy(model).to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    weights.randomize(folder, seed, scale)
    return load(folder, torch.float32), dtype


def load(folder, dtype):
    return transformers.SwitchTransformersForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager").eval()


class Routers:
    """Collects what the routers of a model choose: {layer: [(logits, weight, expert) of each call]}."""

    def __init__(self, model):
        self.calls = {}
        self.handles = []
        layer = 0
        for stack in (model.encoder, model.decoder):
            for block in stack.block:
                mlp = block.layer[-1].mlp
                if hasattr(mlp, "router"):
                    self.handles.append(mlp.router.register_forward_hook(self.hook_for(layer)))
                layer += 1

    def hook_for(self, layer):
        def hook(_router, _inputs, output):
            mask, probability, logits = output
            kept = mask.sum(-1, keepdim=True)
            self.calls.setdefault(layer, []).append((logits, probability * kept, logits.argmax(-1, keepdim=True)))
        return hook

    def remove(self):
        """Returns {layer: (logits [batch, rows, experts], weights [batch, rows, 1], experts [batch, rows, 1])}."""
        for handle in self.handles:
            handle.remove()
        return {layer: tuple(torch.cat(parts, dim=1) for parts in zip(*calls, strict=True))
                for layer, calls in self.calls.items()}


@torch.no_grad()
def run(model, prompts):
    """Reads prompts [batch, len] and decodes greedily.

    Returns tokens [batch, NUM_NEW], logits f32 [batch, NUM_NEW, vocab], and Routers.remove().
    """
    routers = Routers(model)
    encoded = model.encoder(input_ids=prompts)
    token = torch.full((len(prompts), 1), model.config.decoder_start_token_id)
    tokens, logits, cache = [], [], None
    for _ in range(NUM_NEW):
        output = model(encoder_outputs=encoded, decoder_input_ids=token, past_key_values=cache,
                       use_cache=True)
        cache = output.past_key_values
        logits.append(output.logits.float())
        token = output.logits[:, -1].argmax(-1, keepdim=True)
        tokens.append(token)
    return torch.cat(tokens, 1), torch.cat(logits, 1), routers.remove()


def find_prompt(model, length, generator):
    """Returns a prompt [1, length] clear of ties and its margins as (logit, router), or None."""
    prompts = torch.randint(3, model.config.vocab_size, (BATCH, length), generator=generator)
    tokens, logits, routing = run(model, prompts)
    top = logits.topk(2, dim=-1).values
    margin = ((top[..., 0] - top[..., 1]) / (logits.amax(-1) - logits.amin(-1))).amin(-1)
    router_margin = torch.full((BATCH,), torch.inf)
    for router, _, _ in routing.values():
        if router.shape[-1] > 1:
            gaps = router.topk(2, dim=-1).values.diff(dim=-1).neg()
            router_margin = router_margin.minimum(gaps.amin((-1, -2)))
    distinct = torch.tensor([len(set(row)) for row in tokens.tolist()])
    good = (margin > MIN_MARGIN) & (router_margin > MIN_ROUTER_MARGIN) & (distinct >= MIN_DISTINCT)
    if not good.any():
        return None
    best = int(torch.where(good, margin, -1.0).argmax())
    return prompts[best][None], (float(margin[best]), float(router_margin[best]))


def rounding(folder, model, prompt):
    """Returns how far f32 logits are from f64 ones, relative to each row's largest."""
    return difference(run(load(folder, torch.float64), prompt), run(model, prompt))


def rounding_bf16(model, prompt):
    """Returns how far f32 logits are from those with inputs of FFNs and of lm_head in bf16, as difference() does."""
    exact = run(model, prompt)
    hooks = [module.register_forward_pre_hook(lambda _module, args: (args[0].bfloat16().float(),))
             for name, module in model.named_modules() if name.endswith((".wi", ".wo", "lm_head"))]
    rounded = run(model, prompt)
    for hook in hooks:
        hook.remove()
    return difference(exact, rounded)


def difference(a, b):
    """Returns how far the logits of two results of run() are apart, by each row's largest; 1 for other tokens."""
    if not torch.equal(a[0], b[0]):
        return 1.0
    return float(((a[1] - b[1]).abs().amax(-1) / a[1].abs().amax(-1)).max())


def make_variant(folder, variant, first_seed, num_seeds):
    """Writes one variant; returns its expected.json contents."""
    for seed in range(first_seed, first_seed + num_seeds):
        model, dtype = write_model(folder, variant, seed)
        generator = torch.Generator().manual_seed(seed)
        found = []
        for length in PROMPT_LENGTHS:
            found.append(find_prompt(model, length, generator))
            if found[-1] is None:
                break
        if None in found or max(rounding(folder, model, prompt) for prompt, _ in found) > MAX_ROUNDING:
            continue
        if dtype != "bfloat16" or max(rounding_bf16(model, prompt) for prompt, _ in found) < MAX_ROUNDING_BF16:
            break
    else:
        raise SystemExit(f"{folder.name}: no seed in {first_seed}..{seed} is clear of ties")
    tensors, greedy, num_dropped = {}, [], 0
    for i, (prompt, _) in enumerate(found):
        tokens, logits, routing = run(model, prompt)
        greedy.append(tokens[0].tolist())
        tensors[f"logits.{i}"] = logits[0]
        for layer, (_, factors, experts) in routing.items():
            tensors[f"routing.{i}.{layer}"] = experts[0].float()
            tensors[f"routing_weights.{i}.{layer}"] = factors[0].float()
            num_dropped += int((factors == 0).sum())
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "expected.safetensors")
    expected = expected_file.expected_of(seed, dtype, [margins for _, margins in found], num_dropped=num_dropped,
                                       prompts=[prompt[0].tolist() for prompt, _ in found], greedy=greedy)
    expected_file.write_expected(folder, expected)
    return expected


if __name__ == "__main__":
    make_golden.main(VARIANTS, make_variant)
