"""Tests of rows J: JSONL batch jobs. Bad lines get error records, good lines get answers, and no line is lost.

See bad_inputs.py.
"""
import fcntl
import gzip
import json
import os
import re
import signal
import time

from program import HANG_S
from tiny_model import CONTEXT

OVERRIDE_CAP = 1  # CAP_DAC_OVERRIDE


def request(request_id, **fields):
    return json.dumps({"id": request_id, "prompt": "hi", "max_tokens": 2, **fields})


def batch_line(request_id, url="/v1/completions", **body):
    body = {"prompt": "hi", "max_tokens": 2, **body}
    return json.dumps({"custom_id": request_id, "method": "POST", "url": url, "body": body})


def run_args(model, source, out, *more):
    return ["run", "--model", model.path, "--input", source, "--output", out, *more]


def records(path):
    """Returns the results by input line; each line of the file must be one whole JSON object."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert text == "" or text.endswith("\n"), "the last line is torn"
    return [json.loads(line) for line in text.splitlines()]


def job(lines, faults, code=8, stdin=False, text=None, **options):
    """Runs a job. `faults`: custom_id or line number -> (code, pattern) of each error record; other lines need an answer."""
    def test(box):
        model = box.model()
        content = text if text is not None else "".join(line + "\n" for line in lines)
        content = content.encode() if isinstance(content, str) else content
        out = box.output()
        if stdin:
            box.run(run_args(model, "-", out), code=code, stdin=content, **options)
        else:
            box.run(run_args(model, box.file("in.jsonl", content), out), code=code, **options)
        found = records(out)
        num_requests = sum(1 for line in content.replace(b"\r", b"").split(b"\n") if line.strip(b" \t\xef\xbb\xbf"))
        box.expect(len(found) == num_requests, f"{num_requests} requests, {len(found)} results")
        errors = {}
        for record in found:
            if record["error"] is None:
                box.expect(record["response"]["status_code"] == 200, f"neither an answer nor an error: {record}")
            else:
                errors[record["error"]["line"]] = record["error"]
        box.expect(sorted(errors) == sorted(faults), f"error records of lines {sorted(errors)}, expected {sorted(faults)}: "
                                                     f"{errors}")
        for line, (error_code, pattern) in faults.items():
            box.expect(errors[line]["code"] == error_code and re.search(pattern, errors[line]["message"]),
                       f"line {line}: expected {error_code}: {pattern}, found {errors[line]}")
        if not stdin:
            checked = box.run(["run", "--input", box.path("in.jsonl"), "--validate-only"], code=(0, 8))
            box.expect(re.search(rf"{num_requests} requests", checked.stdout.decode()), f"report {checked.stdout!r}")
    return test


def line_rows():
    good = request("a")
    for name, line, pattern in (
            ("no JSON", b"hello", "column 1"), ("cut", b'{"id": "b", "prompt": "x', "column"),
            ("array", b"[1]", "expected a JSON object, found array; jq -c '.\\[\\]' FILE"),
            ("number", b"7", "expected a JSON object"),
            ("null", b"null", "expected a JSON object"), ("two objects", b"{}{}", "column 3"),
            ("comment", b"{} // x", "column"),
            ("NaN", b'{"prompt": "x", "temperature": NaN}', "column"),
            ("1e999", b'{"prompt": "x", "top_p": 1e999}', "column|top_p"),
            ("field twice", b'{"prompt": "x", "prompt": "y"}', "prompt"), ("NUL", b"\0\0", "column 1"),
            ("not UTF-8", b'{"prompt": "\xff\xfe"}', r"^column 13: not UTF-8 \(byte 0xff\)"),
            ("lone surrogate", b'{"prompt": "\\ud800"}', "column"),
            ("overlong", b'{"prompt": "\xc0\xaf"}', "column"), ("deep", b'{"prompt": ' + b"[" * 100_000, "column"),
            ("deep and closed", b'{"x": ' + b"[" * 1000 + b"]" * 1000 + b"}", "column")):
        code = "invalid_request" if pattern.startswith("expected") else "invalid_json"
        content = good.encode() + b"\n" + line + b"\n" + request("c").encode() + b"\n"
        yield "J1", name, job(None, {2: (code, pattern)}, text=content)
    yield "J1", "blank lines", job(None, {}, code=0, text=f"\n{good}\n  \t\n\n{request('b')}\n\n")
    yield "J1", "CRLF", job(None, {}, code=0, text=f"{good}\r\n\r\n{request('b')}\r\n")
    yield "J1", "CRLF and a bad line", job(None, {2: ("invalid_json", "column")}, text=f"{good}\r\n{{\r\n{request('b')}\r\n")
    yield "J1", "byte-order mark", job(None, {}, code=0, text="\ufeff" + good + "\n")
    yield "J1", "an array over several lines", job(
        None, {1: ("invalid_json", "holds a whole request \\(jq -c '.\\[\\]' FILE"), 3: ("invalid_json", "column")},
        text=f"[\n{good}\n]\n")
    yield "J1", "an object over several lines", job(
        None, {1: ("invalid_json", "jq -c . FILE"), 2: ("invalid_json", "column"), 3: ("invalid_json", "column")},
        text='{\n"prompt": "x"\n}\n')
    yield "J1", "no final newline", job(None, {}, code=0, text=good)
    yield "J1", "empty file", job(None, {}, code=0, text="")
    yield "J1", "only blank lines", job(None, {}, code=0, text="\n\n \r\n")
    yield "J1", "only bad lines", job(None, {n: ("invalid_json", "column") for n in (1, 2)}, text="x\ny\n")
    yield "J1", "10000 bad lines", job(None, {n: ("invalid_json", "column") for n in range(1, 10_001)}, text="x\n" * 10_000)

    def refused(lines, pattern):
        def test(box):
            source = box.file("in.jsonl", "".join(line + "\n" for line in lines))
            out = box.output()
            box.run(["run", "--model", "nowhere", "--input", source, "--output", out], code=4, match=pattern)
            box.expect(not os.path.exists(out), "an output was made")
            box.run(["run", "--input", source, "--validate-only"], code=4, match=pattern)
        return test
    yield "J2", "id twice", refused([good, request("b"), good], "line 3: id 'a' was already used in line 1")
    yield "J2", "id twice as custom_id", refused([good, batch_line("a")], "line 2: id 'a' was already used")
    yield "J2", "number and text", refused([request(7), request("7")], "id '7' was already used")
    yield "J2", "made-up id", refused([request("line-2"), '{"prompt": "x"}'], "id 'line-2' was already used")
    yield "J2", "no id", job(['{"prompt": "x", "max_tokens": 2}', request(None)], {}, code=0)
    for name, value, pattern in (("1 MB", "x" * 1_000_000, "1 to 512 bytes, found 1000000"), ("empty", "", "1 to 512 bytes"),
                                 ("fraction", 1.5, "string or an integer"), ("true", True, "string or an integer"),
                                 ("list", ["x"], "string or an integer"), ("object", {}, "string or an integer")):
        yield "J2", f"id {name}", job([good, request(value)], {2: ("invalid_id", pattern)})
    yield "J2", "control characters", job([request("a\nb\u0007"), request("\u202e")], {}, code=0)

    chat = {"messages": [{"role": "user", "content": "hi"}]}
    yield "J3", "two models", job([batch_line("a", model="x"), batch_line("b", model="y"), batch_line("c")],
                                  {2: ("mixed_models", "expected 'x' as in line 1, found 'y'")})
    yield "J3", "two urls", job([batch_line("a"), batch_line("b", url="/v1/chat/completions", **chat)], {}, code=0)
    for name, line, pattern in (
            ("url", batch_line("b", url="/v1/embeddings"), "url: expected /v1/chat/completions or /v1/completions"),
            ("no url", json.dumps({"custom_id": "b", "body": {}}), "url"),
            ("method", json.dumps({"custom_id": "b", "method": "GET", "url": "/v1/completions", "body": {}}), "method"),
            ("no body", json.dumps({"custom_id": "b", "url": "/v1/completions"}), "body"),
            ("body array", json.dumps({"custom_id": "b", "url": "/v1/completions", "body": []}), "body"),
            ("model number", batch_line("b", model=7), "model: expected a string"),
            ("no form", '{"id": "b"}', "found none"), ("two forms", request("b", turns=["x"]), "found several")):
        yield "J3", name, job([batch_line("a"), line], {2: ("invalid_request", pattern)})


def size_rows():
    limit = 16 << 20

    def long_line(num_bytes):
        head, tail = '{"id": "long", "prompt": "', '"}'
        return head + "a" * (num_bytes - len(head) - len(tail)) + tail
    small = 420 << 20  # for a long line, its parsed form and its tokens
    yield "J4", "line of 16 MiB + 1", job([request("a"), long_line(limit + 1), request("b")],
                                          {2: ("line_too_long", "more than the limit of 16.0 MiB")}, max_rss=small)
    yield "J1", "tiny temperature", job([request("a"), request("b", temperature=1e-300), request("c", temperature=5e-324)],
                                        {}, code=0)
    yield "J1", "tiny repetition penalty", job([request("a"), request("b", temperature=1, repetition_penalty=1e-39)],
                                               {2: ("invalid_request", "repetition_penalty: expected 0.001 or more")})
    yield "J4", "line of 4 MiB", job([request("a"), long_line(4 << 20), request("b")],
                                      {2: ("invalid_request", r"the prompt has \d+ bytes, which cannot fit")}, max_rss=small)
    yield "J4", "line of 64 MiB without an end", job(None, {2: ("line_too_long", "the line has 64")},
                                                     text=request("a") + "\n" + long_line(64 << 20), max_rss=small)
    # Input of any size is streamed. A hole of 1 GiB in the middle counts as one line that is too long.

    def hole(box):
        source = box.file("in.jsonl", request("a") + "\n")
        with open(source, "r+b") as file:
            file.seek(1 << 30)
            file.write(b"\n" + request("b").encode() + b"\n")
        checked = box.run(["run", "--input", source, "--validate-only"], code=8)
        box.expect(b"3 requests" in checked.stdout and b"line 2: line_too_long" in checked.stdout, f"{checked.stdout!r}")
    yield "J4", "file of 1 GiB", hole
    yield "J4", "standard input", job([request("a"), "{", request("b")], {2: ("invalid_json", "column")}, stdin=True)
    yield "J4", "empty standard input", job([], {}, code=0, stdin=True)

    def fifo(box):
        model = box.model()
        os.mkfifo(box.path("fifo"))
        writer = os.fork()
        if writer == 0:
            try:
                with open(box.path("fifo"), "w", encoding="utf-8") as file:
                    file.write(request("a") + "\n" + request("b"))
            finally:
                os._exit(0)
        box.run(run_args(model, box.path("fifo"), box.output()))
        os.waitpid(writer, 0)
        box.expect(len(records(box.output())) == 2, "results are missing")
    yield "J4", "named pipe", fifo

    def refused(content, pattern, code=4):
        def test(box):
            model = box.model()
            box.run(run_args(model, box.file("in.jsonl", content), box.output()), code=code, match=pattern)
            box.expect(not os.path.exists(box.output()), "an output was made")
        return test
    yield "J4", "gzip", refused(gzip.compress(request("a").encode()), "gzip-compressed.* try: gunzip")
    yield "J4", "zstd", refused(b"\x28\xb5\x2f\xfd" + b"\0" * 20, "zstd-compressed")
    yield "J4", "UTF-16", refused(request("a").encode("utf-16"), "UTF-16, expected UTF-8")
    yield "J4", "no file", lambda box: box.run(run_args(box.model(), box.path("none"), box.output()), code=5,
                                               match="cannot open the input: No such file")
    yield "J4", "folder", lambda box: box.run(run_args(box.model(), box.dir, box.output()), code=5, match="is a directory")

    bad = []
    for name, fields, pattern in (
            ("empty prompt", {"prompt": ""}, "no tokens"), ("no ids", {"prompt": []}, "prompt: is empty"),
            ("prompt number", {"prompt": 7}, "prompt: expected a string or a list"),
            ("prompt null", {"prompt": None}, "found none"),
            ("id -1", {"prompt": [-1]}, "token ids of 0"), ("id 2^40", {"prompt": [1 << 40]}, "token ids of 0"),
            ("id beyond the model", {"prompt": [300]}, "token id 300 is outside the vocabulary of 300"),
            ("mixed ids", {"prompt": [1, None]}, "token ids of 0"),
            ("long prompt", {"prompt": list(range(97, 109)) * 50}, "600 tokens.* context length of 512"),
            ("prompt fills the context", {"prompt": [97] * CONTEXT}, "512 tokens.* context length of 512"),
            ("max_tokens 0", {"max_tokens": 0}, "max_tokens: expected an integer of 1"),
            ("max_tokens -1", {"max_tokens": -1}, "max_tokens"), ("max_tokens 1e18", {"max_tokens": 10 ** 18}, "max_tokens"),
            ("max_tokens 1.5", {"max_tokens": 1.5}, "max_tokens"), ("max_tokens text", {"max_tokens": "9"}, "max_tokens"),
            ("max_tokens 2^64", {"max_tokens": 1 << 64}, "max_tokens"),
            ("temperature -1", {"temperature": -1}, "temperature"),
            ("temperature 1e9", {"temperature": 1e9}, "temperature"),
            ("temperature text", {"temperature": "hot"}, "temperature"),
            ("top_p 0", {"top_p": 0}, "top_p"), ("top_p 2", {"top_p": 2}, "top_p"), ("top_k -2", {"top_k": -2}, "top_k"),
            ("min_p 2", {"min_p": 2}, "min_p"), ("repetition_penalty 0", {"repetition_penalty": 0}, "repetition_penalty"),
            ("seed fraction", {"seed": 1.5}, "seed"), ("seed 2^64", {"seed": 1 << 64}, "seed"),
            ("logprobs 10^6", {"logprobs": 10 ** 6}, "logprobs"), ("logprobs -1", {"logprobs": -1}, "logprobs"),
            ("stop empty", {"stop": ""}, "stop"), ("stop number", {"stop": 7}, "stop"),
            ("stops", {"stop": ["x"] * 17}, "stop"),
            ("stop long", {"stop": "x" * 257}, "stop"), ("ignore_eos text", {"ignore_eos": "yes"}, "ignore_eos"),
            ("messages empty", {"prompt": None, "messages": []}, "messages"),
            ("messages text", {"prompt": None, "messages": "hi"}, "messages"),
            ("message text", {"prompt": None, "messages": ["hi"]}, r"messages\[0\]"),
            ("message without role", {"prompt": None, "messages": [{"content": "x"}]}, "role"),
            ("message without content", {"prompt": None, "messages": [{"role": "user"}]}, "content"),
            ("content number", {"prompt": None, "messages": [{"role": "user", "content": 7}]}, "content"),
            ("promt", {"prompt": None, "promt": "x"}, "found none; did you mean prompt for promt"),
            ("message", {"prompt": None, "message": []}, "did you mean messages for message"),
            ("choices empty", {"choices": []}, "choices"), ("choices number", {"choices": [7]}, "choices"),
            ("choice empty", {"choices": ["a", ""]}, "choices"), ("choice of no token", {"choices": [[]]}, "choices"),
            ("choice beyond the vocabulary", {"choices": [[300]]}, "token id 300"),
            ("choices too many", {"choices": ["x"] * 1025}, "choices"),
            ("choice too long", {"choices": ["x", "the " * 400]}, "context"),
            ("label beyond", {"choices": ["a", "b"], "label": 2}, "label"),
            ("label of no choice", {"choices": ["a", "b"], "label": "c"}, "label"),
            ("turns empty", {"prompt": None, "turns": []}, "turns"),
            ("turn number", {"prompt": None, "turns": [7]}, "turns"),
            ("turn empty", {"prompt": None, "turns": [""]}, "turns"),
            ("schema", {"guided_json": {"uniqueItems": True}}, "#/uniqueItems: the keyword is not supported"),
            ("regex", {"guided_regex": "(?<=a)"}, "look-behind"),
            ("grammar", {"grammar": "root ::= root"}, "no text matches"),
            ("nested grammar", {"grammar": "root ::= " + "(" * 60000 + "a" + ")" * 60000}, "more than the limit"),
            ("two formats", {"guided_regex": "a", "grammar": "root ::= [a]"}, "leave one of the two out")):
        bad.append((name, request(name, **fields), pattern))
    for name, line, pattern in bad:
        yield "J5", name, job([request("first"), line, request("last")], {2: ("invalid_request", pattern)})
    # All of these lines are in one job. None affects another, and the good lines between them are answered.
    lines, faults = [], {}
    for number, (_, line, pattern) in enumerate(bad):
        lines += [line, request(f"good-{number}")]
        faults[2 * number + 1] = ("invalid_request", pattern)
    yield "J5", "all at once", job(lines, faults)
    for name, fields, pattern in (("list of prompts", {"prompt": ["a", "b"]}, "list of prompts"),
                                  ("best_of", {"best_of": 3}, "value of n"),
                                  ("typing error", {"max_token": 3}, "did you mean max_tokens"),
                                  ("top-p", {"top-p": 0.5}, "did you mean top_p"),
                                  ("max_output_tokens", {"max_output_tokens": 3}, "use max_tokens"),
                                  ("topk", {"topk": 3}, "did you mean top_k"), ("Seed", {"Seed": 3}, "did you mean seed"),
                                  ("turns with choices", {"prompt": None, "turns": ["x"], "choices": ["a"]}, "have none"),
                                  ("choices and echo", {"choices": ["a"], "echo": True}, "is only scored"),
                                  ("stream", {"stream": True}, "no streams")):
        yield "J5", name, job([request("a"), request("b", **fields)], {2: ("unsupported", pattern)})

    def clamped(box):  # an answer ends at the context's end, which finish_reason reports
        model = box.model()
        line = request("a", prompt=[97] * (CONTEXT - 3), max_tokens=100, ignore_eos=True)
        box.run(run_args(model, box.file("in.jsonl", line), box.output()))
        answer = records(box.output())[0]["response"]["body"]
        box.expect(answer["usage"]["completion_tokens"] == 3 and answer["choices"][0]["finish_reason"] == "length",
                   f"{answer}")
    yield "J5", "max_tokens beyond the context", clamped


def validation_rows():
    shared = "the a in the aa " * 4

    def with_a_model(box):
        model = box.model().path
        lines = [request("0", prompt=shared + "one", max_tokens=3), request("1", prompt=shared + "two", max_tokens=5),
                 request("5", prompt=shared + "three", choices=[" a", " the aa in", "x"], label=0),
                 request("3", prompt="the " * 400), request("4", max_tokens=0)]
        lines.insert(1, request("2", prompt=[1, 2, 300], user="x", category=None))
        source = box.file("in.jsonl", "".join(line + "\n" for line in lines))
        args = ["run", "--model", model, "--input", source, "--validate-only"]
        found = json.loads(box.run([*args, "--json"], code=8).stdout)
        box.expect(found["input"]["bad"] == 1, f"input: {found['input']}")
        of_model = found["model"]
        box.expect(of_model["prompts"] == 4 and of_model["max_new_tokens"] == 8, f"model: {of_model}")
        # One list in the order of the input, whether a line is bad for this model or for all.
        box.expect(of_model["bad"] == 2 and found["bad"] == 3, f"bad: {found}")
        box.expect([error["line"] for error in found["errors"]] == [2, 5, 6] and
                   "--context-length" in found["errors"][1]["message"], f"errors: {found['errors']}")
        shared_tokens = of_model["prompt_tokens"] - of_model["computed_prompt_tokens"]
        box.expect(shared_tokens > 0, f"nothing is shared: {of_model}")
        text = box.run(args, code=8).stdout.decode()
        box.expect(f"4 prompts of {of_model['prompt_tokens']} tokens" in text, text)
        box.expect(re.findall(r"^line (\d): invalid_request", text, re.MULTILINE) == ["2", "5", "6"], text)
        box.expect("ignored fields: user (1 request)\n" in text, text)
        # The job itself says the same.
        stats = box.output("stats.json")
        box.run(["run", "--model", model, "--input", source, "--output", box.output(), "--stats", stats, "--memory=200MiB"],
                code=8)
        with open(stats, encoding="utf-8") as file:
            numbers = json.load(file)
        box.expect(numbers["prompt_tokens"] == of_model["prompt_tokens"] and
                   of_model["computed_prompt_tokens"] - 16 < numbers["computed_prompt_tokens"] <=
                   of_model["computed_prompt_tokens"], f"stats: {numbers}")
    yield "J8", "--validate-only with a model", with_a_model
    # The variable PENSTOCK_JSON may mean other commands.
    yield "J8", "--json alone", lambda box: box.run(run_args(box.model(), box.file("in.jsonl", request("a")), box.output()),
                                                    quiet=False, match="--json counts only", env={"PENSTOCK_JSON": "1"})


def resume_rows():
    lines = [request(f"r{i}", prompt=f"number {i}") + "\n" for i in range(6)]

    def after_a_part(change, pattern, code=4, num_kept=3):
        """Returns a test: finishes a job, keeps `num_kept` results, calls change(box, source, out), then uses --resume."""
        def test(box):
            model = box.model()
            source, out = box.file("in.jsonl", "".join(lines)), box.output()
            box.run(run_args(model, source, out))
            kept = open(out, encoding="utf-8").readlines()[:num_kept]
            with open(out, "w", encoding="utf-8") as file:
                file.writelines(kept)
            extra = change(box, source, out) or []
            box.run(run_args(model, source, out, "--resume", *extra), code=code, match=pattern)
            if code == 4:
                box.expect(open(out, encoding="utf-8").readlines() == kept, "the output was changed")
            else:
                box.expect(sorted(r["custom_id"] for r in records(out)) == [f"r{i}" for i in range(6)],
                           "not one result for each")
        return test

    def rewrite(content):
        def change(box, source, out):
            with open(source, "w", encoding="utf-8") as file:
                file.write(content)
        return change
    yield "J6", "nothing changed", after_a_part(lambda *_: None, None, code=0)
    for name, content, pattern in (("line inserted", lines[0] + request("new") + "\n" + "".join(lines[1:]),
                                    "first difference is in line 2"),
                                   ("line removed", "".join(lines[:-1]), "input.lines: 6 then, 5 now"),
                                   ("lines swapped", "".join([lines[1], lines[0]] + lines[2:]),
                                    "first difference is in line 1"),
                                   ("prompt changed", "".join(lines).replace("number 4", "number 5"), "in line 5"),
                                   ("line appended", "".join(lines) + request("new") + "\n", "input.lines"),
                                   ("emptied", "", "input.lines: 6 then, 0 now")):
        yield "J6", name, after_a_part(rewrite(content), "cannot resume.*" + pattern)
    yield "J6", "CRLF instead of LF", after_a_part(rewrite("".join(lines).replace("\n", "\r\n")), None, code=0)
    yield "J6", "other temperature", after_a_part(lambda *_: ["--temperature", "0.5"], "temperature: not given then")
    yield "J6", "other seed", after_a_part(lambda *_: ["--seed", "7"], "seed: 0 then, 7 now")
    yield "J6", "other dtype", after_a_part(lambda *_: ["--dtype", "bf16"], "settings.dtype")

    def other_model(box, source, out):
        box_model = os.path.join(box.dir, "model", "config.json")
        config = json.load(open(box_model, encoding="utf-8"))
        config["rms_norm_eps"] = 1e-6
        with open(box_model, "w", encoding="utf-8") as file:
            json.dump(config, file)
    yield "J6", "other model", after_a_part(other_model, "the model differs from the one .* model.fingerprint")

    def same_prompts(box):
        model = box.model()
        source = box.file("in.jsonl", request("a") + "\n" + request("b") + "\n" + '{"prompt": "hi"}\n{"prompt": "hi"}\n')
        box.run(run_args(model, source, box.output(), "--max-tokens", "2"))
        found = records(box.output())
        box.expect(sorted(r["custom_id"] for r in found) == ["a", "b", "line-3", "line-4"], f"{found}")
        box.expect(len({r["response"]["body"]["choices"][0]["text"] for r in found}) == 1, "greedy answers differ")
    yield "J7", "identical prompts", same_prompts

    for name, cut, told in (("half a line", lambda text: text[:-20], 1), ("one byte", lambda text: text + "{", 1),
                            ("no newline", lambda text: text[:-1], 1), ("garbage", lambda text: text + "\0" * 100, 1),
                            ("half a line and a newline", lambda text: text[:-20] + "\n", 1),
                            ("only half a line", lambda text: text[:20], 1)):
        def torn(box, cut=cut, told=told):
            model = box.model()
            source, out = box.file("in.jsonl", "".join(lines)), box.output()
            box.run(run_args(model, source, out))
            whole = open(out, encoding="utf-8").read()
            with open(out, "w", encoding="utf-8") as file:
                file.write(cut(whole))
            result = box.run(run_args(model, source, out, "--resume"), quiet=False)
            box.expect(f"cut off {told} torn line".encode() in result.stderr, f"not told: {result.stderr!r}")
            box.expect(sorted(open(out, encoding="utf-8")) == sorted(whole.splitlines(keepends=True)),
                       "other results than before")
        yield "J10", name, torn

    def foreign(content, pattern):
        def change(box, source, out):
            with open(out, "a", encoding="utf-8") as file:
                file.write(content)
        def test(box):
            model = box.model()
            source, out = box.file("in.jsonl", "".join(lines)), box.output()
            box.run(run_args(model, source, out))
            change(box, source, out)
            before = open(out, encoding="utf-8").read()
            box.run(run_args(model, source, out, "--resume"), code=5, match=pattern)
            box.expect(open(out, encoding="utf-8").read() == before, "the output was changed")
        return test
    yield "J10", "another job's result", foreign('{"id": "batch_req_0000000000000000", "error": null}\n',
                                                 "does not belong to this job")
    yield "J10", "text of others", foreign("x\n" * 5000, "no crash did this")


def output_rows():
    def no_model(box):
        source = box.file("in.jsonl", request("a") + "\n")
        box.run(["run", "--model", box.path("nowhere"), "--input", source, "--output", box.output()], code=3)
        box.expect(not os.path.exists(box.output()), "an empty output is left")
        os.symlink(box.path("elsewhere"), box.output())  # where its user wants the results
        box.run(["run", "--model", box.path("nowhere"), "--input", source, "--output", box.output()], code=3)
        box.expect(os.path.islink(box.output()), "a link is removed")
        os.unlink(box.output())
        os.unlink(box.path("elsewhere"))
    yield "J8", "no model", no_model

    def refused(prepare, pattern, code=5, model="nowhere", preexec=None, more=()):
        """prepare(box, source) returns the output's path. There is no model: the fault must be found before it is opened."""
        def test(box):
            source = box.file("in.jsonl", request("a") + "\n")
            out = prepare(box, source)
            box.run(["run", "--model", model, "--input", source, "--output", out,
                     *(out if flag == "@" else flag for flag in more)], code=code, match=pattern, preexec=preexec)
        return test

    def without_privilege():
        """Removes root's right to write everywhere from the program, if it has it."""
        import ctypes
        ctypes.CDLL(None).prctl(24, OVERRIDE_CAP, 0, 0, 0)  # PR_CAPBSET_DROP

    def read_only(folder):
        def prepare(box, source):
            path = box.path("locked")
            if folder:
                os.mkdir(path, 0o555)
                return path + "/out.jsonl"
            box.file("locked", "")
            os.chmod(path, 0o444)
            return path
        return prepare
    yield "J8", "exists and is not ours", refused(lambda box, _: box.file("out.jsonl", "my thesis\n"), "the output exists")
    yield "J8", "exists, --resume", refused(lambda box, _: box.file("out.jsonl", "my thesis\n"), "manifest.json is missing",
                                            more=("--resume",))
    yield "J8", "is the input", refused(lambda _, source: source, "the output is the input")
    yield "J8", "is the input by another name", refused(lambda box, source: os.link(source, box.path("b")) or box.path("b"),
                                                        "the output is the input")
    yield "J8", "is a symlink to the input", refused(lambda box, source: os.symlink(source, box.path("b")) or box.path("b"),
                                                     "the output is the input")
    yield "J8", "folder", refused(lambda box, _: box.dir, "the output is a directory")
    yield "J8", "in no folder", refused(lambda box, _: box.path("none/out.jsonl"), "folder does not exist")
    yield "J8", "below a file", refused(lambda box, source: source + "/out.jsonl", "Not a directory")
    yield "J8", "read-only file", refused(read_only(False), "Permission denied", preexec=without_privilege)
    yield "J8", "read-only folder", refused(read_only(True), "Permission denied", preexec=without_privilege)
    yield "J8", "empty name", refused(lambda *_: "", "needs --output|expected a file name", code=2)
    yield "J8", "long name", refused(lambda box, _: box.path("x" * 300), "too long")
    yield "J8", "stats is the output", refused(lambda box, _: box.output(), "the job itself uses this file", code=2,
                                               more=("--stats", "@"))

    def full_disk(box):
        box.run(run_args(box.model(), box.file("in.jsonl", request("a") + "\n"), "/dev/full"), code=(5, 7),
                match="No space left")
    yield "J8", "full disk", full_disk

    def locked(box):
        source, out = box.file("in.jsonl", request("a") + "\n"), box.output()
        with open(out, "w", encoding="utf-8") as holder:
            fcntl.flock(holder, fcntl.LOCK_EX)
            fcntl.lockf(holder, fcntl.LOCK_EX)
            box.run(["run", "--model", "nowhere", "--input", source, "--output", out], code=5,
                    match=f"locked by pid {os.getpid()}")
    yield "J9", "locked output", locked

    def two_jobs(box):
        model = box.model()
        lines = [request(f"r{i}", prompt=f"number {i}", max_tokens=100, ignore_eos=True) + "\n" for i in range(1000)]
        source, out = box.file("in.jsonl", "".join(lines)), box.output()
        first = box.start(run_args(model, source, out, "--quiet", "--batch-size", "4"))
        deadline = time.monotonic() + HANG_S
        while not (os.path.exists(out) and os.path.getsize(out) > 0) and time.monotonic() < deadline:
            time.sleep(0.005)
        box.run(run_args(model, source, out, "--resume", "--batch-size", "4"), code=5, match=f"locked by pid {first.pid}")
        os.kill(first.pid, signal.SIGTERM)
        result = box.finish(first)
        box.program.num_runs += 1
        box.check(result, (7,), "continue with --resume", True, 256 << 20)
        before = records(out)
        box.expect(0 < len(before) < 1000, f"{len(before)} results after SIGTERM")
        third = box.start(run_args(model, source, out, "--resume", "--quiet", "--batch-size", "4"))
        time.sleep(0.5)
        os.kill(third.pid, signal.SIGKILL)
        os.waitpid(third.pid, 0)
        third.returncode = -signal.SIGKILL
        after = [json.loads(line) for line in open(out, encoding="utf-8") if line.endswith("\n")]
        box.expect(after[:len(before)] == before, "results were lost")
        box.expect(len({r["custom_id"] for r in after}) == len(after), "a request was answered twice")
    yield "J9", "two jobs, SIGTERM, SIGKILL", two_jobs

    def stopped(box, flags, signals, message):
        model, stats = box.model(), box.path("stats.json")
        lines = [request(f"r{i}", prompt=f"number {i}", max_tokens=100, ignore_eos=True) + "\n" for i in range(1000)]
        out = box.output()
        job = box.start(run_args(model, box.file("in.jsonl", "".join(lines)), out, "--quiet", "--stats", stats, *flags))
        deadline = time.monotonic() + HANG_S
        while not (os.path.exists(out) and os.path.getsize(out) > 0) and time.monotonic() < deadline:
            time.sleep(0.005)
        for sent in signals:
            os.kill(job.pid, sent)
        result = box.finish(job)
        box.program.num_runs += 1
        box.check(result, (7,), message, True, 256 << 20)
        box.expect(0 < len(records(out)) < 1000, "the job did not stop")
        with open(stats, encoding="utf-8") as file:
            numbers = json.load(file)
        box.expect(numbers.get("exit_code") == 7 if len(signals) > 1 else numbers["requests"] > 0, f"stats: {numbers}")
    # A terminal that closes stops a job in order. A second signal does not wait for requests under way.
    yield "J9", "SIGHUP", lambda box: stopped(box, ["--drain=0"], [signal.SIGHUP], "continue with --resume")
    yield "J9", "two signals", lambda box: stopped(box, ["--drain=1000"], [signal.SIGINT, signal.SIGTERM],
                                                   "stopped at once by a second signal; continue with --resume")


def cases():
    yield from line_rows()
    yield from size_rows()
    yield from validation_rows()
    yield from resume_rows()
    yield from output_rows()
