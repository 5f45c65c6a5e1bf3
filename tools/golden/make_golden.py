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
import copy
import json
import re
import shutil
import tempfile
from pathlib import Path

import coded
import expected_file
import safetensors
import torch
import transformers
import weights
from safetensors.torch import save_file

PROMPT_LENGTHS = (1, 7, 33, 70)
NUM_NEW = 64            # greedy tokens after each prompt
MIN_MARGIN = 1e-3       # top-1 minus top-2 logit, as a fraction of the logit range (max - min)
MIN_ROUTER_MARGIN = 1e-3    # router logit of the last chosen minus that of the first rejected expert
MIN_ROUTER_MARGIN_BF16 = 4e-3    # the same for models that also run with bf16 FFNs
MAX_ROUNDING = 4e-5     # f32 logits against f64 ones, by the row's largest; above it, other orders of sums would show
MAX_ROUNDING_BF16 = 1.4e-2    # f32 logits against those with inputs of FFNs and lm_head rounded to bf16 (bf16 variants)
MIN_DISTINCT = 12       # distinct tokens in a greedy continuation
BATCH = 48              # prompt candidates tried at once
BATCHES = 6             # batches before the next model seed is tried

MIXTRAL = dict(family="mixtral", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, vocab_size=96, rope_theta=1e6)
QWEN3 = dict(family="qwen3_moe", hidden_size=32, intermediate_size=40, moe_intermediate_size=24,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             num_experts=8, num_experts_per_tok=4, norm_topk_prob=True, vocab_size=96,
             rope_theta=1e6)
QWEN3_NEXT = dict(family="qwen3_next", hidden_size=32, intermediate_size=40, moe_intermediate_size=24,
                  shared_expert_intermediate_size=28, num_hidden_layers=4, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
                  linear_key_head_dim=16, linear_value_head_dim=16, num_experts=8, num_experts_per_tok=4, vocab_size=96,
                  rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25))
QWEN35 = dict({key: value for key, value in QWEN3_NEXT.items() if key != "intermediate_size"},
              family="qwen3_5_moe_text")
OLMOE = dict(family="olmoe", hidden_size=32, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=4, num_experts=16, num_experts_per_tok=8, norm_topk_prob=False, vocab_size=96,
             rope_theta=10000.0, pad_token_id=1)
QWEN2 = dict(family="qwen2_moe", hidden_size=32, intermediate_size=40, moe_intermediate_size=24,
             shared_expert_intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, num_experts=8, num_experts_per_tok=4, vocab_size=96, rope_theta=1e6)
PHIMOE = dict(family="phimoe", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, vocab_size=96, attention_bias=True,
              lm_head_bias=True, router_jitter_noise=0.1, rope_parameters=dict(rope_type="default", rope_theta=1e6))
GRANITE = dict(family="granitemoe", hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=4, vocab_size=96,
               embedding_multiplier=3.0, attention_multiplier=0.25, residual_multiplier=0.6, logits_scaling=2.5,
               rope_parameters=dict(rope_type="default", rope_theta=1e4))
GLM4 = dict(family="glm4_moe", hidden_size=32, intermediate_size=40, moe_intermediate_size=24, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, n_routed_experts=8, num_experts_per_tok=3,
            n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.5, vocab_size=96,
            attention_bias=True, use_qk_norm=True, num_mtp_layers=0,
            rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5))
DOTS1 = dict(family="dots1", hidden_size=32, intermediate_size=40, moe_intermediate_size=24, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16, n_routed_experts=8, num_experts_per_tok=3,
             n_shared_experts=2, first_k_dense_replace=1, norm_topk_prob=True, vocab_size=96, sliding_window=None,
             rope_parameters=dict(rope_type="default", rope_theta=1e6))
SOLAR = dict(family="solar_open", hidden_size=32, moe_intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
             routed_scaling_factor=1.5, vocab_size=96, rope_parameters=dict(rope_type="default", rope_theta=1e6))
ERNIE = dict(family="ernie4_5_moe", hidden_size=32, intermediate_size=40, moe_intermediate_size=24, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, moe_num_experts=8, moe_k=3, moe_num_shared_experts=2,
             moe_layer_start_index=1, tie_word_embeddings=True, vocab_size=96,
             rope_parameters=dict(rope_type="default", rope_theta=5e5))
