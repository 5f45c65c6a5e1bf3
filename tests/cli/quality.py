#!/usr/bin/env python3
"""Proves that `quality` measures what quantising costs: nothing for the model itself, more with fewer bits, the numbers
that `perplexity` and the log-probabilities give, answers in a form and calls of tools, and a refusal of models whose tokens
differ."""
import argparse
import json
import pathlib
import re
import shutil
import tempfile

import program

TEXT = "The old man walked down to the river. He looked at the water for a long time, and then he went home. " * 8

CALIBRATION = (
    "Once upon a time there was a little girl who lived in a great house at the edge of the forest. Every morning she "
    "went to the window, and looked over the hills to see whether her father was coming home. \"He will come when the "
    "snow is gone,\" said her nurse, who sat by the fire and knitted. But the girl was not content to wait. She put on "
    "her cloak and her boots, took a lantern from the hall, and stepped out into the cold. Nobody saw her but the cat. "
    "The old king had three sons, of whom the youngest was thought to be a fool. Mr. Brown was a gentleman of good "
    "fortune, who had been for many years in the habit of dining with the Colonel on Sundays. ") * 8


def check_progress(penstock, text):
    """A file gets the last line of the progress, and a line every ten seconds; a quiet command writes none."""
    command = ("perplexity", "--model", program.DEMO_MODEL, "--text", text, "--context-length", 8)
    lines = penstock.run(*command).stderr.splitlines()
    found = [line for line in lines if "windows" in line]
    num_windows = int(re.search(r" (\d+)/\1 windows, perplexity [0-9.]+, [0-9.]+ prompt tokens/s", found[-1])[1])
    assert num_windows > 20 and len(found) < num_windows / 2, lines
    assert penstock.run(*command, "--quiet").stderr == ""


TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}<tools>{{ tool | tojson }}</tools>{% endfor %}For each function call return "
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    "{% for message in messages %}{{ message['content'] }}{% endfor %}")


