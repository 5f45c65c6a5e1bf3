"""Tests of rows M: what the program says, keeps and refuses in cases that users have met. See bad_inputs.py."""
import datetime
import json
import os
import re
import signal
import struct
import time

from bad_requests import records, request, run_args
from program import HANG_S, ROOT
from tiny_model import CONTEXT, FIRST_SPECIAL_ID, MODEL_DIM

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def num_bytes(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def finished_jobs(box):
    """A finished job says once that nothing is to do, and notices another model all the same."""
    model = box.model()
    args = run_args(model, box.file("in.jsonl", request("a") + "\n"), box.output())
    box.run(args)
    said = box.run([*args, "--resume"], quiet=False).stderr.decode()
    box.expect(said.count("nothing to do") == 1, f"said {said!r}")
    model.edit_json("config.json", lambda config: config.update(rms_norm_eps=1e-6))
    box.run([*args, "--resume"], code=4, match="the model differs from the one at the start: model.fingerprint")


def memory_line(box):
    """The first number of the line on memory is the sum of the others."""
    args = run_args(box.model(), box.file("in.jsonl", request("a") + "\n"), box.output(), "--memory=1GiB")
    said = box.run(args, quiet=False).stderr.decode()
    found = re.search(r"memory ([\d.]+ \w+) of ([\d.]+ \w+): tables ([\d.]+ \w+), dense weights ([\d.]+ \w+), KV cache "
                      r"([\d.]+ \w+), activations ([\d.]+ \w+), expert slots ([\d.]+ \w+) ", said)
    box.expect(found is not None, f"no line on memory in {said!r}")
    planned, budget, *parts = map(num_bytes, found.groups())
    box.expect(abs(planned - sum(parts)) < 0.02 * planned and planned < budget == 1 << 30, f"another sum: {found[0]}")


def small_plans(box):
    """A plan of a small model has no rounded zeros, and a run of its policy has room for as many experts."""
    folder, policy, stats = box.model(), box.output("policy.json"), box.output("stats.json")
    model = folder.path
    box.run(["probe", "--threads=1", "--seconds=1", "--model", model], max_rss=1400 << 20)
    lines = [json.dumps({"prompt": [3] * 8, "max_tokens": 4}) + "\n" for _ in range(16)]
    args = run_args(folder, box.file("in.jsonl", "".join(lines)), box.output())
    plan = ["plan", "--model", model, "--threads=1", "--workload=prompt=8,gen=4,requests=16", "--output", policy]
    for memory in (box.least_memory(plan), 1 << 30):
        budget = f"--memory={memory}"
        text = box.run([*plan, budget]).stdout.decode()
        box.expect(not re.search(r"\b0\.00 (GiB|MiB|seconds)", text), text)
        planned = int(re.search(r"room for (\d+) of the model's 8 experts", text)[1])
        if os.path.exists(box.output()):
            os.remove(box.output())
        box.run([*args, "--policy", policy, budget, "--threads=1", "--stats", stats])
        with open(stats, encoding="utf-8") as file:
            room = json.load(file)["policy"]["expert_slots"]
        box.expect(room >= planned, f"room for {planned} experts planned, {room} got")


def default_length(box):
    """max_new_tokens of generation_config.json is how long answers are that nobody limits."""
    model = box.model()
    model.write("generation_config.json", json.dumps({"max_new_tokens": 3}))
    line = json.dumps({"prompt": "hi", "ignore_eos": True}) + "\n"
    box.run(run_args(model, box.file("in.jsonl", line), box.output()))
    usage = records(box.output())[0]["response"]["body"]["usage"]
    box.expect(usage["completion_tokens"] == 3, f"usage: {usage}")


def dates(box):
    """Templates print the date of --date, or that of today."""
    model = box.model()

    def tokens(template, *flags):
        model.edit_json("tokenizer_config.json", lambda config: config.update(chat_template=template))
        line = json.dumps({"messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 0, "max_tokens": 1}) + "\n"
        if os.path.exists(box.output()):
            os.remove(box.output())
        box.run(run_args(model, box.file("in.jsonl", line), box.output(), *flags))
        return [sorted(entry) for entry in records(box.output())[0]["response"]["body"]["prompt_logprobs"][1:]]
    clock = "{{ strftime_now('%d %B %Y') }}"
    box.expect(tokens(clock, "--date=2031-05-06") == tokens("06 May 2031"), "--date is not what templates see")

    def today():
        return datetime.datetime.now(datetime.UTC).strftime("%d %B %Y")
    before, now = today(), tokens(clock)
    # Midnight may pass meanwhile.
    box.expect(now in (tokens(before), tokens(today())), "templates do not see today")


def empty_prompts(box):
    """An empty text is answered where the tokenizer begins texts with a token of its own."""
    model = box.model()
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    model.edit_json("tokenizer.json", lambda tokenizer: tokenizer.update(post_processor={
        "type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [FIRST_SPECIAL_ID], "tokens": ["<s>"]}}}))
    box.run(run_args(model, box.file("in.jsonl", request("a", prompt="") + "\n"), box.output()))
    usage = records(box.output())[0]["response"]["body"]["usage"]
    box.expect(usage["prompt_tokens"] == 1, f"usage: {usage}")


def bad_numbers(box):
    """A weight that is no number fails the requests that need it, each by its own id, and the job ends."""
    model = box.model()

    def spoil(parts):
        kind, shape, content = parts["model.embed_tokens.weight"]
        row = struct.pack(f"<{MODEL_DIM}f", *[float("nan")] * MODEL_DIM)
        at = ord("q") * len(row)
        parts["model.embed_tokens.weight"] = (kind, shape, content[:at] + row + content[at + len(row):])
    model.edit_tensors(spoil)
    lines = [request(f"r{i}", prompt="quiet" if i == 11 else "hi") + "\n" for i in range(30)]
    args = run_args(model, box.file("in.jsonl", "".join(lines)), box.output())
    box.run(args, code=8)
    failed = {record["custom_id"]: record["error"] for record in records(box.output()) if record["error"] is not None}
    box.expect(list(failed) == ["r11"] and failed["r11"]["code"] == "model_error" and failed["r11"]["line"] == 12,
               f"failed: {failed}")
    box.run([*args, "--resume"], code=8)


def windows(box):
    """A window says what it keeps, and lets texts grow beyond the model's context."""
    args = ["generate", "--model", box.model().path, "--prompt=hi", "--raw", "--max-tokens=2", "--attention-window=64"]
    box.run([*args, "--attention-sinks=4"], quiet=False,
            match=r"sees the first 16 tokens \(4 asked for, in KV pages of 16\) and the last 64")
    box.run([*args, f"--context-length={2 * CONTEXT}"])


def texts_in_files(box):
    """perplexity takes a file, says so, and counts the text in its budget."""
    model = box.model().path
    box.run(["perplexity", "--model", model, "--text", "hello world"], code=5, match="--text names a file: .*hello world")
    text = box.file("book.txt", "the a in the aa " * (1 << 19))
    for command in (["perplexity"], ["quality", "--reference", model]):
        box.run([*command, "--model", model, "--text", text, "--memory=24MiB"], code=6, match="least budget is",
                max_rss=(24 + 32) << 20)
        box.run([*command, "--model", model, "--text", text, "--memory=6MiB"], code=6, match="more than the 6.00 MiB",
                max_rss=(6 + 32) << 20)


def ignored_signals(box):
    """A signal that is ignored when the program starts, as under nohup, stays ignored."""
    lines = [request(f"r{i}", prompt=f"number {i}", max_tokens=100, ignore_eos=True) + "\n" for i in range(300)]
    out = box.output()
    job = box.start(run_args(box.model(), box.file("in.jsonl", "".join(lines)), out, "--quiet", "--batch-size=4"),
                    preexec=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    deadline = time.monotonic() + HANG_S
    while not (os.path.exists(out) and os.path.getsize(out) > 0) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(job.pid, signal.SIGINT)
    result = box.finish(job)
    box.program.num_runs += 1
    box.check(result, (0,), None, True, 256 << 20)
    box.expect(len(records(out)) == 300, "the job stopped")


def standard_output(box):
    """--stats - prints, and other flags name files."""
    model = box.model()
    source = box.file("in.jsonl", request("a") + "\n")
    stats = json.loads(box.run(run_args(model, source, box.output(), "--stats=-")).stdout)
    box.expect(stats["requests"] == 1, f"stats: {stats}")
    box.run(run_args(model, source, box.output("other"), "--stats=-", "--resume", "--temperature=9"))
    box.run(run_args(model, "-", box.output("piped"), "--stats=-"), stdin=(request("a") + "\n").encode())
    box.run(run_args(model, source, "-", "--stats=-"), code=2, match="--stats -: the job itself uses this file")
    box.run(run_args(model, source, box.output(), "--stats=-"), code=5, match="the output exists")
    for flag in ("--trace", "--trace-html", "--record-routing"):
        box.run(run_args(model, source, box.output("third"), flag, "-"), code=2, match=f"{flag} -: expected a file's name")
    for command in (["plan", "--output", "-"], ["plan", "--plot", "-"], ["probe", "--output", "-"]):
        box.run([*command, "--model", model.path], code=2, match=f"{command[1]} -: expected a file's name")
    box.expect(not os.path.exists("-"), "a file is called '-'")


def damaged_stores(box):
    """A store fails alike with every budget: damaged experts fail requests, other damage refuses the model."""
    store = box.output("store")
    box.run(["pack", "--model", box.model().path, "--output", store, "--quantize=int8"])
    index, weights, config = (os.path.join(store, name) for name in ("penstock.json", "penstock.bin", "config.json"))
    box.outputs |= {index, weights, config}
    source = box.file("in.jsonl", "".join(request(f"r{i}", prompt=[i + 60], max_tokens=1) + "\n" for i in range(40)))
    with open(weights, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    failed = []
    model = type("Store", (), {"path": store})
    least = box.least_memory(run_args(model, source, box.output("least"), "--threads=1"))
    for memory in (least, 1 << 30):
        out = box.output(f"out{memory}")
        box.run(run_args(model, source, out, f"--memory={memory}B", "--threads=1"), code=8)
        failed.append(sorted(record["custom_id"] for record in records(out) if record["error"] is not None))
    box.expect(0 < len(failed[0]) < 40 and failed[0] == failed[1], f"failed: {failed}")
    box.run(run_args(model, source, box.output("told"), "--threads=1"), code=8, quiet=False,
            match="1 of 8 experts are damaged: what chooses them fails. The first: .*checksum")
    with open(config, encoding="utf-8") as file:
        text = file.read()
    for wrong in (text.replace("10000.0", "10001.0"), text + " "):
        with open(config, "w", encoding="utf-8") as file:
            file.write(wrong)
        box.run(run_args(model, source, box.output("config")), code=3, match="config.json.*checksum|checksum.*config.json")
    with open(config, "w", encoding="utf-8") as file:
        file.write(text)
    os.remove(index)
    box.run(run_args(model, source, box.output("index")), code=3, match="a packed store without its index penstock.json")


def unknown_fields(box):
    """Fields that mean nothing are named at the start."""
    source = box.file("in.jsonl", request("a", user="me", tool_choice="auto") + "\n" + request("b", user="you") + "\n")
    box.run(run_args(box.model(), source, box.output()), quiet=False,
            match=r"ignored fields of the input: tool_choice \(1 request\), user \(2 requests\)")


def documented_fields(box):
    """The fields that docs/jobs.md calls unsupported get error records, and those that it calls ignored mean nothing."""
    text = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    unsupported = re.search(r"fields are:\n\n(.*?);\n- names that differ", text, re.DOTALL)[1]
    unsupported = re.findall(r"`([a-z_]+)`", unsupported)
    ignored = re.search(r"\*\*Ignored\.\*\*(.*?)\. `run`", text, re.DOTALL)[1]
    ignored = sorted(set(re.findall(r"`([a-z_]+)`", ignored)) - {"body", "tools", "choices"})
    box.expect(len(unsupported) > 20 and len(ignored) > 6, f"the page lists {unsupported} and {ignored}")
    lines = [request(name, **{name: True}) + "\n" for name in unsupported + ignored]
    said = box.run(run_args(box.model(), box.file("in.jsonl", "".join(lines)), box.output()), code=8, quiet=False).stderr
    named = re.search(rb"ignored fields of the input: (.*)", said)[1].decode()
    box.expect(re.findall(r"(\w+) \(1 request\)", named) == ignored, f"named: {named}")
    for record in records(box.output()):
        code = None if record["error"] is None else record["error"]["code"]
        box.expect(code == ("unsupported" if record["custom_id"] in unsupported else None), f"{record}")


def cases():
    for number, test in enumerate((
            finished_jobs, memory_line, default_length, dates, empty_prompts, bad_numbers, windows, texts_in_files,
            ignored_signals, standard_output, damaged_stores, unknown_fields, documented_fields), 1):
        yield f"M{number}", test.__name__.replace("_", " "), test
    yield "L11", "small plans", small_plans  # it measures the machine
