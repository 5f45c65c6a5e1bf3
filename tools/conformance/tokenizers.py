#!/usr/bin/env python3
"""Compares Penstock's token ids with Hugging Face tokenizers, SentencePiece, tiktoken and published test vectors.

usage: tokenizers.py --data DIR (--tool TOKENIZER_TOOL | --penstock PENSTOCK) [--texts N] [--only NAME]

DIR holds tokenizers/ (mixtral_hf, qwen2, qwen3, olmoe, llama2, phi3, t5, mistral, dbrx, gpt_oss, llama_cpp_vocab,
vectors_transformersjs), and text/, mt_bench/ and workloads/, which provide texts. --tool is the test program
tests/tokenizer/tokenizer_tool.cc. --penstock is the command line, which handles neither texts of several lines nor
vocabularies of GGUF files. Needs the packages tokenizers, sentencepiece, tiktoken and gguf.

DIR/tokenizers may have more vocabularies: deepseek_v4/tokenizer.json, llama4/tokenizer.model, tekken/tekken_240911.json,
and GGUF files in llama_cpp_vocab. Families whose vocabulary is missing are compared by their parts (families.py).

Formats for which there is no model are compared on stand-ins: tiktoken's patterns on other ranks, names of
tokenizer.ggml.pre on OLMoE's vocabulary, SentencePiece models that are trained here. A table of all comparisons comes at
the end; it also lists vectors whose vocabulary is missing. The exit status is 1 if anything differs.
"""

import argparse
import base64
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

FOLDER = pathlib.Path(sys.path.pop(0))  # this folder, whose tokenizers.py would hide the package of that name
sys.path.append(str(FOLDER))
import dump_gguf_vocabulary
import families
import sentencepiece
import tiktoken
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

QWEN2_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                 r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SEPARATOR = "\n__ggml_vocab_test__\n"


def qwen2(folder, config_path):
    """Returns the tokenizer that transformers builds from vocab.json and merges.txt."""
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    config = json.loads(config_path.read_text(encoding="utf-8"))
    for _, token in sorted(config["added_tokens_decoder"].items(), key=lambda item: int(item[0])):
        tokenizer.add_tokens([AddedToken(**token)])
    return tokenizer


class Penstock:
    """Runs the program under test."""

    def __init__(self, arguments):
        self.arguments = arguments

    def encode(self, path, config, texts, special=True):
        """Returns a list of {"ids", "text", "plain"}, one per text, with None for texts that the program cannot take."""
        if self.arguments.tool:
            command = [self.arguments.tool, str(path)] + ([str(config)] if config else [])
            command += [] if special else ["--no-special"]
            lines = "".join(json.dumps(text) + "\n" for text in texts)
            run = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, check=True)
            return [json.loads(line) for line in run.stdout.decode().split("\n")[:-1]]
        usable = [i for i, text in enumerate(texts) if text and not set(text) & set("\r\n")]
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            for source in (path.iterdir() if path.is_dir() else [path, config]):
                if source:
                    name = "tokenizer.model" if ".model" in source.name else source.name
                    (folder / name).write_bytes(source.read_bytes())
            (folder / "texts").write_text("".join(texts[i] + "\n" for i in usable), encoding="utf-8")
            command = [self.arguments.penstock, "tokenize", "--model", scratch, "--file", str(folder / "texts")]
            run = subprocess.run(command + ([] if special else ["--no-special"]), stdout=subprocess.PIPE, check=True)
        results = [None] * len(texts)
        for i, line in zip(usable, run.stdout.decode().splitlines(), strict=True):
            results[i] = {"ids": json.loads(line)}
        return results


