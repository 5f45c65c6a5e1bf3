"""Tests of rows C: config.json and generation_config.json. See bad_inputs.py."""
import json

import tiny_model
from bad_shards import spoiled

CONFIG, GENERATION = "config.json", "generation_config.json"
TIED = "lm_head.weight"


def text(content, pattern):
    return spoiled(lambda model: model.write(CONFIG, content), pattern)


def fields(values, pattern, code=3):
    """Returns config.json with `values` in place of its own; None removes a field."""
    def edit(config):
        config.update(values)
        return {key: value for key, value in config.items() if value is not None}
    return spoiled(lambda model: model.edit_json(CONFIG, edit), pattern, code=code)


def literal(field, json_text, pattern, code=3):
    """A field with a JSON text of its own."""
    def spoil(model):
        config = {**tiny_model.config(), field: "@"}
        model.write(CONFIG, json.dumps(config).replace('"@"', json_text))
    return spoiled(spoil, pattern, code=code)


def generation(content, pattern, code=3):
    content = content if isinstance(content, str) else json.dumps(content)
    return spoiled(lambda model: model.write(GENERATION, content), pattern, code=code)


def syntax_rows():
    good = json.dumps(tiny_model.config(), indent=1)
    place = r"config\.json: line \d+, column \d+: "
    yield "C1", "missing", spoiled(lambda model: model.remove(CONFIG), "no file 'config.json'")
    for name, content in (("empty", ""), ("blank", " \n"), ("// comment", good.replace("{", "{ // x\n", 1)),
                          ("/* comment", "/* x */" + good), ("# comment", "# x\n" + good),
                          ("single quotes", good.replace('"', "'")), ("trailing comma", good[:-2] + ",\n}"),
                          ("cut", good[:-30]), ("two documents", good + good), ("byte-order mark", "\ufeff" + good),
                          ("nan", good.replace("10000.0", "nan")), ("1e999", good.replace("10000.0", "1e999")),
                          ("field twice", good.replace("{", '{"vocab_size": 300,', 1)),
                          ("nested 100000 deep", '{"x": ' + "[" * 100_000), ("NUL", "\0" * 100),
                          ("UTF-16", good.encode("utf-16")), ("not UTF-8", good.encode().replace(b"silu", b"\xff\xfe"))):
        yield "C1", name, text(content, place)
    for name, content in (("array", "[]"), ("string", '"x"'), ("number", "7"), ("null", "null")):
        yield "C1", name, text(content, r"config\.json: expected an object, found ")
    yield "C1", "5 MB", text(good + " " * (5 << 20), "more than the limit of 4.00 MiB")
    yield "C2", "unknown architecture", fields({"architectures": ["LlamaForCausalLM"]},
                                               "'LlamaForCausalLM' is not supported")
    for name, value in (("no", None), ("empty", []), ("string", "MixtralForCausalLM"), ("number in", [7]),
                        ("null in", [[]])):
        yield "C2", f"{name} architectures", fields({"architectures": value}, "'architectures': expected a list with one of")
    yield "C2", "auto_map", fields({"auto_map": {"AutoModelForCausalLM": "modeling.Evil"}}, "custom code is never run")
    yield "C2", "auto_map and unknown", fields({"auto_map": {}, "architectures": ["X"]}, "custom code is never run")
    yield "C2", "control characters", fields({"architectures": ["a\nb\x1b[31m"]}, r"a\\nb.*is not supported")


