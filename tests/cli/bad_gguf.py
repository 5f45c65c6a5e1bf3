"""Tests of rows G (GGUF). See bad_inputs.py."""
import json
import struct

import tiny_gguf
import tiny_model

# isort: split
# tiny_gguf lets this be found.
import gguf_file
from gguf_file import ARRAY, BOOL, F32, I32, STRING, U8, U16, U32, U64


def inspected(content, pattern, code=3, name="tiny.gguf", **options):
    """Returns a test that writes `content` (bytes, or a Gguf) to a file and runs `inspect` on it."""
    def test(box):
        data = content if isinstance(content, bytes) else content.bytes()
        path = box.file(name, data)
        box.run(["inspect", "--model", path], code=code, match=pattern, **options)
    return test


def spoiled(spoil, pattern, **options):
    gguf = tiny_gguf.tiny()
    result = spoil(gguf)
    return inspected(result if isinstance(result, bytes) else gguf, pattern, **options)


def with_field(key, kind, value, pattern, **options):
    return spoiled(lambda gguf: gguf.set(key, kind, value) and None, pattern, **options)


def without(key, pattern):
    def spoil(gguf):
        gguf.fields = [field for field in gguf.fields if field[0] != key]
    return spoiled(spoil, pattern)


def header_rows():
    good = tiny_gguf.tiny().bytes()
    for size in (0, 3, 4, 7, 11, 23):
        yield "G1", f"{size} bytes", inspected(good[:size], "the file ends after")
    yield "G1", "magic", inspected(b"GGML" + good[4:], "not a GGUF file: it begins with 'GGML'")
    for version in (0, 1, 2, 4):
        yield "G1", f"version {version}", inspected(good[:4] + struct.pack("<I", version) + good[8:],
                                                    f"version {version} of GGUF is not read, only 3")
    yield "G1", "big-endian", inspected(good[:4] + struct.pack(">I", 3) + good[8:], "version 3: the file is big-endian")
    yield "G1", "LFS pointer", inspected(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
                                         "git lfs pull")

    for name, count in (("-1", (1 << 64) - 1), ("2^63", 1 << 63), ("more than bytes left", len(good))):
        def tensors(gguf, count=count):
            gguf.num_tensors = count
        def fields(gguf, count=count):
            gguf.num_fields = count
        yield "G2", f"n_tensors {name}", spoiled(tensors, f"{count} tensors do not fit")
        yield "G2", f"n_kv {name}", spoiled(fields, f"{count} keys do not fit")

    yield "G3", "key length 2^64-1", spoiled(lambda g: g.header()[:24] + struct.pack("<Q", (1 << 64) - 1) + bytes(10000),
                                             "key 0 .*the limit is 65535")
    yield "G3", "empty key", with_field("", U32, 1, "is empty")
    yield "G3", "key of 65,536", with_field("k" * 65536, U32, 1, "has 65536 bytes, the limit is 65535")
    yield "G3", "key of 65,535", with_field("k" * 65535, U32, 1, None, code=0)
    yield "G3", "non-ASCII key", with_field("schl\u00fcssel", U32, 1, "not printable ASCII")
    yield "G3", "NUL in a key", with_field("a\0b", U32, 1, "not printable ASCII")

    def twice(gguf):
        gguf.fields.append(gguf.fields[0])
    yield "G3", "duplicate key", spoiled(twice, "'general.architecture' appears twice")

    def million(gguf):
        keys = b"".join(gguf_file.text(f"k{i}") + struct.pack("<IB", U8, 0) for i in range(1_000_000))
        gguf.num_fields = len(gguf.fields) + 1_000_001
        header = gguf.header()
        end = header.index(b"token_embd.weight") - 8
        return header[:end] + keys + gguf_file.text("k0") + struct.pack("<IB", U8, 0) + header[end:]
    yield "G3", "a million keys", spoiled(million, "'k0' appears twice", max_rss=400 << 20)


