#!/usr/bin/env python3
"""Writes tests/data/tokenizers/*.vectors.json: the results of Hugging Face's tokenizers for many texts.

usage: make_tokenizer_vectors.py [ROOT OF THE REPOSITORY]

Each file records the version of the package. Needs the package tokenizers, and Python 3.11 for its Unicode 14.
"""

import importlib.util
import json
import pathlib
import random
import sys
import tarfile

import tokenizers
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASES = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERNS = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    WORD + r"|\p{N}|" + TAIL,  # Qwen2
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| "
    r"?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    WORD + r"|\p{N}{1,3}|" + TAIL,  # Llama 3
    # cl100k
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{CASES[0]}*{CASES[1]}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{CASES[0]}+{CASES[1]}*{ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",  # o200k
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",  # DeepSeek-V3, together with the two patterns before it:
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "\\s?[!-/:-~\uff01-\uff0f]+",
    r"\s+$",
    r"[\r\n]",
    r"\p{N}",
    r"\s+",
]
NORMALIZERS = {"NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD(),
               "Lowercase": normalizers.Lowercase(), "StripAccents": normalizers.StripAccents(),
               "Strip": normalizers.Strip()}


def write(path, document):
    path.write_text(json.dumps({"made_by": f"tokenizers {tokenizers.__version__}", **document}, ensure_ascii=False,
                               separators=(",", ":")).replace("},{", "},\n{") + "\n", encoding="utf-8")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    spec = importlib.util.spec_from_file_location("conformance", root / "tools/conformance/tokenizers.py")
    conformance = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conformance)
    folder = root / "tests/data/tokenizers"
    rng = random.Random(14)
    texts = ["", " ", "Hello world", "DON'T I'LL we'Re 'S", "\u01c5A\u02b0b", "A\u4e2dB\u4e2dc", "\u0301a\u0301B"]
    texts += conformance.hostile_texts(rng, 250)
    for name in ("mixtral", "olmoe"):
        with tarfile.open(folder / "tokenizers.tar.xz") as archive:
            tokenizer = Tokenizer.from_str(archive.extractfile(f"{name}.tokenizer.json").read().decode())
        cases = []
        for text in texts:
            ids = tokenizer.encode(text).ids
            cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
        write(folder / f"{name}.vectors.json", {"cases": cases})
    short = texts[:90]
    splits = []
    for pattern in PATTERNS:
        splitter = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        splits.append({"pattern": pattern, "pieces": [[piece for piece, _ in splitter.pre_tokenize_str(t)] for t in short]})
    normal = [{"type": name, "texts": [n.normalize_str(t) for t in short]} for name, n in NORMALIZERS.items()]
    write(folder / "parts.vectors.json", {"texts": short, "splits": splits, "normalizers": normal})


if __name__ == "__main__":
    main()