def value_rows():
    for field in ("vocab_size", "num_hidden_layers", "num_attention_heads"):
        for name, value in (("string", "32"), ("negative", -1), ("zero", 0), ("1e308", 1e308), ("2^53+1", (1 << 53) + 1),
                            ("2^63", 1 << 63), ("2^64", 1 << 64), ("fraction", 2.5), ("float", 32.0), ("true", True),
                            ("array", [32]), ("object", {}), ("missing", None)):
            yield "C3", f"{field} {name}", fields({field: value}, f"field '{field}': expected an integer from 1 to")
    for field in ("hidden_size", "num_key_value_heads", "head_dim", "num_local_experts", "num_experts_per_tok",
                  "intermediate_size", "max_position_embeddings", "sliding_window"):
        for name, value in (("string", "32"), ("negative", -1), ("huge", 1 << 40)):
            yield "C3", f"{field} {name}", fields({field: value}, f"field '{field}': expected an integer from 1 to")
    for field, values in (("rms_norm_eps", ("x", -1, 1e308, [])), ("rope_theta", ("x", -1, 0, 1e308, {})),
                          ("tie_word_embeddings", ("true", 1)), ("hidden_act", ("gelu", 7)), ("rope_scaling", ("x", 7))):
        for value in values:
            yield "C3", f"{field} {value!r}", fields({field: value}, f"field '{field}': expected")
    for word in ("NaN", "Infinity", "-Infinity"):
        yield "C3", f"vocab_size {word}", literal("vocab_size", word, "field 'vocab_size': expected an integer")
        yield "C3", f"rope_theta {word}", literal("rope_theta", word, "field 'rope_theta': expected a number")
        yield "C3", f"{word} as a key", literal("x", "{" + word + ": 1}", r"line \d+, column \d+")
        yield "C3", f"unread {word}", literal("time_step_limit", f"[0.0, {word}]", None, code=0)
    yield "C3", "vocab_size 4e2", literal("vocab_size", "3e2", "field 'vocab_size': expected an integer")
    yield "C3", "long value", fields({"vocab_size": "x" * 100_000}, r"found string \"x{40,60}")

    yield "C4", "more experts per token than experts", fields({"num_experts_per_tok": 5},
                                                              "num_experts_per_tok 5 is more than .* 4")
    yield "C4", "KV heads", fields({"num_attention_heads": 2, "num_key_value_heads": 3},
                                   "num_attention_heads 2 is not a multiple of num_key_value_heads 3")
    yield "C4", "heads and no head_dim", fields({"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": None},
                                                "hidden_size 16 is not a multiple of num_attention_heads 3")
    yield "C4", "heads too wide", fields({"num_attention_heads": 512, "num_key_value_heads": 512, "head_dim": 1024},
                                         "512 heads of 1024 dims: expected at most 131072 in total")
    yield "C4", "odd head_dim", fields({"head_dim": 7}, "head_dim 7 must be even")
    for field in ("rope_scaling", "rope_parameters"):
        for key in ("type", "rope_type"):
            yield "C4", f"{field} {key}", fields({field: {key: "ntk", "factor": 4.0}}, "rope type default.* found 'ntk'")
            yield "C4", f"{field} {key} yarn", fields({field: {key: "yarn", "factor": -4.0}}, "factor")
            yield "C4", f"{field} {key} longrope", fields({field: {key: "longrope", "long_factor": [1, 2]}}, "short_factor")
        yield "C4", f"{field} theta", fields({field: {"rope_type": "default", "rope_theta": -1}}, "rope_theta")
    yield "C4", "part of a head", fields({"partial_rotary_factor": 0.5},
                                         "'partial_rotary_factor': expected 1 in this family")
    yield "C4", "head_dim differs from the tensors", fields({"head_dim": 4}, "q_proj.weight has shape")


