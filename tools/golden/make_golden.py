#!/usr/bin/env python3
"""Makes tiny random-weight MoE models and the results that Hugging Face transformers computes for them.

Every entry of VARIANTS becomes a folder OUT/<variant>/ with config.json, generation_config.json,
model.safetensors.index.json of shards, and

  weights.json          the recipe of the weights (weights.py); of coded variants, the weights themselves
  expected.json         versions, seed, dtype, prompts (lists of token ids), greedy (NUM_NEW ids for
                        each prompt), smallest margins (see margins())
  expected.safetensors  for each prompt i and each MoE layer L, weights upcast to f32, f32 arithmetic:
      logits.i               f32 [prompt_len, vocab]
      routing.i.L            f32 [prompt_len, num_topk]    experts by decreasing weight
      routing_weights.i.L    f32 [prompt_len, num_topk]    the weights the expert outputs are scaled by

All results come from the model as read back from its files, so these are what is tested.
Model seeds and prompts are searched until greedy decoding and routing are clear of near-ties.
"""

import argparse
import contextlib
import copy
import json
import re
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import coded
import expected_file
import safetensors
import torch
import transformers
import weights
from safetensors.torch import save_file
from variants import VARIANTS

PROMPT_LENGTHS = (1, 7, 33, 70)
NUM_NEW = 64            # greedy tokens after each prompt
MIN_MARGIN = 1e-3       # top-1 minus top-2 logit, as a fraction of the logit range (max - min)
MIN_ROUTER_MARGIN = 1e-3    # router logit of the last chosen minus that of the first rejected expert
MIN_ROUTER_MARGIN_BF16 = 4e-3    # the same for models that also run with bf16 FFNs
MIN_INDEX_MARGIN = 3e-5    # score of the last chosen minus that of the first rejected position, by the row's largest
MAX_ROUNDING = 4e-5     # f32 logits against f64 ones, by the row's largest; above it, other orders of sums would show
MAX_ROUNDING_BF16 = 1.4e-2    # f32 logits against those with inputs of FFNs and lm_head rounded to bf16 (bf16 variants)
MIN_DISTINCT = 12       # distinct tokens in a greedy continuation
BATCH = 48              # prompt candidates tried at once; fewer of long ones
LONG = 1000             # a longer prompt keeps only the results of its last rows
LONG_ROWS = 64
BATCHES = 6             # batches before the next model seed is tried

