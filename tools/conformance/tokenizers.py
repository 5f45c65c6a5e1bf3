#!/usr/bin/env python3
"""Compares Penstock's token ids with Hugging Face tokenizers, SentencePiece and published test vectors.

usage: tokenizers.py --data DIR (--tool TOKENIZER_TOOL | --penstock PENSTOCK) [--texts N] [--only NAME]

DIR holds tokenizers/ (mixtral_hf, qwen2, olmoe, llama2, phi3, mistral, llama_cpp_vocab, vectors_transformersjs) and text/,
mt_bench/, workloads/ to take texts from. --tool is the test program tests/tokenizer/tokenizer_tool.cc; --penstock is the
command line, of which only texts of one line can be asked. Needs the packages tokenizers and sentencepiece.
Exit status 1 when anything differs.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

del sys.path[0]  # this folder, whose tokenizers.py would hide the package of that name
import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

QWEN2_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                 r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SEPARATOR = "\n__ggml_vocab_test__\n"


def qwen2(folder):
    """The tokenizer that transformers builds from vocab.json and merges.txt."""
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    for _, token in sorted(config["added_tokens_decoder"].items(), key=lambda item: int(item[0])):
        tokenizer.add_tokens([AddedToken(**token)])
    return tokenizer


class Penstock:
    """Runs the program under test."""

    def __init__(self, arguments):
        self.arguments = arguments

    def encode(self, path, config, texts, special=True):
        """A list of {"ids", "text", "plain"} (None where the program cannot be asked), one per text."""
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

    def compare(self, name, texts, got, want):
        compared = [(t, g["ids"], w) for t, g, w in zip(texts, got, want, strict=True) if g is not None]
        wrong = [(t, g, w) for t, g, w in compared if g != w]
        self.line(name, len(compared), wrong)
        for text, ids, expected in wrong[:5]:
            print(f"  {text!r:.200}\n    got  {ids[:40]}\n    want {expected[:40]}")

    def line(self, name, count, wrong):
        print(f"{name}: {count - len(wrong)} of {count} equal", flush=True)
        self.failed |= bool(wrong) or count == 0


def known_unicode(text):
    """Does the text have only assigned code points? Python 3.11 follows Unicode 14, as utf8proc 2.8 does."""
    return not any(unicodedata.category(c) == "Cn" for c in text)


def hostile_texts(rng, count):
    """Texts of odd white space, scripts, emoji, digits, and random code points."""
    snippets = ["  leading", "trailing  ", "a\tb", "\t\t x", "\n\n", " \n \n x", "\r\n", "a\r\nb\r\n\r\n", "\u00a0x", "\u3000\u3000x",
                "\u2003 em", "\u200b", "\u200d", "x\u0301\u0302\u0327", "\u1e9b\u0323", "\u212b", "\ufb01", "\uac00", "\u1100\u1161\u11a8",
                "\ud55c\uad6d\uc5b4", "\u4f60\u597d\uff0c\u4e16\u754c", "\u3053\u3093\u306b\u3061\u306f", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
                "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u041f\u0440\u0438\u0432\u0435\u0442",
                "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd", "1", "12", "1234567", "3.14159", "\u0661\u0662\u0663",
                "\u00bd", "\u2167", "x=1;y=[2,3]", "don't", "DON'T", "we'LL", "I'\u017f", "it's", "'S", "''", "...", "\u2026", "!?!", "a_b", "camelCase", "HTMLParser",
                "<s>", "</s>", "<unk>", "<0x0A>", "<|endoftext|>", "<|im_start|>user\n", "[INST]", "\u2581", "\u2581\u2581a", "\x00", "\x01\x7f\x85", "\ufeff", "\ufffd",
                "#include <a>\n    int x = 0;\n", "def f(x):\n\treturn x**2\n", "||| |||IP_ADDRESS|||", "<|padding|>", "<|user|> \n x<|end|>\n", " " * 24, " " * 7]
    texts = []
    while len(texts) < count:
        parts = []
        for _ in range(rng.randint(1, 8)):
            if rng.random() < 0.25:
                ranges = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0x1E00, 0x1FFF), (0x2000, 0x2BFF),
                          (0x3000, 0x30FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0x1F300, 0x1FAFF), (0x1D400, 0x1D7FF)]
                low, high = rng.choice(ranges)
                parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))))
            else:
                parts.append(rng.choice(snippets))
            parts.append(rng.choice(["", "", " ", "  ", "\n"]))
        if known_unicode("".join(parts)):
            texts.append("".join(parts))
    return texts


def mixed_texts(data, count):
    """Lines of books, questions, answers and code, and half as many hostile texts."""
    rng = random.Random(20261121)
    lines = []
    files = sorted((data / "text").rglob("*.md")) + sorted((data / "text").rglob("*.txt"))
    files += sorted((data / "mt_bench").rglob("*.jsonl")) + sorted((data / "workloads").rglob("*.jsonl"))
    for path in files:
        found = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        for line in rng.sample(found, min(len(found), 40)):
            if path.suffix == ".jsonl":
                line = next((str(v) for v in json.loads(line).values() if isinstance(v, (str, list)) and len(str(v)) > 20), line)
            lines.append(line[:2000])
    rng.shuffle(lines)
    lines = [line for line in lines if known_unicode(line)][:count // 2]
    return lines + hostile_texts(rng, count - len(lines))


def ggml_vectors(report, penstock, folder, tokenizer, config, names):
    for name in names:
        inputs = folder / f"ggml-vocab-{name}.gguf.inp"
        outputs = folder / f"ggml-vocab-{name}.gguf.out"
        if not outputs.exists():
            print(f"{inputs.name}: no expected ids")
            continue
        texts = inputs.read_bytes().decode().split(SEPARATOR)
        want = [[int(i) for i in line.split()] for line in outputs.read_text().split("\n")[:len(texts)]]
        report.compare(f"{outputs.name} with {tokenizer.parent.name}/{tokenizer.name}", texts,
                       penstock.encode(tokenizer, config, texts, special=False), want)


def transformersjs_vectors(report, penstock, path, name, tokenizer, config):
    cases = json.loads(path.read_text(encoding="utf-8"))["tokenizers"][name].values()
    cases = [case for case in cases if "text_pair" not in case]
    texts = [case["text"] for case in cases]
    got = penstock.encode(tokenizer, config, texts)
    report.compare(f"{path.name} {name}", texts, got, [case["ids"] for case in cases])


def mistral_samples(report, penstock, folder):
    """Prompts as mistral-common renders them, where U+2581 stands for a space and a control piece swallows the prefix."""
    models_by_version = {"v1": "tokenizer.model.v1", "v2": None, "v3": "mistral_instruct_tokenizer_240323.model.v3"}
    for text_path in sorted((folder / "samples").rglob("text_v*.txt")):
        version = text_path.stem.removeprefix("text_")
        model = models_by_version[version] or models_by_version["v3"]
        model_path = folder / model
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(model_path))
        controls = [pieces.id_to_piece(i) for i in range(pieces.vocab_size()) if pieces.is_control(i) or pieces.is_unknown(i)]
        want = json.loads(text_path.with_name(text_path.name.replace("text", "tokens").replace(".txt", ".json")).read_text())
        want = want["tokens"] if isinstance(want, dict) else want
        text = text_path.read_text(encoding="utf-8")
        for control in controls:
            text = text.replace(control + "\u2581", control)
        text = text.replace("\u2581", " ").replace("<0x0A>", "\n")
        got = penstock.encode(model_path, None, [text], special=False)
        report.compare(f"mistral {text_path.parent.name} {version}", [text], got, [want])


def mixed(report, penstock, name, reference, tokenizer, config, texts, normalizing):
    got = penstock.encode(tokenizer, config, texts)
    report.compare(f"{name}: mixed texts", texts, got, [reference.encode(text).ids for text in texts])
    if got[0] is None or "text" not in got[0]:
        return
    decoded = [(t, g, reference.decode(g["ids"], skip_special_tokens=False)) for t, g in zip(texts, got, strict=True)]
    report.line(f"{name}: decoded texts, special tokens shown", len(decoded), [t for t, g, w in decoded if g["text"] != w])
    plain = [(t, g) for t, g in zip(texts, penstock.encode(tokenizer, config, texts, special=False), strict=True)]
    added = reference.get_added_tokens_decoder().values()
    taken = [a.content for a in added]
    # Llama's tokenizers write a space as U+2581, so the character itself comes back as a space.
    plain = [(t, g) for t, g in plain if not any(content in t for content in taken) and (normalizing or "\u2581" not in t)]
    if normalizing:
        plain = [(t, g) for t, g in plain if unicodedata.is_normalized("NFC", t)]
    wrong = [t for t, g in plain if g["text"] != t]
    report.line(f"{name}: decode(encode(text)) == text", len(plain), wrong)
    for text in wrong[:5]:
        print(f"  {text!r:.200}")


def sentencepiece_mixed(report, penstock, name, model, texts):
    reference = sentencepiece.SentencePieceProcessor(model_file=str(model))
    controls = [reference.id_to_piece(i) for i in range(reference.vocab_size())
                if reference.is_control(i) or reference.is_unknown(i)]
    texts = [text for text in texts if not any(control in text for control in controls)]
    report.compare(f"{name}: mixed texts against sentencepiece", texts, penstock.encode(model, None, texts, special=False),
                   [reference.encode(text) for text in texts])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--tool")
    parser.add_argument("--penstock")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--only", help="run the mixed texts of one tokenizer")
    arguments = parser.parse_args()
    if not arguments.tool and not arguments.penstock:
        parser.error("--tool or --penstock is needed")
    print(f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}")
    penstock, report, root = Penstock(arguments), Report(), arguments.data / "tokenizers"

    mixtral, llama2 = root / "mixtral_hf", root / "llama2"
    if not arguments.only:
        vectors = root / "llama_cpp_vocab"
        for tokenizer, config in ((llama2 / "tokenizer.json", None), (llama2 / "tokenizer.model", None),
                                  (root / "phi3/tokenizer.json", None)):
            ggml_vectors(report, penstock, vectors, tokenizer, config, ["llama-spm", "phi-3"])
        ggml_vectors(report, penstock, vectors, root / "qwen2", root / "qwen2/tokenizer_config.json", ["qwen2"])
        transformersjs_vectors(report, penstock, root / "vectors_transformersjs/llama.json", "Xenova/llama-tokenizer",
                               llama2 / "tokenizer.json", None)
        transformersjs_vectors(report, penstock, root / "vectors_transformersjs/qwen2.json", "Xenova/Qwen1.5-0.5B-Chat",
                               root / "qwen2", root / "qwen2/tokenizer_config.json")
        mistral_samples(report, penstock, root / "mistral")

    texts = mixed_texts(arguments.data, arguments.texts)
    print(f"{len(texts)} mixed texts, {sum(len(text.encode()) for text in texts)} bytes")
    for name, reference, tokenizer, config, normalizing in (
            ("mixtral", Tokenizer.from_file(str(mixtral / "tokenizer.json")), mixtral / "tokenizer.json", None, False),
            ("llama2", Tokenizer.from_file(str(llama2 / "tokenizer.json")), llama2 / "tokenizer.json", None, False),
            ("phi3", Tokenizer.from_file(str(root / "phi3/tokenizer.json")), root / "phi3/tokenizer.json", None, False),
            ("olmoe", Tokenizer.from_file(str(root / "olmoe/tokenizer.json")), root / "olmoe/tokenizer.json", None, True),
            ("qwen2", qwen2(root / "qwen2"), root / "qwen2", root / "qwen2/tokenizer_config.json", True)):
        if arguments.only in (None, name):
            mixed(report, penstock, name, reference, tokenizer, config, texts, normalizing)
    for name, model in (("llama2 model", llama2 / "tokenizer.model"), ("mistral v1", root / "mistral/tokenizer.model.v1"),
                        ("mistral v3", root / "mistral/mistral_instruct_tokenizer_240323.model.v3")):
        if arguments.only in (None, name):
            sentencepiece_mixed(report, penstock, name, model, texts)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