def check_tool_calls(quality, folder):
    """An answer that calls a tool counts, another one does not. One token of this model is a whole call."""
    model = folder / "calls"
    shutil.copytree(program.DEMO_MODEL, model)
    config = json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TOOL_TEMPLATE}), encoding="utf-8")
    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    longest = max(vocabulary, key=len)
    token_id = vocabulary.pop(longest)
    call = '<tool_call>\n{"name": "rain", "arguments": {"place": "Bergen"}}\n</tool_call>'
    vocabulary[call.replace(" ", "\u0120").replace("\n", "\u010a")] = token_id
    tokenizer["model"]["merges"] = []
    (model / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")

    parameters = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
    other = {"type": "object", "properties": {"place": {"type": "integer"}}, "required": ["place"]}

    def line(name, schema, **fields):
        tool = {"type": "function", "function": {"name": "rain", "parameters": schema}}
        return {"id": name, "messages": [{"role": "user", "content": "Rain in Bergen?"}], "tools": [tool],
                "max_tokens": 1, **fields}

    calls = {"logit_bias": {str(token_id): 100}}
    requests = folder / "calls.jsonl"
    for lines, num_valid in (([line("call", parameters, **calls)], 1),
                             ([line("text", parameters), line("wrong arguments", other, **calls)], 0)):
        requests.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        answers = quality(model, "--requests", requests, reference=model)
        expected = {"requests": len(lines), "valid": num_valid, "valid_of_reference": num_valid}
        assert answers["tool_calls"] == expected, (lines, answers)
        assert answers["formatted_answers"] == {"requests": 0, "valid": 0, "valid_of_reference": 0}, answers


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    penstock = program.Penstock(parser.parse_args().penstock)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text = folder / "text.txt"
        text.write_text(TEXT, encoding="utf-8")

        def quality(model, *flags, reference=program.DEMO_MODEL, code=0):
            done = penstock.run("quality", "--model", model, "--reference", reference, "--text", text, "--json", *flags)
            assert done.returncode == code, done.stderr
            return done.stderr if code else json.loads(done.stdout)

        same = quality(program.DEMO_MODEL)
        assert same["kl_divergence"] == {"mean": 0, "median": 0, "p99": 0, "max": 0}, same
        assert same["same_best_token"] == 1 and same["perplexity"] == same["reference_perplexity"], same
        means = [0.0]
        for bits in ("int8", "hqq4", "hqq3"):
            store = folder / bits
            assert penstock.run("pack", "--model", program.DEMO_MODEL, "--output", store, "--quantize", bits).returncode == 0
            report = quality(store, "--memory", "400MiB")
            means.append(report["kl_divergence"]["mean"])
            assert 0.5 < report["same_best_token"] < 1 or bits == "int8", report
            alone = penstock.run("perplexity", "--model", store, "--text", text, "--context-length", 512)
            expected = float(re.search(r"perplexity ([0-9.]+)", alone.stdout)[1])
            assert abs(report["perplexity"] - expected) < 1e-3 * expected, (report, alone.stdout)
        assert means == sorted(means) and means[1] < 0.01 < means[3], means
        assert all(len(report["layer_errors"]) == 4 and 0 < error < 1 for error in report["layer_errors"]), report

        # Statistics of another text put the bits where they count: 3 bits are better than hqq3's 3.5.
        calibration, importance = folder / "calibration.txt", folder / "importance.safetensors"
        calibration.write_text(CALIBRATION, encoding="utf-8")
        calibrate = ["calibrate", "--model", program.DEMO_MODEL, "--text", calibration, "--output", importance]
        done = penstock.run(*calibrate, "--products")
        assert done.returncode == 0 and "of 32 experts saw fewer than 64 tokens" in done.stderr, done.stderr
        for wrong in (("--dtype", "bf16"), ("--activations", "int8"), ("--device", "emulated")):
            done = penstock.run(*calibrate, *wrong)
            assert done.returncode == 2 and "penstock calibrate computes" in done.stderr, (wrong, done.stderr)
        store = folder / "mixed"
        done = penstock.run("pack", "--model", program.DEMO_MODEL, "--output", store, "--bits", 3.5, "--importance",
                            importance)
        assert done.returncode == 0, done.stderr
        kinds = json.loads(penstock.run("inspect", "--model", store, "--json").stdout)["kinds"]
        parts = [kinds[name] for name in ("experts", "attention")]
        weights = [8 * part["bytes"] / part["bits_per_weight"] for part in parts]
        assert 3.4 < 8 * sum(part["bytes"] for part in parts) / sum(weights) <= 3.5, kinds
        assert len(kinds["experts"]["formats"]) > 1, kinds
        mixed = quality(store)["kl_divergence"]["mean"]
        assert mixed < means[3], (mixed, means)
        # The other way round the divergence is another one, of the same size.
        back = quality(program.DEMO_MODEL, reference=folder / "hqq3")["kl_divergence"]["mean"]
        assert back != means[3] and 0.5 < back / means[3] < 2, (back, means)

        # Requests are answered freely. The form of the first one is that of any text, that of the others is not.
        requests = folder / "requests.jsonl"
        schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
        strict = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
        prompt = "Once upon a time there was a"
        lines = [{"id": "a", "prompt": prompt, "max_tokens": 8, "structured_outputs": {"regex": "[^{}]*"}},
                 {"id": "b", "prompt": prompt, "max_tokens": 8, "structured_outputs": {"regex": "[0-9]+"}},
                 {"id": "c", "prompt": prompt, "max_tokens": 8, "response_format": strict}]
        requests.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        answers = quality(folder / "int8", "--requests", requests)
        assert answers["formatted_answers"] == {"requests": 3, "valid": 1, "valid_of_reference": 1}, answers
        assert answers["tool_calls"] == {"requests": 0, "valid": 0, "valid_of_reference": 0}, answers
        bad = (({"id": "a", "prompt": prompt}, "neither an output format nor tools"), (None, "there are no requests"),
               ({"id": "a", "turns": ["x", "y"]}, "turns and choices"), ({"id": "a"}, "requests.jsonl: line 1"))
        for line, message in bad:
            requests.write_text(json.dumps(line) + "\n" if line else "", encoding="utf-8")
            error = quality(program.DEMO_MODEL, "--requests", requests, code=4)
            assert message in error, (line, error)

        check_tool_calls(quality, folder)
        other = folder / "other"
        shutil.copytree(program.DEMO_MODEL, other)
        vocabulary = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary["model"]["merges"] = []
        (other / "tokenizer.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        assert "different tokenizers" in quality(other, code=4)

        # Each model gets half of the budget, and the refusal names the whole of it.
        refusal = quality(program.DEMO_MODEL, "--memory", "1MiB", code=6)
        typed = re.search(r"with 2 models, the least budget is \d+ bytes \(give --memory (\S+) or more", refusal)[1]
        assert quality(program.DEMO_MODEL, "--memory", typed)["same_best_token"] == 1
        check_progress(penstock, text)
    print(f"mean divergences of int8, hqq4 and hqq3: {means[1:]}")


if __name__ == "__main__":
    main()