FAMILIES = {
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "qwen3_5_moe_text": (transformers.Qwen3_5MoeTextConfig, transformers.Qwen3_5MoeForCausalLM),
    "qwen3_next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM),
    "lfm2_moe": (transformers.Lfm2MoeConfig, transformers.Lfm2MoeForCausalLM),
    "granitemoehybrid": (transformers.GraniteMoeHybridConfig, transformers.GraniteMoeHybridForCausalLM),
    "nemotron_h": (transformers.NemotronHConfig, transformers.NemotronHForCausalLM),
    "kimi_linear": (transformers.KimiLinearConfig, transformers.KimiLinearForCausalLM),
    "bailing_hybrid": (transformers.BailingHybridConfig, transformers.BailingHybridForCausalLM),
    "jamba": (transformers.JambaConfig, transformers.JambaForCausalLM),
    "minimax": (transformers.MiniMaxConfig, transformers.MiniMaxForCausalLM),
    "olmoe": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM),
    "qwen2_moe": (transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM),
    "phimoe": (transformers.PhimoeConfig, transformers.PhimoeForCausalLM),
    "granitemoe": (transformers.GraniteMoeConfig, transformers.GraniteMoeForCausalLM),
    "granitemoeshared": (transformers.GraniteMoeSharedConfig, transformers.GraniteMoeSharedForCausalLM),
    "granitemoe_swa": (transformers.GraniteMoeSWAConfig, transformers.GraniteMoeSWAForCausalLM),
    "mellum": (transformers.MellumConfig, transformers.MellumForCausalLM),
    "glm4_moe": (transformers.Glm4MoeConfig, transformers.Glm4MoeForCausalLM),
    "solar_open": (transformers.SolarOpenConfig, transformers.SolarOpenForCausalLM),
    "ernie4_5_moe": (transformers.Ernie4_5_MoeConfig, transformers.Ernie4_5_MoeForCausalLM),
    "glm4_moe_lite": (transformers.Glm4MoeLiteConfig, transformers.Glm4MoeLiteForCausalLM),
    "dots1": (transformers.Dots1Config, transformers.Dots1ForCausalLM),
    "deepseek_v2": (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM),
    "deepseek_v3": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM),
    "deepseek_v32": (transformers.DeepseekV32Config, transformers.DeepseekV32ForCausalLM),
    "glm_moe_dsa": (transformers.GlmMoeDsaConfig, transformers.GlmMoeDsaForCausalLM),
    "longcat_flash": (transformers.LongcatFlashConfig, transformers.LongcatFlashForCausalLM),
    "axk1": (transformers.AXK1Config, transformers.AXK1ForCausalLM),
    "dbrx": (transformers.DbrxConfig, transformers.DbrxForCausalLM),
    "minimax_m2": (transformers.MiniMaxM2Config, transformers.MiniMaxM2ForCausalLM),
    "hunyuan_v1_moe": (transformers.HunYuanMoEV1Config, transformers.HunYuanMoEV1ForCausalLM),
    "exaone_moe": (transformers.ExaoneMoeConfig, transformers.ExaoneMoeForCausalLM),
    "llama4_text": (transformers.Llama4TextConfig, transformers.Llama4ForCausalLM),
    "llama4": (transformers.Llama4Config, transformers.Llama4ForConditionalGeneration),
    "qwen3_vl_moe": (transformers.Qwen3VLMoeConfig, transformers.Qwen3VLMoeForConditionalGeneration),
    "qwen3_omni_moe_thinker": (transformers.Qwen3OmniMoeThinkerConfig,
                               transformers.Qwen3OmniMoeThinkerForConditionalGeneration),
    "glm4v_moe": (transformers.Glm4vMoeConfig, transformers.Glm4vMoeForConditionalGeneration),
    "ernie4_5_vl_moe": (transformers.Ernie4_5_VLMoeConfig, transformers.Ernie4_5_VLMoeForConditionalGeneration),
    "aria": (transformers.AriaConfig, transformers.AriaForConditionalGeneration),
    "mistral4": (transformers.Mistral4Config, transformers.Mistral4ForCausalLM),
    "flint": (transformers.FlintConfig, transformers.FlintForCausalLM),
    "hy_v3": (transformers.HYV3Config, transformers.HYV3ForCausalLM),
    "gpt_oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM),
    "flex_olmo": (transformers.FlexOlmoConfig, transformers.FlexOlmoForCausalLM),
    "afmoe": (transformers.AfmoeConfig, transformers.AfmoeForCausalLM),
    "kolibri1": (transformers.Kolibri1Config, transformers.Kolibri1ForCausalLM),
    "kimi_k25": (transformers.Kimi_K25Config, transformers.Kimi_K25ForConditionalGeneration),
    "cohere2_moe": (transformers.Cohere2MoeConfig, transformers.Cohere2MoeForCausalLM),
    "mimo_v2_flash": (transformers.MiMoV2FlashConfig, transformers.MiMoV2FlashForCausalLM),
    "laguna": (transformers.LagunaConfig, transformers.LagunaForCausalLM),
    "step3p7": (transformers.Step3p7Config, transformers.Step3p7ForConditionalGeneration),
    "gemma4_text": (transformers.Gemma4TextConfig, transformers.Gemma4ForCausalLM),
    "gemma4": (transformers.Gemma4Config, transformers.Gemma4ForConditionalGeneration),
}