class Report:
    def __init__(self):
        self.failed = False
        self.rows = []

    def compare(self, name, truth, texts, got, want):
        compared = [(t, g["ids"], w) for t, g, w in zip(texts, got, want, strict=True) if g is not None]
        wrong = [(t, g, w) for t, g, w in compared if g != w]
        self.line(name, truth, len(compared), wrong)
        for text, ids, expected in wrong[:5]:
            print(f"  {text!r:.200}\n    got  {ids[:40]}\n    want {expected[:40]}")

    def line(self, name, truth, count, wrong):
        print(f"{name}: {count - len(wrong)} of {count} equal ({truth})", flush=True)
        self.rows.append((name, truth, str(count), str(count - len(wrong))))
        self.failed |= bool(wrong) or count == 0

    def skip(self, name, truth, why):
        self.rows.append((name, truth, "-", why))

    def table(self):
        rows = [("tokenizer", "source of truth", "cases", "passed")] + self.rows
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        print()
        for row in rows:
            print(" | ".join([row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].rjust(widths[2]), row[3]]))


def known_unicode(text):
    """Returns whether the text has only assigned code points. Python 3.11 follows Unicode 14, as utf8proc 2.8 does."""
    return not any(unicodedata.category(c) == "Cn" for c in text)


def hostile_texts(rng, count):
    """Returns texts of odd white space, scripts, emoji, digits and random code points."""
    snippets = ["  leading", "trailing  ", "a\tb", "\t\t x", "\n\n", " \n \n x", "\r\n", "a\r\nb\r\n\r\n", "\u00a0x",
                "\u3000\u3000x",
                "\u2003 em", "\u200b", "\u200d", "x\u0301\u0302\u0327", "\u1e9b\u0323", "\u212b", "\ufb01", "\uac00",
                "\u1100\u1161\u11a8",
                "\ud55c\uad6d\uc5b4", "\u4f60\u597d\uff0c\u4e16\u754c", "\u3053\u3093\u306b\u3061\u306f",
                "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
                "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947",
                "\u041f\u0440\u0438\u0432\u0435\u0442",
                "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd", "1", "12",
                "1234567", "3.14159", "\u0661\u0662\u0663",
                "\u00bd", "\u2167", "x=1;y=[2,3]", "don't", "DON'T", "we'LL", "I'\u017f", "it's", "'S", "''", "...",
                "\u2026", "!?!", "a_b", "camelCase", "HTMLParser",
                "<s>", "</s>", "<unk>", "<0x0A>", "<|endoftext|>", "<|im_start|>user\n", "[INST]", "\u2581", "\u2581\u2581a",
                "\x00", "\x01\x7f\x85", "\ufeff", "\ufffd",
                "#include <a>\n    int x = 0;\n", "def f(x):\n\treturn x**2\n", "||| |||IP_ADDRESS|||", "<|padding|>",
                "<|user|> \n x<|end|>\n", " " * 24, " " * 7]
    texts = []
    while len(texts) < count:
        parts = []
        for _ in range(rng.randint(1, 8)):
            if rng.random() < 0.25:
                ranges = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0x1E00, 0x1FFF),
                          (0x2000, 0x2BFF),
                          (0x3000, 0x30FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0x1F300, 0x1FAFF),
                          (0x1D400, 0x1D7FF)]
                low, high = rng.choice(ranges)
                parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))))
            else:
                parts.append(rng.choice(snippets))
            parts.append(rng.choice(["", "", " ", "  ", "\n"]))
        if known_unicode("".join(parts)):
            texts.append("".join(parts))
    return texts