def value_rows():
    for kind in (13, 99, 0xFFFFFFFF):
        yield "G4", f"value type {kind}", with_field("x", kind, b"\0" * 8, f"key 'x': value type {kind} is unknown")
        yield "G4", f"element type {kind}", with_field("x", ARRAY, struct.pack("<IQ", kind, 1) + bytes(8),
                                                       f"element type {kind} is unknown")
    yield "G4", "array of arrays", with_field("x", ARRAY, struct.pack("<IQIQ", ARRAY, 1, U8, 1) + b"\0", "arrays of arrays")
    yield "G4", "string length", with_field("x", STRING, struct.pack("<Q", 1 << 62), "key 'x'|x at byte|x has")
    yield "G4", "array of 2^61 u64", with_field("x", ARRAY, struct.pack("<IQ", U64, 1 << 61), "2305843009213693952 elements")
    yield "G4", "array of 2^60 strings", with_field("x", ARRAY, struct.pack("<IQ", STRING, 1 << 60),
                                                    "elements, but the file")
    yield "G4", "string in an array", with_field("x", ARRAY, struct.pack("<IQQ", STRING, 1, 1 << 63), "x")
    yield "G4", "bool 7", with_field("x", BOOL, 7, "a bool that is neither 0 nor 1")
    yield "G4", "bool array", with_field("x", ARRAY, (BOOL, [0, 1, 2]), "a bool that is neither 0 nor 1")

    num_tokens = tiny_model.FIRST_SPECIAL_ID + len(tiny_model.SPECIAL_TOKENS)
    key = "tokenizer.ggml."
    for name, kind, value, pattern in (
            ("tokens u8", "tokens", (U8, [1] * num_tokens), "tokenizer.ggml.tokens': expected an array of strings, found "
                                                            "array of u8"),
            ("tokens string", "tokens", "a", "tokenizer.ggml.tokens': expected an array of strings, found string"),
            ("types f32", "token_type", (F32, [1.0] * num_tokens), "token_type': expected an array of integers"),
            ("types of many", "token_type", (U8, b"\1" * ((1 << 21) + 1)),
             "token_type': 2097153 elements, the limit is 2097152"),
            ("merges of many", "merges", (STRING, [""] * ((1 << 21) + 1)), "merges': 2097153 elements, the limit is"),
            ("types short", "token_type", (I32, [1] * (num_tokens - 1)), "token_type"),
            ("types long", "token_type", (I32, [1] * (num_tokens + 1)), "token_type"),
            ("scores u8", "scores", (U8, [0] * num_tokens), "scores': expected an array of f32, found array of u8"),
            ("scores short", "scores", (F32, [0.0] * 3), "scores"),
            ("merges i32", "merges", (I32, [1, 2]), "merges': expected an array of strings"),
            ("merges of nothing", "merges", (STRING, ["zz yy"]), "merge"),
            ("duplicate token", "tokens", (STRING, ["a"] * num_tokens), "tokenizer.ggml.tokens|token"),
            ("empty tokens", "tokens", (STRING, []), "tokens")):
        yield "G5", name, with_field(key + kind, STRING if isinstance(value, str) else ARRAY, value, pattern)
    yield "G5", "model type", with_field(key + "model", STRING, "bert", "bert")
    yield "G5", "pre", with_field(key + "pre", STRING, "nobody-knows", "nobody-knows")
    yield "G5", "model number", with_field(key + "model", U32, 1, "tokenizer.ggml.model': expected string, found u32")
    yield "G5", "bos string", with_field(key + "bos_token_id", STRING, "1", "bos_token_id': expected an integer")
    yield "G5", "eos beyond", with_field(key + "eos_token_id", U32, 1 << 20, "eos_token_id")
    yield "G5", "template number", with_field("tokenizer.chat_template", U32, 1, "chat_template': expected string")

    for value in (0, 3, 4, 48, 1 << 31):
        yield "G6", f"alignment {value}", with_field("general.alignment", U32, value,
                                                     "general.alignment': expected a power of two")
    yield "G6", "alignment u64", with_field("general.alignment", U64, 32, "general.alignment': expected u32, found u64")
    yield "G6", "alignment string", with_field("general.alignment", STRING, "32",
                                               "general.alignment': expected u32, found string")