# Published forms with more parts than the one that transformers computes here: the architecture, and the part's name.
WHOLES = {"Qwen3OmniMoeForConditionalGeneration": "thinker"}
BLOCKS = ("mlp", "block_sparse_moe", "ffn", "feed_forward", "mixer")    # what modules with a router are called

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
    config = dict(bos_token_id=1, eos_token_id=2, max_position_embeddings=256)
    config.update(variant)
    own = {key: config.pop(key, default) for key, default in
           dict(dtype="float32", layout="classic", shard="1GB", generation=None, coded=None, fp8_block_rows=128,
                int4_group=32, coded_names="", gguf={}, renamed={}, dropped=None, parts=None, transposed=None, whole=None,
                prompt_lengths=PROMPT_LENGTHS).items()}
    family = config.pop("family")
    if own["parts"]:
        config = dict(text_config=config, tie_word_embeddings=config.get("tie_word_embeddings", False), **own["parts"])
    return family, config, own


def classic_config(config, family):
    """Rewrites a config.json dict of this transformers version with the published checkpoints' keys."""
    config = dict(config)
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["torch_dtype"] = config.pop("dtype")
    if config.get("head_dim", 0) is None:
        del config["head_dim"]
    if family == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
        config["max_window_layers"] = config["num_hidden_layers"]
    if rope["rope_type"] != "default":
        config["rope_scaling"] = rope
    elif family != "mixtral":
        config["rope_scaling"] = None
    return dict(sorted(config.items()))


def published_gemma4(config):
    """Rewrites a config.json dict of Gemma 4 with the published checkpoints' keys."""
    text = dict(config["text_config"])
    full = next(iter(text.pop("per_layer_config").values()))
    text.update(global_head_dim=full["head_dim"], num_global_key_value_heads=full["num_key_value_heads"])
    return dict(config, text_config=dict(sorted(text.items())))


def published_mimo(config):
    """Rewrites a config.json dict of MiMo-V2-Flash with the published checkpoints' keys."""
    config = dict(config, sliding_window_size=config["sliding_window"] - 1, routed_scaling_factor=None,
                  hybrid_layer_pattern=[int(kind == "sliding_attention") for kind in config["layer_types"]],
                  moe_layer_freq=[int(kind == "sparse") for kind in config["mlp_layer_types"]])
    return {key: value for key, value in sorted(config.items())
            if key not in ("rope_parameters", "layer_types", "mlp_layer_types")}


def published_step3p7(config):
    """Rewrites a config.json dict of Step 3.7 with the published checkpoints' keys: lists that MTP layers continue."""
    text = {key: value for key, value in config["text_config"].items()
            if key not in ("per_layer_config", "query_pre_attn_scalar")}
    ropes, kinds, mtp = text.pop("rope_parameters"), text.pop("layer_types"), 2
    text.update(layer_types=kinds + ["sliding_attention"] * mtp, num_nextn_predict_layers=mtp,
                moe_layers_enum=",".join(str(i) for i, kind in enumerate(text.pop("mlp_layer_types")) if kind == "sparse"),
                rope_theta=[ropes[kind]["rope_theta"] for kind in kinds] + [1e4] * mtp,
                partial_rotary_factors=[ropes[kind].get("partial_rotary_factor", 1.0) for kind in kinds] + [1.0] * mtp,
                rope_scaling={key: value for key, value in ropes["full_attention"].items()
                              if key not in ("rope_theta", "partial_rotary_factor")},
                attention_other_setting=dict(num_attention_heads=text.pop("num_sliding_attention_heads")),
                num_attention_groups=text.pop("num_key_value_heads"), moe_top_k=text.pop("num_experts_per_tok"),
                moe_num_experts=text.pop("n_routed_experts"))
    for key in ("swiglu_limits", "swiglu_limits_shared"):
        text[key] = text[key] + [0.0] * mtp
    for key in ("mtp_layer_types", "mtp_mlp_layer_types", "num_local_experts"):
        text.pop(key, None)
    return dict(config, text_config=dict(sorted(text.items())))


PUBLISHED = {"gemma4": published_gemma4, "mimo_v2_flash": published_mimo, "step3p7": published_step3p7}