def mixed_texts(data, count):
    """Returns lines of books, questions, answers and code, and half as many hostile texts."""
    rng = random.Random(20261121)
    lines = []
    files = sorted((data / "text").rglob("*.md")) + sorted((data / "text").rglob("*.txt"))
    files += sorted((data / "mt_bench").rglob("*.jsonl")) + sorted((data / "workloads").rglob("*.jsonl"))
    for path in files:
        found = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        for line in rng.sample(found, min(len(found), 40)):
            if path.suffix == ".jsonl":
                line = next((str(v) for v in json.loads(line).values() if isinstance(v, (str, list)) and len(str(v)) > 20),
                            line)
            lines.append(line[:2000])
    rng.shuffle(lines)
    lines = [line for line in lines if known_unicode(line)][:count // 2]
    return lines + hostile_texts(rng, count - len(lines))


def ggml_vectors(report, penstock, folder, name, tokenizer, title=None):
    """Compares the texts and ids that belong to llama.cpp's vocabulary `name`."""
    inputs = folder / f"ggml-vocab-{name}.gguf.inp"
    outputs = folder / f"ggml-vocab-{name}.gguf.out"
    texts = inputs.read_bytes().decode().split(SEPARATOR)
    want = [[int(i) for i in line.split()] for line in outputs.read_text().split("\n")[:len(texts)]]
    report.compare(title or f"{tokenizer.parent.name}/{tokenizer.name}", outputs.name, texts,
                   penstock.encode(tokenizer, None, texts, special=False), want)


def transformersjs_vectors(report, penstock, folder, vocabularies):
    """Compares the vectors of transformers.js; `vocabularies` has the model of each tokenizer that is present."""
    for path in sorted(folder.glob("*.json")):
        for name, cases in json.loads(path.read_text(encoding="utf-8"))["tokenizers"].items():
            truth = f"transformers.js {path.name}"
            if name not in vocabularies:
                report.skip(name, truth, "no vocabulary present")
                continue
            tokenizer, config = vocabularies[name]
            cases = [case for case in cases.values() if "text_pair" not in case]
            texts = [case["text"] for case in cases]
            got = penstock.encode(tokenizer, config, texts)
            report.compare(name, truth, texts, got, [case["ids"] for case in cases])
            decoded = [(case["text"], g["text"], case["decoded"]) for case, g in zip(cases, got, strict=True)
                       if g is not None and "text" in g]
            if decoded:
                report.line(f"{name}: decoded", truth, len(decoded), [t for t, g, want in decoded if g != want])


def mistral_samples(report, penstock, folder):
    """Compares prompts as mistral-common renders them: U+2581 stands for a space, and a control piece absorbs the prefix."""
    models_by_version = {"v1": "tokenizer.model.v1", "v2": None, "v3": "mistral_instruct_tokenizer_240323.model.v3"}
    for text_path in sorted((folder / "samples").rglob("text_v*.txt")):
        version = text_path.stem.removeprefix("text_")
        model = models_by_version[version] or models_by_version["v3"]
        model_path = folder / model
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(model_path))
        controls = [pieces.id_to_piece(i) for i in range(pieces.vocab_size()) if pieces.is_control(i)
                    or pieces.is_unknown(i)]
        want = json.loads(text_path.with_name(text_path.name.replace("text", "tokens").replace(".txt", ".json")).read_text())
        want = want["tokens"] if isinstance(want, dict) else want
        text = text_path.read_text(encoding="utf-8")
        for control in controls:
            text = text.replace(control + "\u2581", control)
        text = text.replace("\u2581", " ").replace("<0x0A>", "\n")
        got = penstock.encode(model_path, None, [text], special=False)
        report.compare(model_path.name, f"mistral-common {text_path.parent.name} {version}", [text], got, [want])


def mixed(report, penstock, name, reference, tokenizer, config, texts, reversible):
    """Compares on mixed texts. `reversible` says whether decoding returns the text; "nfc": it does for texts in NFC."""
    truth = f"tokenizers {tokenizers.__version__}, mixed texts"
    got = penstock.encode(tokenizer, config, texts)
    report.compare(name, truth, texts, got, [reference.encode(text).ids for text in texts])
    if got[0] is None or "text" not in got[0]:
        return
    decoded = [(t, g, reference.decode(g["ids"], skip_special_tokens=False)) for t, g in zip(texts, got, strict=True)]
    report.line(f"{name}: decoded", truth, len(decoded), [t for t, g, w in decoded if g["text"] != w])
    if not reversible:
        return
    plain = [(t, g) for t, g in zip(texts, penstock.encode(tokenizer, config, texts, special=False), strict=True)]
    added = reference.get_added_tokens_decoder().values()
    taken = [a.content for a in added]
    # Llama's tokenizers write a space as U+2581, so decoding turns this character into a space, too.
    plain = [(t, g) for t, g in plain
             if not any(content in t for content in taken) and (reversible == "nfc" or "\u2581" not in t)]
    if reversible == "nfc":
        plain = [(t, g) for t, g in plain if unicodedata.is_normalized("NFC", t)]
    wrong = [t for t, g in plain if g["text"] != t]
    report.line(f"{name}: decode(encode(text))", "the text itself", len(plain), wrong)
    for text in wrong[:5]:
        print(f"  {text!r:.200}")