def tensor_rows():
    def with_tensor(edit, pattern, name="output.weight", **options):
        return spoiled(lambda gguf: edit(gguf.tensor(name)) and None, pattern, **options)

    def dims(value):
        def edit(tensor):
            tensor.dims = value
        return edit

    def offset(value):
        def edit(tensor):
            tensor.offset = value
        return edit

    def kind(value):
        def edit(tensor):
            tensor.kind = value
        return edit

    def named(value):
        def edit(tensor):
            tensor.name = value
        return edit

    yield "G7", "no dims", with_tensor(dims([]), "'output.weight': 0 dimensions, expected 1 to 4")
    yield "G7", "5 dims", with_tensor(dims([16, 300, 1, 1, 1]), "5 dimensions")
    yield "G7", "dim 0", with_tensor(dims([16, 0]), "dimension 1 is 0")
    yield "G7", "dim -1", with_tensor(dims([-1, 300]), "dimension 0 is 18446744073709551615")
    yield "G7", "dim 2^42 + 1", with_tensor(dims([16, (1 << 42) + 1]), "expected 1 to 2\\^40")
    yield "G7", "product", with_tensor(dims([1 << 40] * 4), "its size overflows")
    yield "G7", "no whole blocks", with_tensor(kind(8), "rows of 16 are not whole blocks of 32 \\(Q8_0\\)")
    yield "G7", "other shape", with_tensor(dims([300, 16]), "output.weight has shape \\[16, 300\\], expected \\[300, 16\\]")
    yield "G7", "fewer rows", with_tensor(dims([16, 299]), "output.weight has shape|overlaps")
    yield "G7", "long name", with_tensor(named("x" * 65), "has 65 bytes, the limit is 64")
    yield "G7", "no name", with_tensor(named(""), "has no name")
    yield "G7", "name twice", with_tensor(named("token_embd.weight"), "'token_embd.weight' appears twice")
    yield "G7", "other name", with_tensor(named("output.weigth"), "output.weigth is not part of such a model|token_embd")

    yield "G8", "unaligned", with_tensor(offset(33), "offset 33 is not a multiple of 32")
    yield "G8", "overlap", with_tensor(offset(0), "overlaps")
    yield "G8", "beyond", with_tensor(offset(1 << 30), "reach beyond the file's")
    yield "G8", "wraps", with_tensor(offset((1 << 64) - 32), "reach beyond the file's")
    good = tiny_gguf.tiny().bytes()
    for cut in (1, 100, 5000):
        yield "G8", f"{cut} bytes short", inspected(good[:-cut], "reach beyond the file's .* download it again")
    for number, name in ((4, "4"), (15, "Q8_K"), (24, "I8"), (28, "F64"), (5, "5"), (4711, "4711")):
        yield "G9", f"type {name}", with_tensor(kind(number), f"type {name} is .*: expected one of F32, F16, BF16, MXFP4, "
                                                              f"Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, "
                                                              f"IQ4_NL, IQ4_XS, IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, "
                                                              f"IQ1_M, IQ1_S, TQ1_0, TQ2_0")


def split_rows():
    def files(spoil, pattern, code=3, ask=None):
        def test(box):
            parts = tiny_gguf.split(3)
            contents = {tiny_gguf.split_name(i, 3): part for i, part in enumerate(parts)}
            spoil(contents)
            for name, part in contents.items():
                box.file(name, part.bytes())
            path = box.dir if ask is None else box.path(ask)
            box.run(["inspect", "--model", path], code=code, match=pattern)
        return test

    second = tiny_gguf.split_name(1, 3)
    yield "G10", "whole", files(lambda contents: None, None, code=0)
    yield "G10", "asked by any file", files(lambda contents: None, None, code=0, ask=second)
    yield "G10", "one missing", files(lambda contents: contents.pop(second) and None,
                                      f"'{second}' of the split model is missing")
    yield "G10", "wrong split.no", files(lambda contents: contents[second].set("split.no", U16, 2) and None,
                                         "file 2 of 3 by its name, but 3 of 3 by its keys")
    yield "G10", "wrong split.count", files(lambda contents: contents[second].set("split.count", U16, 2) and None,
                                            "split.count")
    yield "G10", "split.no string", files(lambda contents: contents[second].set("split.no", STRING, "1") and None,
                                          "split.no': expected an integer")

    def of_another(contents):
        contents[second].tensors = contents[second].tensors[1:]
    yield "G10", "another model's", files(of_another, "'split.tensors.count' says .* to different models")

    def twice(contents):
        contents[second].tensors = list(contents[tiny_gguf.split_name(0, 3)].tensors[:len(contents[second].tensors)])
    yield "G10", "tensors twice", files(twice, "is also in|different models")

    def two_models(box):
        box.file("a.gguf", tiny_gguf.tiny().bytes())
        box.file("b.gguf", tiny_gguf.tiny().bytes())
        box.run(["inspect", "--model", box.dir], code=2, match="several GGUF models .*give the path of one")
        box.run(["inspect", "--model", box.path("b.gguf")])
    yield "G10", "two models", two_models

    def two_formats(box):
        model = box.model()
        with open(model.file("tiny.gguf"), "wb") as file:
            file.write(tiny_gguf.tiny().bytes())
        box.inspect(model, "two formats", code=2)
        box.run(["inspect", "--model", model.file("tiny.gguf")])
    yield "X7", "GGUF and safetensors", two_formats


