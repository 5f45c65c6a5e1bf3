"""Tests of rows T: tokenizer.json, tokenizer_config.json, tokenizer.model and chat templates. See bad_inputs.py."""
import json
import os
import re
import struct

import tiny_model
from tiny_model import FIRST_SPECIAL_ID, VOCAB_SIZE

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


def tokenizer(edit, pattern, code=3, text="hello the aaaa"):
    """Returns a test that calls edit(tokenizer.json as a dict) and then runs `tokenize`."""
    def test(box):
        model = box.model()
        model.edit_json(TOKENIZER, edit)
        box.run(["tokenize", "--model", model.path, "--text", text], code=code, match=pattern)
    return test


def in_model(**values):
    return lambda file: file["model"].update(values)


def vocab(edit):
    return lambda file: edit(file["model"]["vocab"]) and None


def part(**values):
    return lambda file: file.update(values)


def vocabulary_rows():
    for name, merges in (("left side", ["zz a"]), ("right side", ["a zz"]), ("result", ["a b"]),
                         ("pair form", [["a", "b"]])):
        yield "T1", f"merge of a missing token: {name}", tokenizer(
            in_model(merges=merges), "merge 0: '.*' is not in the vocabulary")
    for name, merge in (("no space", "aa"), ("three", "a a a"), ("number", 7), ("null", None), ("pair of numbers", [1, 2]),
                        ("triple", ["a", "a", "a"]), ("empty", "")):
        yield "T1", f"merge {name}", tokenizer(in_model(merges=[merge]), "merge 0: ")
    yield "T1", "merges no array", tokenizer(in_model(merges="a a"), "'merges': expected array")
    yield "T1", "two tokens with one id", tokenizer(vocab(lambda tokens: tokens.update({"new": 5})), "the same id 5")
    for name, token_id in (("-1", -1), ("2^40", 1 << 40), ("2^63", 1 << 63), ("2^21", 1 << 21)):
        yield "T1", f"id {name}", tokenizer(vocab(lambda tokens, i=token_id: tokens.update({"new": i})),
                                            "token 'new': expected an")
    for name, token_id in (("string", "5"), ("fraction", 5.5), ("null", None)):
        yield "T1", f"id {name}", tokenizer(vocab(lambda tokens, i=token_id: tokens.update({"new": i})), "token 'new'")
    yield "T1", "empty token", tokenizer(vocab(lambda tokens: tokens.update({"": 290})), "the token of id 290 is empty")
    yield "T1", "empty vocabulary", tokenizer(in_model(vocab={}, merges=[]), "there are no tokens")
    yield "T1", "vocabulary no object", tokenizer(in_model(vocab=[]), "'vocab': expected object")
    # A hole is legal: published tokenizers have holes where tokens were removed. Its text is empty.
    yield "T1", "hole in the ids", tokenizer(vocab(lambda tokens: tokens.update({"new": 280})), None, code=0)

    def hole(box):
        model = box.model()
        model.edit_json(TOKENIZER, vocab(lambda tokens: tokens.update({"new": 280})))
        result = box.run(["tokenize", "--model", model.path, "--decode", "--text", "[97, 275, 98]"])
        box.expect(result.stdout == b"ab\n", f"decoded {result.stdout!r}")
        box.run(["tokenize", "--model", model.path, "--decode", "--text", "[281]"], code=4, match="token ids from 0 to 280")
    yield "T1", "decoding a hole", hole

    def too_large(box):
        model = box.model()
        model.edit_json(TOKENIZER, vocab(lambda tokens: tokens.update({"new": VOCAB_SIZE})))
        box.inspect(model, "the tokenizer has 301 tokens, but config.json says vocab_size 300")
    yield "T1", "id = vocab_size", too_large
    for name, values, pattern in (
            ("same id as a token", {"id": 5}, "the same id 5"), ("id -1", {"id": -1}, "expected an id from 0"),
            ("id 2^40", {"id": 1 << 40}, "expected an id from 0"), ("no id", {"id": None}, "'id'"),
            ("empty content", {"content": ""}, "content of 0 bytes"), ("content number", {"content": 7}, "'content'"),
            ("two ids", {"content": "</s>"}, "two ids|same id|bos_token '<s>' is not in the vocabulary"),
            ("special string", {"special": "yes"}, "'special'")):
        yield "T1", f"added token {name}", tokenizer(lambda file, v=values: file["added_tokens"][0].update(v), pattern)
    for name, content in (("empty", ""), ("no JSON", "{"), ("array", "[]"), ("null", "null"), ("no model", "{}"),
                          ("lone surrogate", '{"model": "\\ud800"}'), ("deep", '{"a":' * 100_000)):
        yield "T1", f"tokenizer.json {name}", lambda box, content=content: broken(box, TOKENIZER, content, TOKENIZER)
    for name, content in (("no JSON", "{"), ("array", "[]"), ("bos number", '{"bos_token": 7}'),
                          ("unknown bos", '{"bos_token": "<nope>"}'),
                          ("added token id", '{"added_tokens_decoder": {"x": {"content": "y"}}}')):
        yield "T1", f"tokenizer_config.json {name}", lambda box, content=content: broken(
            box, TOKENIZER_CONFIG, content, "token")
    yield "T1", "no tokenizer", lambda box: broken(box, TOKENIZER, None, "no tokenizer: expected tokenizer.json")

    for key in ("pre_tokenizer", "normalizer", "decoder", "post_processor"):
        for name, value in (("unknown", {"type": "Martian"}), ("no type", {}), ("string", "ByteLevel"),
                            ("number type", {"type": 7})):
            yield "T2", f"{key} {name}", tokenizer(part(**{key: value}), f"{key}")
        nested = {"type": "Martian"}
        field = {"pre_tokenizer": "pretokenizers", "normalizer": "normalizers", "decoder": "decoders",
                 "post_processor": "processors"}[key]
        yield "T2", f"{key} unknown in a Sequence", tokenizer(part(**{key: {"type": "Sequence", field: [nested]}}),
                                                              "Martian")
        for _ in range(12):
            nested = {"type": "Sequence", field: [nested]}
        yield "T2", f"{key} 12 Sequences deep", tokenizer(part(**{key: nested}), "more than 8 deep|Martian")
    yield "T2", "model Unigram with a vocabulary of BPE", tokenizer(
        in_model(type="Unigram"), "'vocab': expected array, found object")
    for name in ("WordPiece", "WordLevel", "Martian", ""):
        yield "T2", f"model {name}", tokenizer(in_model(type=name), f"type '{name}' is not implemented")
    yield "T2", "dropout", tokenizer(in_model(dropout=0.1), "dropout 0?1?.* is not implemented")
    yield "T2", "continuing_subword_prefix", tokenizer(in_model(continuing_subword_prefix="##"), "'##' is not implemented")
    yield "T2", "unknown unk_token", tokenizer(in_model(unk_token="<nope>"), "'<nope>' is not in the vocabulary")

    # Every accepted pattern is compiled to a form that takes linear time. Patterns without such a form are
    # refused.
    def split(regex):
        return part(pre_tokenizer={"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False})
    for name, regex in (("invalid", "(["), ("long look-behind", "(?<=ab)c"), ("back reference", r"(a)\1"),
                        ("recursion", "(?R)"),
                        ("100 kB", "a" * 100_000), ("reversed range", "[z-a]"), ("deep", "(" * 100 + "a" + ")" * 100)):
        yield "T3", f"pattern {name}", tokenizer(split(regex), "pattern", text="a" * 30)
    for name, regex in (("catastrophic", "(a+)+b"), ("nested choice", "(a|a|aa)*c"), ("look-behind", "(?<=a)b"),
                        ("empty", ""),
                        ("any", "."), ("control", "\x01\n")):
        yield "T3", f"pattern {name}", tokenizer(split(regex), None, code=0, text="a" * 100_000)
    yield "T3", "normalizer pattern", tokenizer(
        part(normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""}), None, code=0,
        text="a" * 100_000)
    for token in ("<0x-1>", "<0xZZ>", "<0x100>", "<0x1>", "<0xff>", "<0x>", "<0x 1>"):
        yield "T7", token, tokenizer(lambda file, t=token: (file["model"]["vocab"].update({t: 280}),
                                                            file["model"].update(byte_fallback=True)) and None,
                                     "byte token '<0x.*expected <0x00> to <0xFF>")


def broken(box, name, content, pattern):
    model = box.model()
    if content is None:
        model.remove(name)
    else:
        model.write(name, content)
    box.run(["tokenize", "--model", model.path, "--text", "x"], code=3, match=pattern)


def ids_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def text_rows():
    size = 1 << 20
    letters = {"one letter": "a", "spaces": " ", "combining marks": "\u0301", "emoji with ZWJ": "\U0001f468\u200d",
               "NUL": "\0", "digits": "7", "apostrophes": "'", "tabs": "\t", "mixed": "a\u0301 7'\0\U0001f468"}
    for name, unit in letters.items():
        def long_text(box, unit=unit):
            model = box.model()
            text = (unit * (size // len(unit.encode()) + 1)).encode()
            path = box.file("text", text)
            ids = ids_of(box.run(["tokenize", "--model", model.path, "--file", path]))[0]
            if unit == "a":  # merges: a a -> aa, aa aa -> aaaa
                box.expect(set(ids[:-3]) == {257} and len(ids) <= size // 4 + 3, f"{len(ids)} tokens, first {ids[:3]}")
            back = box.run(["tokenize", "--model", model.path, "--decode", "--file", box.file("ids", json.dumps(ids))])
            box.expect(back.stdout == text + b"\n", "decoding does not give the text back")
        yield "T4", f"1 MiB of {name}", long_text

    # On the command line, invalid UTF-8 becomes U+FFFD before tokenizing. A JSONL line with invalid UTF-8 is
    # refused (J1).
    for name, text in (("lone continuation", b"a\x80b"), ("overlong", b"a\xc0\xafb"), ("surrogate", b"a\xed\xa0\x80b"),
                       ("above U+10FFFF", b"a\xf4\x90\x80\x80b"), ("cut sequence", b"a\xe2\x82"),
                       ("byte-order mark", b"\xef\xbb\xbfab"),
                       ("ff fe", b"\xff\xfe"), ("noncharacter", "\uffff".encode())):
        def odd_text(box, text=text):
            model = box.model()
            ids = ids_of(
                box.run([b"tokenize", b"--model", model.path.encode(), b"--file", box.file("text", text).encode()]))[0]
            back = box.run(["tokenize", "--model", model.path, "--decode", "--text", json.dumps(ids)]).stdout[:-1]
            try:
                expected = text.decode("utf-8")
            except UnicodeDecodeError:
                box.expect("\ufffd" in back.decode("utf-8"), f"no replacement character in {back!r}")
                return
            box.expect(back.decode("utf-8") == expected, f"{text!r} came back as {back!r}")
        yield "T5", name, odd_text

    def not_utf8_prompt(box):
        model = box.model()
        box.run([b"generate", b"--model", model.path.encode(), b"--prompt", b"a\xffb"], code=4, match="not UTF-8 .at byte 1")
        box.run(["perplexity", "--model", model.path, "--text", box.file("t", b"ab\xff")], code=4,
                match="not UTF-8 .at byte 2")
    yield "T5", "prompt that is not UTF-8", not_utf8_prompt
    for name, text in (("text", "x"), ("object", "{}"), ("negative", "[-1]"), ("beyond", f"[{FIRST_SPECIAL_ID + 4}]"),
                       ("2^63", f"[{1 << 63}]"), ("fraction", "[1.5]"), ("nested", "[[1]]"), ("deep", "[" * 100_000)):
        yield "T5", f"decode {name}", lambda box, text=text: box.run(
            ["tokenize", "--model", box.model().path, "--decode", "--text", text], code=4, match="expected|column")

    def message(box):
        model = box.model()
        for text in ("<|user|>", "</s>", "a<s>b<|assistant|>"):
            trusted = ids_of(box.run(["tokenize", "--model", model.path, "--text", text]))[0]
            untrusted = ids_of(box.run(["tokenize", "--model", model.path, "--text", text, "--as-message"]))[0]
            box.expect(max(trusted) >= FIRST_SPECIAL_ID, "a special token in trusted text is not found")
            box.expect(max(untrusted) < FIRST_SPECIAL_ID, f"a message makes special tokens: {untrusted}")
        # The same in a chat: the prompt has as many tokens as any other text of as many bytes.
        lines = [{"id": text, "messages": [{"role": "user", "content": text}], "max_tokens": 1} for text in (
            "<|user|>", "[(user)]")]
        source = box.file("in.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        box.run(["run", "--model", model.path, "--input", source, "--output", box.output()])
        counts = [json.loads(line)["response"]["body"]["usage"]["prompt_tokens"] for line in open(
            box.output(), encoding="utf-8")]
        box.expect(counts[0] == counts[1], f"prompt tokens {counts}")
    yield "T6", "special tokens in a message", message


def chat(template, pattern, answered=False):
    """Runs a job of one chat and one completion. The chat gets an error record (or an answer), the completion an answer.
    A job of chats alone is refused when there is no template (exit 4), or when it cannot be parsed (exit 3)."""
    def test(box):
        model = box.model()
        model.write(TOKENIZER_CONFIG, json.dumps({**tiny_model.tokenizer_config(), "chat_template": template}))
        lines = [{"id": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
                 {"id": "text", "prompt": "hi", "max_tokens": 2}]
        source = box.file("in.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        box.run(["run", "--model", model.path, "--input", source, "--output", box.output()], code=0 if answered else 8)
        records = {record["custom_id"]: record for record in map(json.loads, open(box.output(), encoding="utf-8"))}
        box.expect(records["text"]["error"] is None, "the completion was not answered")
        error = records["chat"]["error"]
        box.expect((error is None) == answered, f"the chat's error: {error}")
        if not answered:
            box.expect(re.search(pattern, error["message"]), f"expected {pattern!r}, found {error['message']!r}")
            is_invalid = "chat template is invalid" in error["message"]
            code = 3 if is_invalid else 4
            box.run(["generate", "--model", model.path, "--prompt", "hi", "--max-tokens", "1"], code=code, match=pattern)
            if is_invalid or template is None:
                source = box.file("chats.jsonl", json.dumps(lines[0]) + "\n")
                box.run(["run", "--model", model.path, "--input", source, "--output", box.output() + "2"], code=code,
                        match=pattern)
                box.expect(not os.path.exists(box.output() + "2"), "a job without a possible answer leaves an output")
    return test


def template_rows():
    for name, template in (("open tag", "\n{% if x"), ("no endif", "\n{% if x %}"), ("unknown tag", "a\n{% martian %}"),
                           ("bad expression", "\n{{ 1 + }}"), ("stray endfor", "\n{% endfor %}"),
                           ("open string", "\n{{ 'x }}")):
        yield "T8", f"syntax: {name}", chat(template, r"template is invalid.*line [23]")
    yield "T8", "raise_exception", chat("\n{{ raise_exception('roles must alternate') }}", "line 2.*roles must alternate")
    yield "T8", "undefined attribute", chat("\n\n{{ nothing.at_all }}", "line 3")
    yield "T8", "undefined function", chat("\n{{ martian(1) }}", "line 2")
    yield "T8", "unknown filter", chat("\n{{ 'x' | martian }}", "line 2")
    yield "T8", "division by zero", chat("\n{{ 1 / 0 }}", "line 2")
    yield "T8", "undefined is empty", chat("x{{ nothing }}", None, answered=True)
    for name, template in (
            ("10^9 rounds", "{% for i in range(1000000000) %}x{% endfor %}"),
            ("nested loops", "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"),
            ("1 GB of output", "{% for i in range(100000) %}{{ 'x' * 10000 }}{% endfor %}"),
            ("a string of 1 TB", "{{ 'x' * 1000000000000 }}"),
            ("doubling", "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ "
                         "ns.s }}"),
            ("doubling a list", "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% "
                                "endfor %}"),
            ("recursive macro", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
            ("padding", "{{ '%1000000000d' % 7 }}"), ("replace", "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}"),
            ("indent", "{{ ('\\n' * 100000) | indent(100000) }}"), ("join", "{{ range(1000000) | join('x' * 100000) }}")):
        yield "T9", name, chat(template, "template|chat")
    yield "T9", "nested 100000 deep", chat("{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}", "template")
    yield "T9", "100000 ifs", chat("{% if 1 %}" * 100_000, "template")
    yield "T9", "2 MB of template", chat("x" * (2 << 20), "template|prompt has")
    for name, template in (("mro", "{{ ''.__class__.__mro__ }}"),
                           ("globals", "{{ cycler.__init__.__globals__.os.popen('id').read() }}"),
                           ("self", "{{ self._TemplateReference__context.environ.x }}"),
                           ("include", "{% include '/etc/passwd' %}"),
                           ("import", "{% import 'os' as os %}{{ os.system('id') }}"),
                           ("attr", "{{ ('' | attr('__class__')).x.y }}"),
                           ("format", "{{ '{0.__class__.__mro__}'.format(messages) }}"),
                           ("open", "{{ open('/etc/passwd').read() }}"),
                           ("config", "{{ config.items() }}")):
        yield "T10", name, chat(template, "template|chat")
    yield "T10", "class of a list", chat("x{{ messages.__class__ }}", None, answered=True)
    yield "T11", "no template", chat(None, "has no chat template")
    yield "T11", "named templates", chat([{"name": "default", "template": "x"},
                                          {"name": "tool_use", "template": "{{ 1 / 0 }}"}],
                                         None, answered=True)
    yield "T11", "named templates without default", chat([{"name": "rag", "template": "x"}],
                                                         "no chat template named 'default'")
    yield "T11", "empty list", chat([], "no chat template")
    yield "T11", "empty template", chat("", "no tokens|template")
    for name, value in (("number", 7), ("object", {}), ("list of strings", ["x"]), ("list of empty objects", [{}])):
        def wrong_type(box, value=value):
            model = box.model()
            model.write(TOKENIZER_CONFIG, json.dumps({"chat_template": value}))
            box.inspect(model, "chat_template: expected")
        yield "T11", f"template {name}", wrong_type


def message_field(number, wire_type, payload):
    return bytes([number << 3 | wire_type]) + payload


def piece(text, score=0.0, kind=1):
    content = message_field(1, 2, bytes([len(text)]) + text) + message_field(2, 5, struct.pack("<f", score))
    content += message_field(3, 0, bytes([kind]))
    return message_field(1, 2, bytes([len(content)]) + content)


def sentencepiece_rows():
    good = piece(b"<unk>", kind=2) + piece(b"<s>", kind=3) + piece(b"</s>", kind=3) + piece(b"a") + piece(b"b", -1.0)
    trainer = message_field(2, 2, bytes([2]) + message_field(3, 0, b"\x02"))  # model_type BPE
    def proto(content, pattern, code=3):
        def test(box):
            model = box.model()
            model.remove(TOKENIZER)
            model.remove(TOKENIZER_CONFIG)
            model.write("tokenizer.model", content)
            box.run(["tokenize", "--model", model.path, "--text", "ab"], code=code, match=pattern)
        return test
    yield "T12", "good", proto(good + trainer, None, code=0)
    for cut in (1, 2, 5, len(trainer) + 3):
        yield "T12", f"{cut} bytes short", proto((good + trainer)[:-cut], "tokenizer.model: ")
    yield "T12", "empty", proto(b"", "no pieces")
    yield "T12", "no pieces", proto(trainer, "no pieces")
    yield "T12", "score NaN", proto(good + piece(b"c", float("nan")) + trainer, "piece 5 'c': the score is -?nan")
    yield "T12", "score infinite", proto(good + piece(b"c", float("inf")) + trainer, "the score is inf")
    yield "T12", "type 9", proto(good + piece(b"c", kind=9) + trainer, "unknown type 9")
    yield "T12", "piece twice", proto(good + piece(b"a") + trainer, "'a'")
    yield "T12", "not UTF-8", proto(good + piece(b"\xff") + trainer, "not UTF-8")
    yield "T12", "no unknown piece", proto(piece(b"a") + trainer, "0 pieces of type UNKNOWN")
    yield "T12", "unigram", proto(good + message_field(2, 2, bytes([2]) + message_field(3, 0, b"\x01")), None, code=0)
    yield "T12", "word model", proto(good + message_field(2, 2, bytes([2]) + message_field(3, 0, b"\x03")),
                                     "tokenizer.model")
    for name, junk in (("length 2^64-1", message_field(1, 2, b"\xff" * 9 + b"\x01")), ("endless number", b"\xff" * 20),
                       ("wire type 3", b"\x0b"), ("wire type 7", b"\x0f"), ("field 0", b"\x02\x00"),
                       ("text", b"hello world")):
        yield "T12", name, proto(good + trainer + junk, "tokenizer.model: ")


def cases():
    yield from vocabulary_rows()
    yield from text_rows()
    yield from template_rows()
    yield from sentencepiece_rows()