def sentencepiece_mixed(report, penstock, name, model, texts):
    reference = sentencepiece.SentencePieceProcessor(model_file=str(model))
    controls = [reference.id_to_piece(i) for i in range(reference.vocab_size())
                if reference.is_control(i) or reference.is_unknown(i)]
    texts = [text for text in texts if not any(control in text for control in controls)]
    report.compare(name, f"sentencepiece {sentencepiece.__version__}, mixed texts", texts,
                   penstock.encode(model, None, texts, special=False), [reference.encode(text) for text in texts])


def trained_models(texts, scratch):
    """Yields SentencePiece models of kinds that no folder has: Unigram, user-defined pieces, normalizers."""
    corpus = scratch / "corpus.txt"
    corpus.write_text("\n".join(text.replace("\n", " ") for text in texts), encoding="utf-8")
    kinds = {
        "unigram": {"model_type": "unigram"},
        "unigram_bytes": {"model_type": "unigram", "byte_fallback": True, "remove_extra_whitespaces": False,
                          "user_defined_symbols": ["<sep>", "  ", "foo bar"],
                          "normalization_rule_name": "nfkc_cf"},
        "unigram_plain": {"model_type": "unigram", "normalization_rule_name": "identity", "add_dummy_prefix": False},
        "bpe_nmt_nfkc": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc", "byte_fallback": True,
                         "user_defined_symbols": ["<sep>", "  "]},
    }
    for name, options in kinds.items():
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_prefix=str(scratch / name), vocab_size=3000, character_coverage=0.98, minloglevel=2,
            hard_vocab_limit=False, **options)
        yield f"trained {name}", scratch / f"{name}.model"