def config_rows():
    for key, name in (("block_count", "llama.block_count"), ("expert_count", "llama.expert_count"),
                      ("attention.head_count", "llama.attention.head_count"),
                      ("embedding_length", "llama.embedding_length"), ("expert_used_count", "llama.expert_used_count"),
                      ("attention.head_count_kv", "llama.attention.head_count_kv"),
                      ("context_length", "llama.context_length")):
        for value in (0, 1_000_000_000):
            yield "G11", f"{key} {value}", with_field("llama." + key, U32, value, name)
        yield "G11", f"{key} string", with_field("llama." + key, STRING, "2", name)
        yield "G11", f"no {key}", without("llama." + key, name + "|head_count|does not fit|shape")
    yield "G11", "heads do not divide", with_field("llama.attention.head_count_kv", U32, 3, "multiple of")
    yield "G11", "block_count 513", with_field("llama.block_count", U32, 513, "blk.2.attn_norm.weight is missing")
    yield "G11", "top-k above experts", with_field("llama.expert_used_count", U32, 5, "num_experts_per_tok 5|expert")
    yield "G11", "epsilon NaN", with_field("llama.attention.layer_norm_rms_epsilon", F32, float("nan"),
                                           "layer_norm_rms_epsilon")
    yield "G11", "sigmoids", with_field("llama.expert_gating_func", U32, 2, r"expert_gating_func': expected 1 \(softmax\)")
    yield "G11", "unknown router", with_field("llama.expert_gating_func", U32, 99, "expert_gating_func': expected 1")
    yield "G11", "scaled experts", with_field("llama.expert_weights_scale", F32, 2.5, "expert_weights_scale': expected 1")
    yield "G11", "not causal", with_field("llama.attention.causal", BOOL, False, "attention.causal': expected true")
    yield "G11", "key of dots", with_field("llama." + "." * 20000, U32, 1, None, code=0)
    yield "G11", "no window", with_field("llama.attention.sliding_window", U32, 0, None, code=0)
    yield "G11", "no eot", with_field("tokenizer.ggml.eot_token_id", U32, 0xFFFFFFFF, None, code=0)
    yield "G11", "architecture", with_field("general.architecture", STRING, "falcon",
                                            "'falcon' is not supported; supported: llama")
    yield "G11", "architecture number", with_field("general.architecture", U32, 1, "general.architecture': expected string")
    yield "G11", "no architecture", without("general.architecture", "'general.architecture' is missing")
    yield "G11", "dense model", with_field("llama.expert_count", U32, 0, "only models with experts")


    for name, value in (("temp", -1.0), ("temp", float("nan")), ("top_p", 2.0), ("min_p", -0.5), ("penalty_repeat", 0.0)):
        yield "G11", f"sampling.{name} {value}", with_field(f"general.sampling.{name}", F32, value,
                                                            rf"general\.sampling\.{name}: expected a number from")
    yield "G11", "sampling.top_k -2", with_field("general.sampling.top_k", I32, -2,
                                                 "sampling.top_k: expected a number from -1")
    yield "G11", "sampling.top_k -1", with_field("general.sampling.top_k", I32, -1, None, code=0)  # off


def default_sampling(box):
    """Checks that a GGUF file samples as a folder with the same generation_config.json does."""
    model = box.model("folder")
    gguf = tiny_gguf.tiny()
    config = {"do_sample": True}
    for name, key, kind, value in (("temperature", "temp", F32, 2.0), ("top_k", "top_k", I32, 50),
                                   ("top_p", "top_p", F32, 0.75), ("min_p", "min_p", F32, 0.0),
                                   ("repetition_penalty", "penalty_repeat", F32, 1.25)):
        gguf.set(f"general.sampling.{key}", kind, value)
        config[name] = value
    model.write("generation_config.json", json.dumps(config))
    path = box.file("tiny.gguf", gguf.bytes())
    answers = {}
    for seed in ("1", "2"):
        args = ["generate", "--prompt=the aaaa in", "--raw", "--max-tokens=12", "--ignore-eos", "--seed", seed]
        answers[seed] = box.run([*args, "--model", model.path]).stdout
        box.expect(box.run([*args, "--model", path]).stdout == answers[seed], "the GGUF file samples in another way")
    box.expect(answers["1"] != answers["2"], "nothing was sampled")


def works(box):
    """Checks that the tiny model gives the same answers as a GGUF file and as a folder."""
    model = box.model("folder")
    path = box.file("tiny.gguf", tiny_gguf.tiny().bytes())
    args = ["--prompt=the aaaa in", "--max-tokens=12", "--ignore-eos"]
    expected = box.run(["generate", "--model", model.path] + args).stdout
    found = box.run(["generate", "--model", path] + args).stdout
    box.expect(expected == found, f"{found!r} instead of {expected!r}")
    for folder in (model.path, path):
        box.run(["tokenize", "--model", folder, "--text", "the aaaa"])


def cases():
    yield "G0", "works", works
    yield "G0", "default sampling", default_sampling
    for rows in (header_rows, value_rows, tensor_rows, split_rows, config_rows):
        yield from rows()