DBRX = dict(family="dbrx", d_model=32, n_heads=4, n_layers=2, vocab_size=96, max_seq_len=256,
            attn_config=dict(kv_n_heads=2, rope_theta=500000.0, clip_qkv=0.8),
            ffn_config=dict(ffn_hidden_size=24, moe_num_experts=6, moe_top_k=3, moe_normalize_expert_weights=1.0,
                            ffn_act_fn=dict(name="silu")),
            rope_parameters=dict(rope_type="default", rope_theta=500000.0))
GPT_OSS = dict(family="gpt_oss", hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, head_dim=16, num_local_experts=6, num_experts_per_tok=3, vocab_size=96,
               sliding_window=12, swiglu_limit=1.5,
               rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0,
                                    beta_slow=1.0, truncate=False, original_max_position_embeddings=64))
MINIMAX_M2 = dict(family="minimax_m2", hidden_size=32, intermediate_size=24, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=8,
                  num_experts_per_tok=3, vocab_size=96, rope_parameters=dict(rope_type="default", rope_theta=5e6))
HUNYUAN = dict(family="hunyuan_v1_moe", hidden_size=32, intermediate_size=24, num_hidden_layers=2,
               num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=8, moe_topk=3, vocab_size=96,
               rope_parameters=dict(rope_type="default", rope_theta=1e4))
EXAONE = dict(family="exaone_moe", hidden_size=32, intermediate_size=40, moe_intermediate_size=24, num_hidden_layers=4,
              num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=8, num_experts_per_tok=3,
              sliding_window=16, vocab_size=96, rope_parameters=dict(rope_type="default", rope_theta=1e6))
FLINT = dict(family="flint", hidden_size=32, intermediate_size=40, moe_intermediate_size=24,
             shared_expert_intermediate_size=28, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             head_dim=8, num_experts=8, num_experts_per_tok=3, sliding_window=13, vocab_size=96,
             rope_parameters=dict(rope_type="default", rope_theta=1e4))
HY_V3 = dict(family="hy_v3", hidden_size=32, intermediate_size=40, moe_intermediate_size=24, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=3,
             vocab_size=96)
MELLUM = dict(family="mellum", hidden_size=32, intermediate_size=40, moe_intermediate_size=24, num_hidden_layers=3,
              num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=3,
              sliding_window=16, layer_types=["full_attention", "sliding_attention", "sliding_attention"], vocab_size=96)
GRANITE_SWA = dict(GRANITE, family="granitemoe_swa", shared_intermediate_size=21, num_hidden_layers=4, sliding_window=11)

DEEPSEEK = dict(hidden_size=32, intermediate_size=40, moe_intermediate_size=16, num_hidden_layers=3,
                num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8,
                v_head_dim=12, num_experts_per_tok=3, n_shared_experts=2, first_k_dense_replace=1,
                routed_scaling_factor=1.5, vocab_size=96)
DEEPSEEK2 = dict(DEEPSEEK, family="deepseek_v2", q_lora_rank=None, n_routed_experts=8, topk_method="greedy",
                 rope_parameters=dict(rope_type="default", rope_theta=1e4))
DEEPSEEK3 = dict(DEEPSEEK, family="deepseek_v3", q_lora_rank=20, n_routed_experts=12, n_group=4, topk_group=2,
                 norm_topk_prob=True,
                 rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=8.0, beta_fast=32, beta_slow=1,
                                      mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=32))