def component_cases(root):
    """Yields (name, tokenizer.json as a dictionary): parts of published models, on the vocabularies that are present."""
    t5 = json.loads((root / "t5/tokenizer.json").read_text(encoding="utf-8"))
    olmoe = json.loads((root / "olmoe/tokenizer.json").read_text(encoding="utf-8"))
    mixtral = json.loads((root / "mixtral_hf/tokenizer.json").read_text(encoding="utf-8"))
    precompiled = t5["normalizer"]

    def sequence(kind, *parts):
        return {"type": "Sequence", kind: list(parts)}

    def metaspace(scheme, split=True):
        return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}

    def replace(regex, content):
        return {"type": "Replace", "pattern": {"Regex": regex}, "content": content}

    def split(regex, behavior="Isolated", invert=False):
        return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    strip_right = {"type": "Strip", "strip_left": False, "strip_right": True}
    yield "T5 of today", {**t5, "normalizer": sequence("normalizers", precompiled, strip_right, replace(" {2,}", "\u2581")),
                          "pre_tokenizer": metaspace("always")}
    yield "Unigram, first prefix", {**t5, "normalizer": sequence("normalizers", {"type": "Nmt"}, {"type": "NFKC"},
                                                                 replace(r"\s+", " ")), "pre_tokenizer": metaspace("first")}
    yield "Unigram, no split", {**t5, "normalizer": {"type": "Lowercase"}, "pre_tokenizer": metaspace("never", False)}
    yield "Llama-2 of today", {**mixtral, "normalizer": None, "pre_tokenizer": metaspace("first", False)}
    for behavior in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield f"Split {behavior}{' inverted' if invert else ''}", {
                **olmoe, "pre_tokenizer": sequence("pretokenizers", split(r"[^\p{L}\s]", behavior, invert), byte_level)}
    yield "BERT's words", {**olmoe, "pre_tokenizer": sequence("pretokenizers", {"type": "BertPreTokenizer"}, byte_level)}
    yield "delimiters", {**olmoe,
                         "pre_tokenizer": sequence("pretokenizers", {"type": "CharDelimiterSplit", "delimiter": "e"},
                                                            byte_level)}
    yield "Granite's digits", {**olmoe, "pre_tokenizer": sequence(
        "pretokenizers", {"type": "Digits", "individual_digits": True}, {**byte_level, "use_regex": True})}
    yield "RoBERTa's ends", {**olmoe, "post_processor": {"type": "RobertaProcessing", "sep": ["a", 66], "cls": ["b", 67],
                                                        "trim_offsets": True, "add_prefix_space": False}}
    for name, patterns in GGUF_PATTERNS.items():
        yield f"patterns of {name}", {**olmoe, "pre_tokenizer": sequence("pretokenizers", *map(split, patterns), byte_level)}
    kimi = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    yield "patterns of Kimi", {**olmoe, "pre_tokenizer": sequence(
        "pretokenizers", split(r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?" + kimi + r"|\p{N}{1,3}" + TAIL), byte_level)}


def components(report, penstock, root, texts, scratch):
    for name, file in component_cases(root):
        path = scratch / "tokenizer.json"
        path.write_text(json.dumps(file), encoding="utf-8")
        reference = Tokenizer.from_file(str(path))
        report.compare(f"tokenizer.json: {name}", f"tokenizers {tokenizers.__version__}, mixed texts", texts,
                       penstock.encode(path, None, texts), [reference.encode(text).ids for text in texts])


def model_families(report, penstock, root, texts, scratch):
    """Compares ids and decoded texts. Texts are those that do not fall apart where a family normalizes to NFC."""
    for name, file, missing in families.cases(root, lambda path: dump_gguf_vocabulary.dump(str(path))):
        if file is None:
            report.skip(name, "tokenizers", missing)
            continue
        path = scratch / "tokenizer.json"
        path.write_text(json.dumps(file), encoding="utf-8")
        has_nfc = file.get("normalizer") is not None and file["normalizer"]["type"] == "NFC"
        mixed(report, penstock, name, Tokenizer.from_file(str(path)), path, None, texts, "nfc" if has_nfc else "yes")


def read_ranks(path):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in path.read_bytes().splitlines())}


def tiktoken_cases(root):
    """Yields (name, ranks, file name, pattern, tokenizer_config): the models that are present, then stand-ins."""
    from tiktoken_ext import openai_public
    openai_public.load_tiktoken_bpe = openai_public.data_gym_to_mergeable_bpe_ranks = lambda *_, **__: {}
    cl100k, o200k = root / "dbrx/cl100k_base.tiktoken", root / "gpt_oss/o200k_base.tiktoken"
    patterns = {name: make()["pat_str"] for name, make in openai_public.ENCODING_CONSTRUCTORS.items()}
    kimi = "|".join([
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
    harmony = json.loads((root / "gpt_oss/tokenizer_config.json").read_text(encoding="utf-8"))
    return [
        ("dbrx", cl100k, cl100k.name, patterns["cl100k_base"], {}),
        ("gpt_oss", o200k, o200k.name, patterns["o200k_base"], harmony),
        ("Kimi's pattern, o200k's ranks", o200k, "tiktoken.model", kimi, {"tokenizer_class": "TikTokenTokenizer"}),
        ("Hunyuan's pattern, cl100k's ranks", cl100k, "hy.tiktoken", QWEN2_PATTERN, {}),
        ("GLM-4's pattern, cl100k's ranks", cl100k, "other.tiktoken", QWEN2_PATTERN.replace(r"\p{N}|", r"\p{N}{1,3}|"),
         {"tokenizer_class": "ChatGLM4Tokenizer"}),
        ("r50k's pattern, cl100k's ranks", cl100k, "r50k_base.tiktoken", patterns["r50k_base"], {}),
    ]


def tiktoken_mixed(report, penstock, root, texts, scratch):
    for name, ranks_path, file_name, pattern, config in tiktoken_cases(root):
        (scratch / file_name).write_bytes(ranks_path.read_bytes())
        (scratch / "tokenizer_config.json").write_text(json.dumps(config))
        special = {token["content"]: int(i) for i, token in config.get("added_tokens_decoder", {}).items()}
        reference = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=read_ranks(ranks_path), special_tokens=special)
        normal = [unicodedata.normalize("NFC", text) for text in texts] if file_name == "hy.tiktoken" else texts
        want = [reference.encode(text, allowed_special="all") for text in normal]
        got = penstock.encode(scratch / file_name, scratch / "tokenizer_config.json", texts, special=False)
        report.compare(name, f"tiktoken {tiktoken.__version__}, mixed texts", texts, got, want)
        if got[0] is not None and "text" in got[0]:
            wrong = [t for t, g in zip(normal, got, strict=True) if g["text"] != t]
            report.line(f"{name}: decode(encode(text))", "the text itself", len(normal), wrong)


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CASES = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
WORDS = CASES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SLASH_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ASCII_CASES = (r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+%s|"
               r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*%s|")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# llama.cpp's patterns for names of tokenizer.ggml.pre, as that program spells them.
GGUF_PATTERNS = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2], "mpt": [GPT2], "olmo": [GPT2],
    "llama-bpe": [WORDS + r"\p{N}{1,3}" + TAIL], "dbrx": [WORDS + r"\p{N}{1,3}" + TAIL],
    "smaug-bpe": [WORDS + r"\p{N}{1,3}" + TAIL], "glm4": [WORDS + r"\p{N}{1,3}" + TAIL],
    "glm5": [WORDS + r"\p{N}{1,3}" + TAIL],
    "chatglm-bpe": [WORDS + r"\p{N}{1,3}" + TAIL],
    "qwen2": [WORDS + r"\p{N}" + TAIL], "deepseek-r1-qwen": [WORDS + r"\p{N}" + TAIL],
    "hunyuan": [WORDS + r"\p{N}" + TAIL], "grok-2": [WORDS + r"\p{N}" + TAIL],
    "qwen35": [CASES + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "starcoder": [r"\p{N}", GPT2], "refact": [r"\p{N}", GPT2], "command-r": [r"\p{N}", GPT2],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3],
    "hunyuan-dense": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3],
    "gpt-4o": [ASCII_CASES % (CASES + "?", CASES + "?") + r"\p{N}{1,3}" + SLASH_TAIL],
    "llama4": [ASCII_CASES % (CASES + "?", CASES + "?") + r"\p{N}{1,3}" + SLASH_TAIL],
    "minimax-m2": [ASCII_CASES % (CASES + "?", CASES + "?") + r"\p{N}{1,3}" + SLASH_TAIL],
    "tekken": [ASCII_CASES % ("", "") + r"\p{N}" + SLASH_TAIL],
    "chameleon": ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
                  r"[\p{P}!-/:-@\[-`{-~]", GPT2],
    "bailingmoe": [r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                   r"|\s*[\r\n]|\s+(?!\S)|\s+"],
    "seed-coder": [WORDS + r"\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "exaone-moe": [CASES + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
                   r"|\s+(?!\S)|\s+"],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "viking": [" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", r"\p{N}"],
}


