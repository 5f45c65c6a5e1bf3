"""Tests of rows P: the file of a predictor (--predictor sida:FILE). See bad_inputs.py."""
import json
import os
import random
import struct

import tiny_model

DIM = 3


def parts(layers=tiny_model.NUM_LAYERS, experts=tiny_model.NUM_EXPERTS, vocab=tiny_model.VOCAB_SIZE):
    """Returns name -> (dtype, shape, bytes) of a network with random weights."""
    rng = random.Random(5)
    shapes = {"table": [vocab, DIM], "attention.query": [DIM, DIM], "output.weight": [layers, experts, DIM],
              "output.bias": [layers, experts]}
    for layer in range(2):
        shapes |= {f"lstm.{layer}.input": [4 * DIM, DIM], f"lstm.{layer}.hidden": [4 * DIM, DIM],
                   f"lstm.{layer}.bias": [4 * DIM]}
    out = {}
    for name, shape in shapes.items():
        count = tiny_model.num_values(shape)
        out[name] = ("F32", shape, struct.pack(f"<{count}f", *(rng.uniform(-1, 1) for _ in range(count))))
    return out


def model_of(box):
    """Returns the folder of the box's tiny model, which is made once."""
    return box.path("model") if os.path.isdir(box.path("model")) else box.model().path


def network(fingerprint, tensors, **metadata):
    header, data = tiny_model.layout(tensors)
    header["__metadata__"] = {"format": "penstock sida 1", "window": "4", "fingerprint": fingerprint, **metadata}
    return tiny_model.file_bytes(header, data)


def fingerprint_of(box):
    """Returns the fingerprint of the tiny model, as a trace with tokens has it."""
    trace = box.output("fingerprint.bin")
    box.run(["generate", "--model", model_of(box), "--prompt=hi", "--raw", "--max-tokens=2", "--schedule=on-demand",
             "--record-routing", trace, "--record-scores"])
    with open(trace, "rb") as file:
        return file.read()[43:75].decode()


def predicting(box, content, code=3, match=None, name="network.safetensors"):
    path = box.file(name, content)
    return box.run(["generate", "--model", model_of(box), "--prompt=the a", "--raw", "--max-tokens=8", "--seed=1",
                    "--schedule=hybrid", f"--predictor=sida:{path}"], code=code, match=match)