# Keys below are those of config.json, except these:
#   dtype                   dtype of the model files
#   coded, fp8_block_rows   the weights are codes of this kind (coded.py)
#   gguf                    options of make_gguf.py
#   layout                  "plain": files exactly as save_pretrained writes them; "classic" (the default): config keys
#                           as in the published checkpoints
#   shard                   the max_shard_size of save_pretrained
#   generation              replaces generation_config.json
VARIANTS = {
    "mixtral-tiny": dict(MIXTRAL, layout="plain"),
    "mixtral-odd": dict(MIXTRAL, hidden_size=44, intermediate_size=45, num_hidden_layers=3,
                        num_attention_heads=6, num_key_value_heads=3, head_dim=20,
                        num_local_experts=5, vocab_size=257, shard="350KB"),
    "mixtral-sliding": dict(MIXTRAL, sliding_window=16),
    "mixtral-bf16": dict(MIXTRAL, dtype="bfloat16", hidden_size=64, shard="90KB"),
    "mixtral-f16": dict(MIXTRAL, dtype="float16"),
    "qwen3next-tiny": dict(QWEN3_NEXT, layout="plain"),
    # One key head for three value heads whose states are not square; two layers in a row with attention.
    "qwen3next-odd": dict(QWEN3_NEXT, hidden_size=37, intermediate_size=29, moe_intermediate_size=19,
                          shared_expert_intermediate_size=23, num_hidden_layers=5, num_attention_heads=3,
                          num_key_value_heads=1, head_dim=24, linear_num_key_heads=1, linear_num_value_heads=3,
                          linear_key_head_dim=7, linear_value_head_dim=21, linear_conv_kernel_dim=3, num_experts=5,
                          num_experts_per_tok=3, norm_topk_prob=False, mlp_only_layers=[1], layout="plain",
                          layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention",
                                       "full_attention"],
                          rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)),
    "qwen35moe-tiny": dict(QWEN35, layout="plain", tie_word_embeddings=True),
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
    "qwen2moe-tiny": dict(QWEN2, layout="plain"),
    "qwen2moe-odd": dict(QWEN2, hidden_size=44, intermediate_size=29, moe_intermediate_size=19,
                         shared_expert_intermediate_size=33, num_hidden_layers=4, num_attention_heads=2,
                         num_key_value_heads=1, num_experts=7, num_experts_per_tok=3, norm_topk_prob=True,
                         decoder_sparse_step=2, use_sliding_window=True, sliding_window=20, max_window_layers=3,
                         vocab_size=131),
    "qwen2moe-bf16": dict(QWEN2, dtype="bfloat16", hidden_size=48),
    "phimoe-tiny": dict(PHIMOE, router_jitter_noise=0.01, layout="plain"),
    "phimoe-odd": dict(PHIMOE, hidden_size=42, intermediate_size=45, num_hidden_layers=3, num_attention_heads=7,
                       num_key_value_heads=1, num_local_experts=5, router_jitter_noise=0.3, vocab_size=103,
                       lm_head_bias=False),
    "granite-tiny": dict(GRANITE, layout="plain"),
    "granite-odd": dict(GRANITE, family="granitemoeshared", shared_intermediate_size=21, hidden_size=36,
                        intermediate_size=13, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
                        num_local_experts=5, num_experts_per_tok=2, attention_bias=True, tie_word_embeddings=True,
                        vocab_size=101),
    "glm4moe-tiny": dict(GLM4, layout="plain"),
    "glm4moe-odd": dict(GLM4, hidden_size=37, intermediate_size=29, moe_intermediate_size=19, num_attention_heads=6,
                        num_key_value_heads=3, head_dim=20, n_routed_experts=12, n_group=4, topk_group=2,
                        num_experts_per_tok=4, n_shared_experts=2, use_qk_norm=False, vocab_size=131),
    "dots1-tiny": dict(DOTS1, layout="plain"),
    "dbrx-tiny": dict(DBRX, layout="plain"),
    "dbrx-odd": dict(DBRX, d_model=54, n_heads=3, n_layers=3, vocab_size=113,
                     attn_config=dict(kv_n_heads=1, rope_theta=10000.0, clip_qkv=2.0),
                     ffn_config=dict(ffn_hidden_size=13, moe_num_experts=5, moe_top_k=2,
                                     moe_normalize_expert_weights=None, ffn_act_fn=dict(name="silu")),
                     rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "deepseek2-tiny": dict(DEEPSEEK2, layout="plain"),
    "deepseek2-odd": dict(DEEPSEEK2, hidden_size=45, num_attention_heads=5, num_key_value_heads=5, kv_lora_rank=22,
                          q_lora_rank=19, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=9, n_routed_experts=12,
                          topk_method="group_limited_greedy", n_group=4, topk_group=2, num_experts_per_tok=4,
                          vocab_size=107, attention_bias=True,
                          rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=40.0, beta_fast=32,
                                               beta_slow=1, mscale=0.707, mscale_all_dim=0.707,
                                               original_max_position_embeddings=32)),
    "deepseek2-bf16": dict(DEEPSEEK2, dtype="bfloat16", hidden_size=48),
    "deepseek3-tiny": dict(DEEPSEEK3, layout="plain"),
    "deepseek3-odd": dict(DEEPSEEK3, hidden_size=39, num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=35,
                          q_lora_rank=None, qk_nope_head_dim=10, qk_rope_head_dim=4, v_head_dim=7, n_group=1,
                          topk_group=1, norm_topk_prob=False, n_shared_experts=1, vocab_size=113),
    "gptoss-tiny": dict(GPT_OSS, swiglu_limit=7.0, layout="plain"),
    "gptoss-odd": dict(GPT_OSS, hidden_size=44, intermediate_size=45, num_hidden_layers=3, num_attention_heads=6,
                       num_key_value_heads=3, head_dim=20, num_local_experts=5, num_experts_per_tok=2, vocab_size=107),
    "gptoss-bf16": dict(GPT_OSS, dtype="bfloat16", hidden_size=48),
    "qwen3moe-fp8": dict(QWEN3, coded="fp8", hidden_size=160, intermediate_size=136, moe_intermediate_size=136,
                         num_attention_heads=4, head_dim=34, num_experts=4, num_experts_per_tok=2),
    "deepseek3-fp8": dict(DEEPSEEK3, coded="fp8", fp8_block_rows=64, hidden_size=132, moe_intermediate_size=32,
                          n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2, kv_lora_rank=136,
                          num_hidden_layers=2),
    "solaropen-tiny": dict(SOLAR, layout="plain"),
    "solaropen-odd": dict(SOLAR, hidden_size=37, moe_intermediate_size=19, num_hidden_layers=3, num_attention_heads=6,
                          num_key_value_heads=3, head_dim=10, n_routed_experts=12, n_group=4, topk_group=2,
                          num_experts_per_tok=4, n_shared_experts=2, attention_bias=True, norm_topk_prob=False,
                          routed_scaling_factor=1.7, vocab_size=107),
    "ernie45-tiny": dict(ERNIE, layout="plain"),
    "ernie45-odd": dict(ERNIE, hidden_size=42, intermediate_size=29, moe_intermediate_size=19, num_hidden_layers=5,
                        num_attention_heads=7, num_key_value_heads=1, moe_num_experts=5, moe_k=2, moe_num_shared_experts=1,
                        moe_layer_interval=2, tie_word_embeddings=False, vocab_size=103),
    "glm4lite-tiny": dict(DEEPSEEK3, family="glm4_moe_lite", layout="plain", n_group=1, topk_group=1, n_routed_experts=8,
                          first_k_dense_replace=None, mlp_layer_types=["dense", "sparse", "sparse"]),
    "minimaxm2-tiny": dict(MINIMAX_M2, layout="plain"),
    "minimaxm2-odd": dict(MINIMAX_M2, hidden_size=37, intermediate_size=19, num_hidden_layers=3, num_attention_heads=6,
                          num_key_value_heads=3, head_dim=20, num_local_experts=7, num_experts_per_tok=2,
                          tie_word_embeddings=True, vocab_size=131,
                          rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5)),
    "hunyuan-tiny": dict(HUNYUAN, layout="plain"),
    "hunyuan-odd": dict(HUNYUAN, hidden_size=42, head_dim=14, intermediate_size=19, num_hidden_layers=3,
                        num_attention_heads=3,
                        num_key_value_heads=1, num_experts=5, moe_topk=2, attention_bias=True, tie_word_embeddings=True,
                        vocab_size=103, rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, alpha=1000.0, factor=1.0)),
    "exaone-tiny": dict(EXAONE, layout="plain"),
    "exaone-odd": dict(EXAONE, hidden_size=37, intermediate_size=29, moe_intermediate_size=19, num_hidden_layers=5,
                       num_attention_heads=6, num_key_value_heads=3, head_dim=10, num_experts=12, num_experts_per_tok=4,
                       n_group=4, topk_group=2, num_shared_experts=2, norm_topk_prob=False, routed_scaling_factor=1.7,
                       mlp_layer_types=["sparse", "dense", "sparse", "sparse", "dense"], sliding_window=9,
                       sliding_window_pattern=2, tie_word_embeddings=True, vocab_size=109),
    "flint-tiny": dict(FLINT, layout="plain"),
    "flint-odd": dict(FLINT, hidden_size=41, intermediate_size=29, moe_intermediate_size=19,
                      shared_expert_intermediate_size=17, num_hidden_layers=5, num_attention_heads=6,
                      num_key_value_heads=2, head_dim=10, num_experts=7, num_experts_per_tok=2, norm_topk_prob=False,
                      attention_bias=True, mlp_only_layers=[2], vocab_size=107,
                      layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                                   "full_attention"]),
    "hyv3-tiny": dict(HY_V3, layout="plain"),
    "hyv3-odd": dict(HY_V3, hidden_size=37, intermediate_size=29, moe_intermediate_size=19, num_hidden_layers=4,
                     num_attention_heads=6, num_key_value_heads=3, head_dim=20, num_experts=7, num_experts_per_tok=2,
                     num_shared_experts=2, router_scaling_factor=1.3, attention_bias=True, tie_word_embeddings=True,
                     mlp_layer_types=["sparse", "dense", "sparse", "dense"], vocab_size=131,
                     rope_parameters=dict(rope_type="default", rope_theta=1e4)),
    "mellum-tiny": dict(MELLUM, layout="plain"),
    "mellum-odd": dict(MELLUM, hidden_size=37, intermediate_size=29, moe_intermediate_size=19, num_hidden_layers=5,
                       num_attention_heads=6, num_key_value_heads=3, head_dim=10, num_experts=7, num_experts_per_tok=2,
                       norm_topk_prob=False, attention_bias=True, tie_word_embeddings=True, sliding_window=9, vocab_size=109,
                       layer_types=["sliding_attention", "full_attention"] * 2 + ["full_attention"],
                       mlp_layer_types=["sparse", "dense", "sparse", "sparse", "sparse"], layout="plain",
                       rope_parameters=dict(full_attention=dict(rope_type="yarn", rope_theta=5e5, factor=4.0,
                                                                original_max_position_embeddings=64),
                                            sliding_attention=dict(rope_type="default", rope_theta=37.5))),
    "graniteswa-tiny": dict(GRANITE_SWA, layout="plain"),
    "graniteswa-odd": dict(GRANITE_SWA, hidden_size=36, intermediate_size=13, num_hidden_layers=5, num_attention_heads=6,
                           num_key_value_heads=3, num_local_experts=5, num_experts_per_tok=2, shared_intermediate_size=0,
                           layer_rope_theta=[0, 1e4, 500.0, 0, 1e6], attention_bias=True, tie_word_embeddings=True,
                           vocab_size=101,
                           layer_types=["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]),
    "gptoss-mxfp4": dict(GPT_OSS, coded="mxfp4", hidden_size=64, intermediate_size=96, num_local_experts=4,
                         num_experts_per_tok=2),
    "mixtral-q4_0": dict(MIXTRAL, coded="q4_0", hidden_size=64, intermediate_size=96, num_hidden_layers=2),
    "mixtral-q5": dict(MIXTRAL, coded="q5", hidden_size=64, intermediate_size=96, num_hidden_layers=2),
    "deepseek2-q8_0": dict(DEEPSEEK2, coded="q8_0", gguf=dict(old_mla=True), hidden_size=64, intermediate_size=96,
                           moe_intermediate_size=32, kv_lora_rank=32, qk_nope_head_dim=24, v_head_dim=16),
    "qwen2moe-k": dict(QWEN2, coded="k", hidden_size=256, moe_intermediate_size=256, intermediate_size=256,
                       shared_expert_intermediate_size=256, num_experts=4, num_experts_per_tok=2),
}

FAMILIES = {
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "qwen3_5_moe_text": (transformers.Qwen3_5MoeTextConfig, transformers.Qwen3_5MoeForCausalLM),
    "qwen3_next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM),
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
    "dbrx": (transformers.DbrxConfig, transformers.DbrxForCausalLM),
    "minimax_m2": (transformers.MiniMaxM2Config, transformers.MiniMaxM2ForCausalLM),
    "hunyuan_v1_moe": (transformers.HunYuanMoEV1Config, transformers.HunYuanMoEV1ForCausalLM),
    "exaone_moe": (transformers.ExaoneMoeConfig, transformers.ExaoneMoeForCausalLM),
    "flint": (transformers.FlintConfig, transformers.FlintForCausalLM),
    "hy_v3": (transformers.HYV3Config, transformers.HYV3ForCausalLM),
    "gpt_oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM),
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
    config = dict(bos_token_id=1, eos_token_id=2, max_position_embeddings=256)
    config.update(variant)
    own = {key: config.pop(key, default) for key, default in
           dict(dtype="float32", layout="classic", shard="1GB", generation=None, coded=None, fp8_block_rows=128,
                gguf={}).items()}
    return config.pop("family"), config, own


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


def read_tensors(folder):
    """Returns all tensors of a model folder: {name: tensor}."""
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors.update(safetensors.torch.load_file(path))
    return tensors


def load(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()


def write_model(folder, variant, seed):
    """Writes the model files of a variant; returns the model read back with f32 weights, and the variant's options."""
    family, keys, own = split_variant(variant)
    config_class, model_class = FAMILIES[family]
    shutil.rmtree(folder, ignore_errors=True)
    model = model_class(config_class(**keys))
    dtype = getattr(torch, own["dtype"])
    copy.deepcopy(model).to(dtype).save_pretrained(folder, max_shard_size=own["shard"])
    weights.randomize(folder, seed)
    if own["layout"] == "classic":
        path = folder / "config.json"
        config = classic_config(json.loads(path.read_text()), family)
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
    # The config as it is written must mean the model that it was made of.
    model.eval().set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    model.load_state_dict(loaded.state_dict())
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded(ids).logits), folder.name
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
            if isinstance(output, tuple):
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
        block = next(getattr(layer, name) for name in ("mlp", "block_sparse_moe", "ffn") if hasattr(layer, name))
        router = getattr(block, "gate", None) or getattr(block, "router", None)
        if router is not None:
            handles.append(router.register_forward_hook(hook_for(index, block)))
    logits = model(ids, use_cache=False).logits.float()
    for handle in handles:
        handle.remove()
    return logits, routing


def decoder(model):
    """Returns the layers of a model."""
    return model.model.layers if hasattr(model, "model") else model.transformer.blocks


def selection_keys(block, router, logits):
    """Returns the values whose largest choose the experts: logits, or scores with biases; -inf in rejected groups."""
    if hasattr(router, "moe_statics"):
        # Softmax scores lie closer together than logits.
        return 10 * (logits.softmax(-1) + router.moe_statics.e_score_correction_bias.squeeze())
    bias = getattr(router, "e_score_correction_bias", getattr(block, "e_score_correction_bias", None))
    keys = logits if bias is None else logits.sigmoid() + bias
    if not hasattr(router, "num_group") or getattr(router, "topk_method", "") == "greedy":
        return keys
    groups = keys.view(*keys.shape[:-1], router.num_group, -1)
    scores = groups.amax(-1) if bias is None else groups.topk(2, dim=-1).values.sum(-1)
    chosen = scores.topk(router.topk_group, dim=-1).indices
    mask = torch.ones(groups.shape[:-1], dtype=torch.bool).scatter(-1, chosen, False)
    return groups.masked_fill(mask[..., None], -torch.inf).flatten(-2)


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
    all tokens. It is negative if this model does not choose by selection_keys().
    """
    length = prompts.shape[1]
    logits, routing = forward(model, torch.cat([prompts, new[:, :-1]], dim=1))
    logits = logits[:, length - 1:]
    top = logits.topk(2, dim=-1).values
    margin = (top[..., 0] - top[..., 1]) / (logits.amax(-1) - logits.amin(-1))
    margin[logits.argmax(-1) != new] = -1.0
    router_margins = []
    for router, _weights, experts in routing.values():
        is_chosen = torch.zeros(router.shape, dtype=torch.bool).scatter(-1, experts, True)
        gaps = router.masked_fill(~is_chosen, torch.inf).amin(-1) - router.masked_fill(is_chosen, -torch.inf).amax(-1)
        router_margins.append(gaps.amin(-1))
    return margin.amin(-1), torch.stack(router_margins).amin(0)


def find_prompt(model, length, generator, min_router_margin):
    """Searches for a prompt of the given length clear of ties; the widest of a batch wins.

    Returns (prompt [length], continuation [NUM_NEW], margins as (logit, router)) or None.
    """
    vocab = model.config.vocab_size
    for _ in range(BATCHES):
        prompts = torch.randint(3, vocab, (BATCH, length), generator=generator)
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
        for length in PROMPT_LENGTHS:
            found.append(find_prompt(model, length, generator,
                                     MIN_ROUTER_MARGIN if own["dtype"] != "bfloat16" else MIN_ROUTER_MARGIN_BF16))
            if found[-1] is None:
                break
        if None not in found and rounding(folder, model, [prompt for prompt, _, _ in found]) > MAX_ROUNDING:
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
        tensors[f"logits.{i}"] = logits[0]
        for layer, (_router, factors, experts) in routing.items():
            assert (factors.diff(dim=-1) <= 0).all()
            tensors[f"routing.{i}.{layer}"] = experts[0].float()
            tensors[f"routing_weights.{i}.{layer}"] = factors[0]
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