def gguf_names(report, penstock, root, texts, scratch):
    """Compares the names of tokenizer.ggml.pre with the same patterns in Hugging Face's tokenizers (OLMoE's vocabulary)."""
    model = json.loads((root / "olmoe/tokenizer.json").read_text(encoding="utf-8"))["model"]
    by_id = {i: token for token, i in model["vocab"].items()}
    # For Oniguruma, U+017F is an s if case is ignored; where llama.cpp spells out both cases, it is not.
    # "<|endoftext|>" is a control token whatever its type.
    texts = [text for text in texts if not any(part in text for part in ("\u017f", "\u212a", "<|endoftext|>"))]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    vocabulary = {"model": "gpt2", "tokens": [by_id.get(i, f"[UNUSED_{i}]") for i in range(max(by_id) + 1)],
                  "merges": merges,
                  "add_bos_token": False}
    for name, patterns in GGUF_PATTERNS.items():
        path = scratch / f"{name}.gguf.json"
        path.write_text(json.dumps({**vocabulary, "pre": name}), encoding="utf-8")
        reference = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(m.split(" ")) for m in merges],
                                         ignore_merges=name in ("llama-bpe", "tekken", "glm4", "glm5")))
        reference.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False) for pattern in patterns] +
            [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        report.compare(f"GGUF pre {name}", f"tokenizers {tokenizers.__version__}, mixed texts", texts,
                       penstock.encode(path, None, texts, special=False), [reference.encode(text).ids for text in texts])


def gguf_of_t5(root, scratch):
    """Returns T5's vocabulary as converters write it into a GGUF file."""
    file = json.loads((root / "t5/tokenizer.json").read_text(encoding="utf-8"))
    tokens, scores = zip(*file["model"]["vocab"], strict=True)
    types = [3 if i < 2 else 2 if i == 2 else 1 for i in range(len(tokens))]
    for added in file["added_tokens"]:
        types[added["id"]] = 2 if added["id"] == 2 else 3
    vocabulary = {"model": "t5", "tokens": tokens, "scores": scores, "token_type": types, "add_space_prefix": True,
                  "remove_extra_whitespaces": True, "precompiled_charsmap": file["normalizer"]["precompiled_charsmap"]}
    path = scratch / "t5.gguf.json"
    path.write_text(json.dumps(vocabulary), encoding="utf-8")
    return path


def gguf_vectors(report, penstock, root, scratch):
    vectors = root / "llama_cpp_vocab"
    present = {}
    for path in vectors.glob("*.gguf"):
        dump = scratch / f"{path.name}.json"
        with dump.open("wb") as out:
            subprocess.run([sys.executable, str(FOLDER / "dump_gguf_vocabulary.py"), str(path)], stdout=out, check=True)
        present[path.name.removeprefix("ggml-vocab-").removesuffix(".gguf")] = dump
    # The vocabulary of Qwen2's GGUF files, made from the model's own files.
    config = json.loads((root / "qwen2/tokenizer_config.json").read_text(encoding="utf-8"))
    vocab = json.loads((root / "qwen2/vocab.json").read_text(encoding="utf-8"))
    tokens = sorted(vocab, key=vocab.get) + [t["content"] for _, t in sorted(config["added_tokens_decoder"].items())]
    merges = [line for line in (root / "qwen2/merges.txt").read_text(encoding="utf-8").split("\n")
              if line and not line.startswith("#version")]
    made = {"model": "gpt2", "pre": "qwen2", "tokens": tokens, "merges": merges, "add_bos_token": False,
            "token_type": [1] * len(vocab) + [3] * (len(tokens) - len(vocab))}
    made_path = scratch / "qwen2.gguf.json"
    made_path.write_text(json.dumps(made), encoding="utf-8")
    reference = qwen2(root / "qwen2", root / "qwen2/tokenizer_config.json")
    for inputs in sorted(vectors.glob("*.inp")):
        name = inputs.name.removeprefix("ggml-vocab-").removesuffix(".gguf.inp")
        if name == "qwen2":
            texts = inputs.read_bytes().decode().split(SEPARATOR)
            report.compare("GGUF qwen2", f"tokenizers {tokenizers.__version__}, {inputs.name}", texts,
                           penstock.encode(made_path, None, texts, special=False), [reference.encode(t).ids for t in texts])
        elif not inputs.with_suffix(".out").exists():
            report.skip(f"GGUF {name}", inputs.name, "no expected ids present")
        elif name in present:
            ggml_vectors(report, penstock, vectors, name, present[name], f"GGUF {name}")
        elif name not in ("phi-3", "mpt"):
            report.skip(f"GGUF {name}", inputs.name, "no vocabulary present")


def all_vectors(report, penstock, root, scratch):
    llama2, qwen2_folder = root / "llama2", root / "qwen2"
    vectors = root / "llama_cpp_vocab"
    for tokenizer in (llama2 / "tokenizer.json", llama2 / "tokenizer.model", root / "phi3/tokenizer.json"):
        for name in ("llama-spm", "phi-3"):
            ggml_vectors(report, penstock, vectors, name, tokenizer)
    ggml_vectors(report, penstock, vectors, "mpt", root / "olmoe/tokenizer.json")    # both are GPT-NeoX's
    if penstock.arguments.tool:
        gguf_vectors(report, penstock, root, scratch)
    transformersjs_vectors(report, penstock, root / "vectors_transformersjs", {
        "Xenova/llama-tokenizer": (llama2 / "tokenizer.json", None),
        "Xenova/Qwen1.5-0.5B-Chat": (qwen2_folder, qwen2_folder / "tokenizer_config.json"),
        "Xenova/t5-small": (root / "t5/tokenizer.json", root / "t5/tokenizer_config.json"),
        "google-t5/t5-small": (root / "t5/tokenizer.json", root / "t5/tokenizer_config.json")})
    mistral_samples(report, penstock, root / "mistral")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--tool")
    parser.add_argument("--penstock")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--only", help="run one part: vectors, json, components, families, sentencepiece, tiktoken, "
                        "gguf")
    arguments = parser.parse_args()
    if not arguments.tool and not arguments.penstock:
        parser.error("--tool or --penstock is needed")
    penstock, report, root = Penstock(arguments), Report(), arguments.data / "tokenizers"
    texts = mixed_texts(arguments.data, arguments.texts)
    print(f"{len(texts)} mixed texts, {sum(len(text.encode()) for text in texts)} bytes")
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = pathlib.Path(scratch_name)
        if arguments.only in (None, "vectors"):
            all_vectors(report, penstock, root, scratch)
        if arguments.only in (None, "json"):
            for name, reversible in (("mixtral_hf", "yes"), ("llama2", "yes"), ("phi3", "yes"), ("olmoe", "nfc"),
                                     ("t5", "")):
                path = root / name / "tokenizer.json"
                mixed(report, penstock, name, Tokenizer.from_file(str(path)), path, None, texts, reversible)
            for name, config in (("qwen2", root / "qwen2/tokenizer_config.json"),
                                 ("qwen3", root / "qwen3/qwen3_30b_a3b.tokenizer_config.json")):
                mixed(report, penstock, name, qwen2(root / "qwen2", config), root / "qwen2", config, texts, "nfc")
        if arguments.only in (None, "components"):
            components(report, penstock, root, texts, scratch)
        if arguments.only in (None, "families"):
            model_families(report, penstock, root, texts, scratch)
        if arguments.only in (None, "sentencepiece"):
            present = [("llama2 model", root / "llama2/tokenizer.model"),
                       ("mistral v1", root / "mistral/tokenizer.model.v1"),
                       ("mistral v3", root / "mistral/mistral_instruct_tokenizer_240323.model.v3")]
            for name, model in present + list(trained_models(texts, scratch)):
                sentencepiece_mixed(report, penstock, name, model, texts)
        if arguments.only in (None, "tiktoken"):
            tiktoken_mixed(report, penstock, root, texts, scratch)
        if arguments.only in (None, "gguf") and arguments.tool:
            gguf_names(report, penstock, root, texts, scratch)
            reference = Tokenizer.from_file(str(root / "t5/tokenizer.json"))
            # Hugging Face's tokenizers normalise graphemes, llama.cpp whole texts: they differ around control
            # characters.
            texts = [text for text in texts if not any(unicodedata.category(c) in ("Cc", "Cf") for c in text)]
            report.compare("GGUF t5", f"tokenizers {tokenizers.__version__}, mixed texts", texts,
                           penstock.encode(gguf_of_t5(root, scratch), None, texts),
                           [reference.encode(text).ids for text in texts])
    report.table()
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
