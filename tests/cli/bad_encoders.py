"""Tests of rows E: commands and requests with an encoder-decoder model (Switch Transformers). See bad_inputs.py."""
import json
import os
import random
import struct

import bad_predictors
import tiny_model

LAYERS, MOE_LAYERS = 2, 4    # of each stack, all with experts; of both


def config():
    return {"architectures": ["SwitchTransformersForConditionalGeneration"], "vocab_size": tiny_model.VOCAB_SIZE,
            "d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2, "num_layers": LAYERS, "num_decoder_layers": LAYERS,
            "num_sparse_encoder_layers": LAYERS, "num_sparse_decoder_layers": LAYERS, "num_experts": 4,
            "expert_capacity": 3, "dense_act_fn": "relu", "eos_token_id": tiny_model.FIRST_SPECIAL_ID + 1}


def shapes():
    """Returns name -> shape of every tensor of the model."""
    out = {"shared.weight": [tiny_model.VOCAB_SIZE, 16]}
    for stack, others in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        out[f"{stack}.final_layer_norm.weight"] = [16]
        out[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = [32, 2]
        for block in range(LAYERS):
            prefix = f"{stack}.block.{block}.layer."
            for i, attention in enumerate(others):
                out[f"{prefix}{i}.layer_norm.weight"] = [16]
                for name in "qkvo":
                    out[f"{prefix}{i}.{attention}.{name}.weight"] = [16, 16]
            ffn = f"{prefix}{len(others)}."
            out[ffn + "layer_norm.weight"] = [16]
            out[ffn + "mlp.router.classifier.weight"] = [4, 16]
            for expert in range(4):
                for name in ("wi", "wo"):
                    out[f"{ffn}mlp.experts.expert_{expert}.{name}.weight"] = [16, 16]
    return out


def model_of(box):
    """Returns the folder of the box's encoder-decoder model, which is made once."""
    if os.path.isdir(box.path("model")):
        return box.path("model")
    folder = box.model()
    rng = random.Random(7)
    tensors = {}
    for name, shape in shapes().items():
        count = tiny_model.num_values(shape)
        tensors[name] = ("F32", shape, struct.pack(f"<{count}f", *(rng.uniform(-0.5, 0.5) for _ in range(count))))
    folder.write(tiny_model.SHARD, tiny_model.file_bytes(*tiny_model.layout(tensors)))
    folder.write("config.json", json.dumps(config()))
    return folder.path


def lines_of(*requests):
    return "".join(json.dumps({"id": str(i), **request}) + "\n" for i, request in enumerate(requests))


def job(box, requests, *flags, code=0, match=None):
    """Runs a job; returns its results by id."""
    output = box.output("out.jsonl")
    for path in (output, output + ".manifest.json"):
        if os.path.exists(path):
            os.remove(path)
    box.run(["run", "--model", model_of(box), "--input", box.file("in.jsonl", lines_of(*requests)), "--output", output,
             *flags], code=code, match=match)
    if not os.path.exists(output):
        return {}
    with open(output) as file:
        return {result["id"]: result for result in map(json.loads, file)}


def measured(box):
    """Commands that measure the machine with the model, or use what was measured."""
    model = model_of(box)
    source = box.file("auto.jsonl", lines_of({"prompt": "the", "max_tokens": 3}))
    with box.own_cache() as own:
        box.run(["probe", "--seconds=1", "--model", model], max_rss=1400 << 20, env=own)
        box.run(["plan", "--model", model, "--workload", "prompt=20,gen=4"], max_rss=1400 << 20, env=own)
        box.run(["run", "--model", model, "--input", source, "--output", box.output("auto.out"), "--policy", "auto"],
                max_rss=1400 << 20, env=own)
        box.run(["bench", "--model", model, "--prefill=40", "--decode=2", "--context=20"], env=own)


def answers(box):
    good = [{"prompt": "the a", "max_tokens": 4}, {"prompt": "in", "choices": [" the", "a", "the in a"], "label": 1},
            {"prompt": [5, 6], "max_tokens": 3, "n": 2, "temperature": 0.8}]
    expected = job(box, good)
    box.expect(all("error" not in result or result["error"] is None for result in expected.values()), "an error")
    for flags in (["--schedule=klotski", "--batch-size=1"], ["--schedule=zigzag", "--batch-size=3"],
                  ["--schedule=cgopipe", "--device=emulated", "--gpu-memory=64MiB"]):
        box.expect(job(box, good, *flags) == expected, f"another answer with {flags}")


def replacing(box):
    model_of(box)
    fingerprint = bad_predictors.fingerprint_of(box)
    path = box.file("net", bad_predictors.network(fingerprint, bad_predictors.parts(layers=MOE_LAYERS)))
    good = [{"prompt": "the a in", "max_tokens": 5, "ignore_eos": True}]
    routers = job(box, good)
    replace = f"--predictor=sida:{path},mode=replace"
    box.expect(job(box, good, "--schedule=hybrid", f"--predictor=sida:{path}") == routers, "predictions change answers")
    box.expect(job(box, good, "--schedule=hybrid", replace) != routers, "the routers still choose")
    fixed = box.file("fixed.json", json.dumps({"schedule": "hybrid", "hybrid_rule": "fixed"}))
    job(box, good, "--policy", fixed, replace, code=2, match="the fixed mapping of hybrid has no predictor")
    job(box, good, replace, "--schedule=klotski", code=2, match="only schedule hybrid")
    job(box, good, replace, "--schedule=hybrid", "--record-routing", box.output("r"), "--record-scores", code=2,
        match="leaves the routers out")
    box.run(["bench", "routing", "--model", model_of(box), "--text", box.file("t.txt", "the " * 400), replace], code=2,
            match="replays what routers chose")


def cases():
    yield "E1", "probe, plan, bench, policy auto", measured
    yield "E1", "answers", answers
    yield "E1", "a network in place of the routers", replacing

    def command(arguments, match, code=2):
        return lambda box: box.run([arguments[0], "--model", model_of(box), *arguments[1:]], code=code, match=match)
    generate = ["generate", "--prompt=the", "--max-tokens=2"]
    yield "E2", "a window", command([*generate, "--attention-window=64"], "every token sees the whole prompt")
    yield "E2", "a huge context", command([*generate, "--context-length=100000"], "reads a prompt at once, at most")
    yield "E2", "a system message", command([*generate, "--system=hi"], "have no chats")
    yield "E2", "perplexity", lambda box: box.run(
        ["perplexity", "--model", model_of(box), "--text", box.file("t.txt", "the in the a")], code=4,
        match="have an encoder")
    yield "E2", "bench routing", lambda box: box.run(
        ["bench", "routing", "--model", model_of(box), "--text", box.file("t.txt", "the " * 400)], code=2,
        match="cannot be replayed")

    def line(request, match, *flags):
        def run(box):
            result = job(box, [request], *flags, code=8)
            box.expect(match in json.dumps(result), f"expected '{match}' in {result}")
            checked = box.run(["run", "--model", model_of(box), "--input", box.path("in.jsonl"), "--validate-only"], code=8)
            box.expect(match in checked.stdout.decode(), f"expected '{match}' in {checked.stdout}")
        return run
    yield "E3", "prompt_logprobs", line({"prompt": "the", "prompt_logprobs": 1, "max_tokens": 1},
                                        "an encoder reads the prompt")
    yield "E3", "too long", line({"prompt": [5] * 511, "max_tokens": 1},
                                 "the prompt has 511 tokens, and with 2 of the decoder")