def read_tensors(folder):
    """Returns all tensors of a model folder: {name: tensor}."""
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors.update(safetensors.torch.load_file(path))
    return tensors


def load(folder, dtype):
    with tempfile.TemporaryDirectory() as temporary:
        config = json.loads((folder / "config.json").read_text())
        if (part := next((name for name in WHOLES.values() if f"{name}_config" in config), None)) is not None:
            # transformers does not load a part by itself.
            (Path(temporary) / "config.json").write_text(json.dumps(config[f"{part}_config"]))
            save_file({name.removeprefix(f"{part}."): tensor for name, tensor in read_tensors(folder).items()},
                      Path(temporary) / "model.safetensors", metadata={"format": "pt"})
            folder, config = Path(temporary), config[f"{part}_config"]
        return getattr(transformers, config["architectures"][0]).from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()


def make_published(folder, own):
    """Gives a saved model the published checkpoints' form, where that differs: transposed weights, parts of a whole."""
    if own["renamed"]:
        def rename(name):
            for pattern, replacement in own["renamed"].items():
                name = re.sub(pattern, replacement, name)
            return name
        tensors = {rename(name): tensor for name, tensor in read_tensors(folder).items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if own["dropped"]:
        tensors = {name: tensor for name, tensor in read_tensors(folder).items() if not re.search(own["dropped"], name)}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if own["transposed"]:
        tensors = {name: tensor.transpose(-1, -2).contiguous() if re.search(own["transposed"], name) else tensor
                   for name, tensor in read_tensors(folder).items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if own["whole"]:
        part, architecture = WHOLES[own["whole"]], own["whole"]
        tensors = {f"{part}.{name}": tensor for name, tensor in read_tensors(folder).items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(
            json.dumps({"architectures": [architecture], f"{part}_config": config}, indent=2) + "\n")


def write_model(folder, variant, seed):
    """Writes the model files of a variant; returns the model read back with f32 weights, and the variant's options."""
    family, keys, own = split_variant(variant)
    config_class, model_class = FAMILIES[family]
    shutil.rmtree(folder, ignore_errors=True)
    model = model_class(config_class(**keys))
    dtype = getattr(torch, own["dtype"])
    copy.deepcopy(model).to(dtype).save_pretrained(folder, max_shard_size=own["shard"])
    make_published(folder, own)
    weights.randomize(folder, seed)
    if own["layout"] != "plain":
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config = PUBLISHED[family](config) if family in PUBLISHED else classic_config(config, family)
        path.write_text(json.dumps(config, indent=2) + "\n")
    if own["generation"]:
        text = json.dumps(dict(own["generation"], transformers_version=transformers.__version__), indent=2)
        (folder / "generation_config.json").write_text(text + "\n")

    if own["coded"]:
        own["codes"] = coded.code_model(folder, own, seed)
        return load(folder, torch.float32), own
    for name, tensor in read_tensors(folder).items():
        assert family not in CLASSIC_NAMES or re.fullmatch(CLASSIC_NAMES[family], name), \
            f"{folder.name}: unexpected tensor {name}"
        assert tensor.dtype == dtype or "correction_bias" in name, name
    loaded = load(folder, torch.float32)
    # The config as it is written must mean the model that it was made of. Sums may differ: those of torch depend on where
    # in memory a row begins.
    model.eval().set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    model.load_state_dict(loaded.state_dict())
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, loaded(ids).logits, rtol=1e-5, atol=1e-5), folder.name
    return loaded, own


@torch.no_grad()
def forward(model, ids):
    """Runs full sequences ids [batch, len].

    Returns logits f32 [batch, len, vocab] and {MoE layer: (router logits, weights, experts)} with f32
    [batch, len, num_experts], f32 [batch, len, num_topk] and i64 [batch, len, num_topk].
    """
    routing = {}

    def hook_for(layer, block):
        def hook(router, _inputs, output):
            if isinstance(output, tuple) and len(output) == 2:   # Llama 4's router gives scores, which scale inputs
                logits, experts = output[1], output[1].argmax(-1, keepdim=True)
                weights = torch.ones_like(experts, dtype=torch.float32)
            elif isinstance(output, tuple):
                logits, weights, experts = output
            else:   # DBRX's router returns only the logits
                logits, (weights, experts) = output, block.route_tokens_to_experts(output)
            weights, order = weights.float().sort(dim=-1, descending=True)
            experts = experts.gather(-1, order)
            parts = (selection_keys(block, router, logits.float()), weights, experts)
            routing[layer] = tuple(part.reshape(*ids.shape, -1) for part in parts)
        return hook

    handles = []
    for index, layer in enumerate(decoder(model)):
        block = next(getattr(layer, name) for name in BLOCKS if hasattr(layer, name))
        block = getattr(block, "text_moe", block)
        router = getattr(block, "gate", None) or getattr(block, "router", None) or getattr(layer, "router", None)
        if router is not None:
            handles.append(router.register_forward_hook(hook_for(index, block)))
    logits = model(ids, use_cache=False).logits.float()
    for handle in handles:
        handle.remove()
    return logits, routing


def decoder(model):
    """Returns the layers of a model."""
    for path in ("model.language_model.layers", "model.layers", "language_model.model.layers"):
        try:
            return model.get_submodule(path)
        except AttributeError:
            continue
    return model.transformer.blocks


def selection_keys(block, router, logits):
    """Returns the values whose largest choose the experts: logits, or scores with biases; -inf in rejected groups."""
    if hasattr(router, "moe_statics"):
        # Softmax scores lie closer together than logits.
        return 10 * (logits.softmax(-1) + router.moe_statics.e_score_correction_bias.squeeze())
    if hasattr(router, "per_expert_scale"):
        return logits.log()    # Gemma 4's router returns probabilities
    bias = next((getattr(module, name) for module in (router, block) for name in ("e_score_correction_bias", "expert_bias")
                 if hasattr(module, name)), None)
    keys = logits if bias is None else logits.sigmoid() + bias
    if type(router).__name__ == "Kolibri1TopKRouter":
        keys = logits + bias
    if type(router).__name__ == "LongcatFlashTopkRouter":
        keys = 10 * (logits.softmax(-1) + bias)
    is_mistral = type(router).__name__ == "Mistral4TopkRouter"
    if is_mistral:   # sums of two softmax scores rank groups
        keys = 10 * logits.softmax(-1)
    if not hasattr(router, "num_group") or getattr(router, "topk_method", "") == "greedy":
        return keys
    groups = keys.view(*keys.shape[:-1], router.num_group, -1)
    scores = groups.amax(-1) if bias is None and not is_mistral else groups.topk(2, dim=-1).values.sum(-1)
    chosen = scores.topk(router.topk_group, dim=-1).indices
    mask = torch.ones(groups.shape[:-1], dtype=torch.bool).scatter(-1, chosen, False)
    return groups.masked_fill(mask[..., None], -torch.inf).flatten(-2)


@contextlib.contextmanager
def index_margins(model, first):
    """Collects the margins of the positions that indexers choose, f32 [batch] for each layer: the gap between the last
    chosen and the first rejected score, by the row's largest score, where a row from `first` on chooses at all."""
    found = []
    topk = torch.Tensor.topk

    def watch(scores, k, dim):
        if scores.shape[-1] > k:
            seen = scores > -1e30
            top = topk(scores, k + 1, dim=dim).values
            gaps = (top[..., -2] - top[..., -1]) / scores.abs().masked_fill(~seen, 0).amax(-1)
            found.append(gaps.masked_fill(seen.sum(-1) <= k, torch.inf)[:, first:].amin(-1))
        return topk(scores, k, dim=dim)

    def watched(forward):
        def run(*args, **kwargs):
            with mock.patch.object(torch.Tensor, "topk", watch):
                return forward(*args, **kwargs)
        return run

    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if type(module).__name__.endswith("Indexer"):
                stack.enter_context(mock.patch.object(module, "forward", watched(module.forward)))
        yield found


@torch.no_grad()
def greedy(model, ids):
    """Continues ids [batch, len] greedily with a KV cache: [batch, NUM_NEW]."""
    output = model(ids, use_cache=True)
    tokens = [output.logits[:, -1].argmax(-1, keepdim=True)]
    while len(tokens) < NUM_NEW:
        output = model(tokens[-1], past_key_values=output.past_key_values, use_cache=True)
        tokens.append(output.logits[:, -1].argmax(-1, keepdim=True))
    return torch.cat(tokens, dim=1)


def margins(model, prompts, new):
    """Returns the distances from a tie for prompts [batch, len] with continuations new [batch, NUM_NEW].

    The first is f32 [batch]: the smallest top-1 margin of a greedy step, as a fraction of the logit range. It is negative
    if the full-sequence pass disagrees with the continuation. The second, f32 [batch], is the smallest router margin over
    all tokens. It is negative if this model does not choose by selection_keys(), or if an indexer's choice is close.
    """
    length = prompts.shape[1]
    first = 0 if length < LONG else length - LONG_ROWS
    with index_margins(model, first) as index:
        logits, routing = forward(model, torch.cat([prompts, new[:, :-1]], dim=1))
    logits = logits[:, length - 1:]
    top = logits.topk(2, dim=-1).values
    margin = (top[..., 0] - top[..., 1]) / (logits.amax(-1) - logits.amin(-1))
    margin[logits.argmax(-1) != new] = -1.0
    router_margins = []
    for router, _weights, experts in routing.values():
        is_chosen = torch.zeros(router.shape, dtype=torch.bool).scatter(-1, experts, True)
        gaps = router.masked_fill(~is_chosen, torch.inf).amin(-1) - router.masked_fill(is_chosen, -torch.inf).amax(-1)
        router_margins.append(gaps[:, first:].amin(-1))
    router_margins = torch.stack(router_margins).amin(0)
    if index:
        router_margins[torch.stack(index).amin(0) < MIN_INDEX_MARGIN] = -1.0
    return margin.amin(-1), router_margins


def find_prompt(model, length, generator, min_router_margin):
    """Searches for a prompt of the given length clear of ties; the widest of a batch wins.

    Returns (prompt [length], continuation [NUM_NEW], margins as (logit, router)) or None.
    """
    vocab = model.config.get_text_config().vocab_size
    for _ in range(BATCHES):
        prompts = torch.randint(3, vocab, (BATCH if length < LONG else 4, length), generator=generator)
        new = greedy(model, prompts)
        margin, router = margins(model, prompts, new)
        distinct = torch.tensor([len(set(row)) for row in new.tolist()])
        good = (margin > MIN_MARGIN) & (router > min_router_margin) & (distinct >= MIN_DISTINCT)
        if good.any():
            best = int(torch.where(good, margin, -1.0).argmax())
            return prompts[best], new[best], (float(margin[best]), float(router[best]))
    return None


@torch.no_grad()
def rounding(folder, model, prompts):
    """Returns how far f32 logits are from f64 ones, relative to each row's largest."""
    exact = load(folder, torch.float64)
    worst = 0.0
    for prompt in prompts:
        difference = model(prompt[None], use_cache=False).logits - exact(prompt[None], use_cache=False).logits
        worst = max(worst, float((difference.abs().amax(-1) / model(prompt[None]).logits.abs().amax(-1)).max()))
    return worst


@torch.no_grad()
def rounding_bf16(model, prompts):
    """How far f32 logits are from those with the inputs of FFNs and of lm_head in bf16, by each row's largest.

    Inputs of the experts' down projections stay f32. More than a little means that a router chose other experts.
    """
    def round_input(_module, args):
        return (args[0].bfloat16().float(), *args[1:])

    exact = [model(prompt[None], use_cache=False).logits for prompt in prompts]
    hooks = [module.register_forward_pre_hook(round_input) for name, module in model.named_modules()
             if re.search(r"experts$|(gate|up|down)_proj$|lm_head$", name)]
    rounded = [model(prompt[None], use_cache=False).logits for prompt in prompts]
    for hook in hooks:
        hook.remove()
    return max(float(((a - b).abs().amax(-1) / a.abs().amax(-1)).max()) for a, b in zip(exact, rounded, strict=True))


def make_variant(folder, variant, first_seed, num_seeds):
    """Writes one variant; returns its expected.json contents."""
    own = split_variant(variant)[2]
    for seed in range(first_seed, first_seed + num_seeds):
        model, own = write_model(folder, variant, seed)
        generator = torch.Generator().manual_seed(seed)
        found = []
        for length in own["prompt_lengths"]:
            found.append(find_prompt(model, length, generator,
                                     MIN_ROUTER_MARGIN if own["dtype"] != "bfloat16" else MIN_ROUTER_MARGIN_BF16))
            if found[-1] is None:
                break
        # Kimi Delta Attention's chunks round by nearly as much over a long prompt; its seeds would not be clear of it.
        short = [prompt for prompt, _, _ in filter(None, found) if len(prompt) < LONG]
        if None not in found and short and rounding(folder, model, short) > MAX_ROUNDING:
            continue
        if None not in found and own["dtype"] == "bfloat16" \
                and rounding_bf16(model, [prompt for prompt, _, _ in found]) > MAX_ROUNDING_BF16:
            continue
        if None not in found and len({tuple(new.tolist()) for _, new, _ in found}) == len(found):
            break
    else:
        raise SystemExit(f"{folder.name}: no seed in {first_seed}..{seed} is clear of ties")

    tensors = {}
    for i, (prompt, _new, _margins) in enumerate(found):
        logits, routing = forward(model, prompt[None])
        first = 0 if len(prompt) < LONG else len(prompt) - LONG_ROWS
        tensors[f"logits.{i}"] = logits[0, first:]
        for layer, (_router, factors, experts) in routing.items():
            assert (factors.diff(dim=-1) <= 0).all()
            tensors[f"routing.{i}.{layer}"] = experts[0, first:].float()
            tensors[f"routing_weights.{i}.{layer}"] = factors[0, first:]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              folder / "expected.safetensors")

    if own["coded"]:
        coded.write_coded(folder, own, own["codes"])
        (folder / weights.RECIPE).unlink()
    expected = expected_file.expected_of(seed, own["dtype"], [margins for _, _, margins in found],
                           prompts=[prompt.tolist() for prompt, _, _ in found],
                           greedy=[new.tolist() for _, new, _ in found])
    expected_file.write_expected(folder, expected)
    return expected


def main(variants=VARIANTS, make=make_variant):
    parser = argparse.ArgumentParser(description="Make golden models and their expected results.")
    parser.add_argument("--output", type=Path, default=Path("tests/golden"), help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=variants, metavar="VARIANT", default=list(variants))
    parser.add_argument("--seed", type=int, default=1, help="first model seed tried")
    parser.add_argument("--num-seeds", type=int, default=40, help="model seeds tried per variant; default: %(default)s")
    args = parser.parse_args()

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in args.only:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / name
            expected = make(folder, variants[name], args.seed, args.num_seeds)
            size = sum(path.stat().st_size for path in folder.glob("model*"))
            weights.keep(folder, args.output / name)
        total = sum(path.stat().st_size for path in (args.output / name).iterdir())
        distinct = [len(set(row)) for row in expected["greedy"]]
        dropped = f"  dropped {expected['num_dropped']}" if "num_dropped" in expected else ""
        print(f"{name:16} seed {expected['seed']:2}  weights {size:7}  kept {total:7}{dropped}  "
              f"margin {expected['min_margin']:.4f}  router margin "
              f"{expected['min_router_margin']:.4f}  distinct {distinct}", flush=True)


if __name__ == "__main__":
    main()