def cases():
    def answers_as_without(box):
        content = network(fingerprint_of(box), parts())
        box.expect(predicting(box, content, code=0).stdout ==
                   box.run(["generate", "--model", model_of(box), "--prompt=the a", "--raw", "--max-tokens=8",
                            "--seed=1", "--schedule=on-demand"]).stdout, "another answer")
        policy = box.file("policy.json",
                          json.dumps({"predictor": f"sida:{box.file('n', content)}", "schedule": "hybrid"}))
        box.run(["generate", "--model", model_of(box), "--prompt=hi", "--raw", "--max-tokens=2", "--policy", policy])
    yield "P1", "a good network", answers_as_without

    def spoilt(change, match):
        def run(box):
            tensors = parts()
            change(tensors)
            predicting(box, network(fingerprint_of(box), tensors), match=match)
        return run

    def set_last(name, value):
        def change(tensors):
            dtype, shape, content = tensors[name]
            tensors[name] = (dtype, shape, content[:-4] + struct.pack("<f", value))
        return change
    for value in (float("nan"), float("inf"), 1e30):
        yield "P1", f"a weight of {value}", spoilt(set_last("lstm.1.hidden", value),
                                                   "'lstm.1.hidden': expected values within")
    yield "P1", "no table", spoilt(lambda t: t.pop("table"), "tensor 'table' is missing")
    yield "P1", "f16", spoilt(lambda t: t.update(table=("F16", [600, DIM], t["table"][2])), "expected F32, found")
    yield "P1", "a bias too long", spoilt(lambda t: t.update({"lstm.0.bias": ("F32", [13], bytes(52))}),
                                          "'lstm.0.bias': expected shape \\[12\\], found \\[13\\]")
    yield "P1", "no layers", spoilt(lambda t: t.update({"output.weight": ("F32", [0, 4, DIM], b"")}), "layers: expected 1")
    for name, other in (("layers", {"layers": 3}), ("experts", {"experts": 5}), ("tokens", {"vocab": 299})):
        yield "P1", f"of a model with other {name}", lambda box, other=other: predicting(
            box, network(fingerprint_of(box), parts(**other)), match="a predictor for .*, and the model has")
    yield "P1", "of a fine-tune", lambda box: predicting(box, network("0" * 32, parts()),
                                                         match="for another model: expected fingerprint [0-9a-f]{32}")
    for key, value, match in (("format", "penstock sida 2", "format: expected"), ("window", "0", "window: expected 1"),
                              ("window", "9" * 30, "window"), ("fingerprint", "x", "fingerprint: expected 32")):
        yield "P1", f"{key} {value}", lambda box, key=key, value=value, match=match: predicting(
            box, network(**{"fingerprint": "0" * 32, "tensors": parts(), key: value}), match=match)
    whole = network("0" * 32, parts())
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        yield "P1", f"cut after {size} bytes", lambda box, size=size: predicting(box, whole[:size])
    yield "P1", "a huge header", lambda box: predicting(box, tiny_model.file_bytes(b"{" + b" " * (1 << 17) + b"}", b""),
                                                        match="more than the 65536 of a predictor")
    yield "P1", "words", lambda box: predicting(box, "words, words, words", match="network.safetensors")
    run = ["generate", "--model", "x", "--prompt=hi"]
    yield "P2", "no file", lambda box: box.run([*run, "--predictor=sida"], code=2, match="give the file.*sida:FILE")
    yield "P2", "an empty file name", lambda box: box.run([*run, "--predictor=sida:"], code=2, match="sida:FILE")
    yield "P2", "an unknown mode", lambda box: box.run([*run, "--predictor=sida:x,mode=both"], code=2,
                                                       match="prefetch or replace")
    yield "P2", "a file for another", lambda box: box.run([*run, "--predictor=gate:x"], code=2, match="gate: it has no file")
    yield "P2", "not there", lambda box: box.run(["generate", "--model", model_of(box), "--prompt=hi", "--schedule=hybrid",
                                                  "--predictor=sida:/nowhere/net"], code=5, match="/nowhere/net")
    yield "P2", "a folder", lambda box: box.run(["generate", "--model", model_of(box), "--prompt=hi", "--schedule=hybrid",
                                                 "--predictor=sida:/"], code=5, match="expected a regular file")
    yield "P2", "made-up requests", lambda box: box.run(
        ["simulate", "--model", model_of(box), "--hardware=none:dram=1GiB", "--workload=prompt=8,gen=4",
         "--schedule=hybrid", f"--predictor=sida:{box.file('net', network(fingerprint_of(box), parts()))}"], code=2,
        match="predictor sida: simulated requests have no tokens")

    def replays(box):
        net = box.file("net", network(fingerprint_of(box), parts()))
        model, trace, plain = model_of(box), box.output("trace.bin"), box.output("plain.bin")
        run = ["generate", "--model", model, "--prompt=the a in", "--raw", "--max-tokens=6", "--seed=1", "--threads=1"]
        box.run([*run, "--schedule=on-demand", "--record-routing", trace, "--record-scores"])
        box.run([*run, "--record-routing", plain])
        replay = ["bench", "routing", "--model", model, "--threads=1", "--room=50", f"--predictor=sida:{net}", "--json",
                  "--hardware=none:dram=1GiB"]
        lines = [json.loads(line) for line in box.run([*replay, "--routing", trace]).stdout.splitlines()]
        named = {line["predictor"]: line for line in lines[0]["named"]}
        box.expect(len(named["sida"]["before_step"]) == tiny_model.NUM_LAYERS, f"names no layers: {named}")
        box.expect(named["gate"]["before_step"] == [], "gates named experts before the step")
        box.expect(any(line.get("predictor") == "sida" and not line["winner"] for line in lines[1:]), "sida did not run")
        box.run([*replay, "--routing", plain], code=4, match="predictor sida needs a trace with tokens")
    yield "P2", "a trace without tokens", replays