def relation_rows():
    yield "C5", "vocab_size above the rows", fields({"vocab_size": 301},
                                                    r"embed_tokens.weight has shape \[300, 16\], expected \[301, 16\]")
    yield "C5", "vocab_size below the rows", fields({"vocab_size": 299}, r"expected \[299, 16\]")
    # The documented rule: with tied embeddings, an lm_head in the file is ignored, and may be absent.
    yield "C5", "tied with lm_head", fields({"tie_word_embeddings": True}, None, code=0)

    def tied(model):
        model.edit_json(CONFIG, lambda config: config.update(tie_word_embeddings=True))
        model.edit_tensors(lambda parts: parts.pop(TIED))
    yield "C5", "tied without lm_head", spoiled(tied, None, code=0)
    yield "C5", "not tied without lm_head", spoiled(lambda model: model.edit_tensors(lambda parts: parts.pop(TIED)),
                                                    rf"{TIED} is missing \(in all 1\)")
    method = "'quant_method': expected 'fp8', 'mxfp4', 'compressed-tensors', 'gptq', 'awq', 'auto-round' or 'modelopt'"
    awq = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    modelopt = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    weights = {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}

    def compressed(form="pack-quantized", **changes):
        return {"quant_method": "compressed-tensors", "format": form,
                "config_groups": {"group_0": {"weights": dict(weights, **changes)}}}
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    for name, value, pattern in (
            ("hqq", {"quant_method": "hqq", "bits": 4}, method), ("empty", {}, method),
            ("awq of 8 bits", dict(awq, bits=8), "'bits': expected 4, found 8"),
            ("awq without zero points", dict(awq, zero_point=False), "'zero_point': expected true, found false"),
            ("awq in another order", dict(awq, version="gemv"), "'version': expected 'gemm', found 'gemv'"),
            ("modelopt without codes", {"quant_method": "modelopt"},
             "'quant_algo': expected 'NVFP4', 'W4A16_NVFP4' or 'FP8'"),
            ("modelopt with scales of inputs", dict(modelopt, quant_algo="NVFP4_AWQ"), "found 'NVFP4_AWQ'"),
            ("gptq of 3 bits", dict(gptq, bits=3), "'bits': expected 4 or 8, found 3"),
            ("gptq without bits", {"quant_method": "gptq"}, "'bits': expected an integer"),
            ("gptq of 8 bits with zero points", dict(gptq, bits=8, sym=False), "'sym': expected true, found false"),
            ("gptq in another layout", dict(gptq, checkpoint_format="marlin"),
             "'checkpoint_format': expected 'gptq' or 'gptq_v2', found 'marlin'"),
            ("gptq with groups of 20", dict(gptq, group_size=20), "'group_size': expected -1 or a multiple of 32, found 20"),
            ("autoround with zero points", dict(gptq, quant_method="auto-round", sym=False),
             "'sym': expected true, found false"),
            ("autoround in another form", dict(gptq, quant_method="auto-round", packing_format="auto_round:exllamav2"),
             "'packing_format': expected 'auto_round:auto_gptq' or 'auto_round:auto_awq'"),
            ("compressed in 3 bits", compressed(num_bits=3), "weights: field 'num_bits': expected 4 or 8, found 3"),
            ("compressed in 8 bits with zero points", compressed(num_bits=8, symmetric=False),
             "'symmetric': expected true, found false"),
            ("compressed nvfp4 in groups of 32", compressed(form="nvfp4-pack-quantized"),
             "'group_size': expected 16, found 32"),
            ("compressed mxfp4 of 8 bits", compressed(form="mxfp4-pack-quantized", num_bits=8),
             "'num_bits': expected 4, found 8"),
            ("compressed in another order", compressed(actorder="dynamic"),
             "'actorder': expected null, 'weight' or 'static'"),
            ("compressed in another form", compressed(form="int-quantized"), "'format': expected 'pack-quantized'"),
            ("compressed without groups", {"quant_method": "compressed-tensors", "format": "pack-quantized"},
             "'config_groups': expected an object with one group, found nothing"),
            ("compressed fp8 in groups", compressed(form="float-quantized", num_bits=8),
             "'strategy': expected 'tensor', 'channel' or 'block', found 'group'"),
            ("number", 5, "expected an object"),
            ("method 8", {"quant_method": 8}, "'quant_method': expected a string"),
            ("no block", {"quant_method": "fp8"}, r"'weight_block_size': expected \[rows, 128\], found nothing"),
            ("block of 64", dict(fp8, weight_block_size=[128, 64]), r"expected \[rows, 128\], found \[128,64\]"),
            ("block of 0", dict(fp8, weight_block_size=[0, 128]), r"expected \[rows, 128\]"),
            ("block of 3 dims", dict(fp8, weight_block_size=[1, 1, 128]), r"expected \[rows, 128\]"),
            ("e5m2", dict(fp8, fmt="e5m2"), "'fmt': expected 'e4m3', found 'e5m2'")):
        yield "C6", f"quantization_config {name}", fields({"quantization_config": value}, pattern)
    for value in (fp8, {"quant_method": "mxfp4"}, gptq, dict(gptq, desc_act=True, static_groups=True),
                  dict(gptq, desc_act=True, group_size=-1, sym=False, checkpoint_format="gptq_v2"), awq, modelopt,
                  dict(modelopt, quant_algo="FP8"),
                  dict(awq, quant_method="auto-round", packing_format="auto_round:auto_awq"),
                  compressed(), compressed(symmetric=False), compressed(num_bits=8),
                  compressed("nvfp4-pack-quantized", group_size=16), compressed("mxfp4-pack-quantized")):
        yield "C6", f"{json.dumps(value)} without codes", fields({"quantization_config": value}, None, code=0)

    def modelopts(content, pattern, code=3):
        return spoiled(lambda model: model.write("hf_quant_config.json", content), pattern, code=code)
    yield "C6", "modelopt's file without codes", modelopts('{"quantization": {"quant_algo": "NVFP4"}}', None, code=0)
    yield "C6", "modelopt's file of another kind", modelopts('{"quantization": {"quant_algo": "NVFP4_AWQ"}}',
                                                             "hf_quant_config.json: .*'quant_algo': expected 'NVFP4'")
    yield "C6", "modelopt's file without an object", modelopts("[1]", "hf_quant_config.json: field 'quantization'")

    def coded(pattern, config=fp8, scale=("F32", [1, 1], b"\0\0\x80\x3f"), code=3):
        """Stores one matrix in FP8."""
        matrix = "model.layers.1.self_attn.o_proj.weight"

        def spoil(model):
            parts = {matrix: ("F8_E4M3", [16, 16], bytes(range(56)) * 4 + b"\x38" * 32)}
            if scale is not None:
                parts[matrix + "_scale_inv"] = scale
            model.edit_tensors(lambda all_parts: all_parts.update(parts))
            model.edit_json(CONFIG, lambda all_fields: all_fields.update(quantization_config=config))
        return spoiled(spoil, pattern, code=code)
    yield "C6", "fp8", coded(None, code=0)
    yield "C6", "fp8 without scales", coded("o_proj.weight_scale_inv is missing", scale=None)
    yield "C6", "fp8 with scales of another shape", coded(r"scale_inv has shape \[1, 2\], expected \[1, 1\]",
                                                          scale=("F32", [1, 2], b"\0" * 8))
    yield "C6", "fp8 with scales of bytes", coded("scale_inv has dtype u8, expected a float", scale=("U8", [1, 1], b"\1"))
    yield "C6", "fp8 that no config names", coded(r"has codes \(f8_e4m3\) and no scales", config=None)
    yield "C6", "fp8 in a model of MXFP4", coded(r"has codes \(f8_e4m3\) and no scales", config={"quant_method": "mxfp4"})

    def quantised(model):
        norm = "model.norm.weight"
        model.edit_tensors(lambda parts: parts.update({norm: ("U8", [16], b"\0" * 16)}))
    yield "C6", "a tensor of bytes", spoiled(quantised, r"model.norm.weight has codes \(u8\) and no scales")

    for name, value in (("list", [5, 7]), ("empty list", []), ("absent", None), ("last id", 299)):
        yield "C7", f"eos {name}", fields({"eos_token_id": value}, None, code=0)
    yield "C7", "eos null", spoiled(lambda model: model.edit_json(CONFIG, lambda config: config.update(eos_token_id=None)),
                                    None, code=0)
    for name, value in (("vocab_size", 300), ("-1", -1), ("2^40", 1 << 40), ("string", "</s>"), ("in a list", [1, 300]),
                        ("nested", [[1]]), ("float", 1.5), ("true", True)):
        yield "C7", f"eos {name}", fields({"eos_token_id": value}, "'eos_token_id': expected token ids from 0 to 299")
        yield "C7", f"generation eos {name}", generation({"eos_token_id": value},
                                                         "generation_config.json: field 'eos_token_id': expected token ids")
    for name, value in (("temperature", -1), ("temperature", "hot"), ("top_k", -5), ("top_k", 1.5), ("top_p", 2),
                        ("min_p", -1),
                        ("repetition_penalty", 0), ("do_sample", "yes")):
        yield "C7", f"generation {name} {value}", generation({name: value}, f"generation_config.json: field '{name}'")
    yield "C7", "generation syntax", generation("{,}", r"generation_config.json: line 1, column \d+")
    yield "C7", "generation array", generation("[]", "expected an object")
    yield "C7", "generation empty object", generation("{}", None, code=0)

    yield "C8", "Qwen3-MoE", fields({"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4,
                                     "moe_intermediate_size": 16},
                                    "tensors do not fit config.json: .*is missing.*config.json belong to another model")
    yield "C8", "OLMoE", fields({"architectures": ["OlmoeForCausalLM"], "num_experts": 4}, "q_norm.weight is missing")
    yield "C8", "other dims", fields({"hidden_size": 32}, r"embed_tokens.weight has shape \[300, 16\], expected \[300, 32\]")
    yield "C8", "fewer layers", fields({"num_hidden_layers": 1}, r"model.layers.1.* is not part of .*\(in all 19\)")
    yield "C8", "more layers", fields({"num_hidden_layers": 3}, r"model.layers.2.* is missing.*\(in all 19\)")
    yield "C8", "most layers and experts", fields({"num_hidden_layers": 1024, "num_local_experts": 4096},
                                                  r"is missing.*in all")


def cases():
    yield from syntax_rows()
    yield from value_rows()
    yield from relation_rows()
