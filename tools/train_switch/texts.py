"""Clean the books, train the tokenizer, write the tokens for pre-training.

Output folder:
  tokenizer.json, tokenizer_config.json  Unigram pieces and T5's sentinels; ids: <pad> 0, </s> 1, <unk> 2
  tokens.npy                             uint16, chapters one after another, each ends with </s>
  texts.json                             counts and the list of books

A third of the chapters is lower-cased and has spaces around its punctuation, as the sentences of SST-2 have.
The books are cleaned as for the demo model (tools/train_demo).
"""
import argparse
import importlib.util
import json
import random
import re
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SENTINELS = 100
SPECIAL = ["<pad>", "</s>", "<unk>"]
ALPHABET = [chr(code) for code in range(33, 127)]


def book_cleaner():
    """clean_book of tools/train_demo: Markdown text -> list of chapters (title, list of paragraphs)."""
    path = Path(__file__).resolve().parent.parent / "train_demo" / "prepare.py"
    spec = importlib.util.spec_from_file_location("demo_prepare", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.clean_book


def like_sst2(text):
    """Lower-cased text with spaces around punctuation and before clitics: "It's." -> "it 's ."."""
    text = re.sub(r"(--|[.,!?;:\"()])", r" \1 ", text.lower())
    text = re.sub(r"n't\b", " n't", text)
    return re.sub(r"(?<=\w)('(?:s|re|ve|ll|d|m)\b)", r" \1", text)


def wrap(vocabulary):
    """Tokenizer of T5's form: white space separates, pieces begin with the metaspace, </s> ends a text.

    `vocabulary` is a list of (piece, score); T5Tokenizer of transformers 5 builds the same from it.
    """
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2, byte_fallback=False))
    metaspace = {"replacement": "\u2581", "prepend_scheme": "always", "split": True}
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**metaspace)])
    tokenizer.decoder = decoders.Metaspace(**metaspace)
    return tokenizer


def train_tokenizer(texts, size):
    """Unigram pieces of the texts, then the sentinels: <extra_id_0> has the last id, as in T5."""
    tokenizer = wrap([("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)])
    tokenizer.train_from_iterator(texts, trainers.UnigramTrainer(
        vocab_size=size - SENTINELS, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False,
        initial_alphabet=ALPHABET))
    pieces = [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]
    assert [piece for piece, _ in pieces[:3]] == SPECIAL
    if len(pieces) != size - SENTINELS:
        raise SystemExit(f"the texts give {len(pieces)} pieces, --vocab {size} needs {size - SENTINELS}: add texts")
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(SENTINELS))]
    tokenizer = wrap(pieces + [(name, 0.0) for name in sentinels])
    tokenizer.add_special_tokens(SPECIAL + sentinels)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    assert tokenizer.get_vocab_size() == size
    return tokenizer


def tokenizer_config(max_length):
    return {"tokenizer_class": "T5Tokenizer", "extra_ids": SENTINELS, "model_max_length": max_length,
            "additional_special_tokens": [f"<extra_id_{i}>" for i in range(SENTINELS)],
            "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "clean_up_tokenization_spaces": False}


def read_chapters(folders, max_bytes, rng):
    """(titles of the books, list of chapters as lists of paragraphs), in random order, at most max_bytes."""
    clean_book = book_cleaner()
    titles, chapters, size = [], [], 0
    for folder in folders:
        paths = sorted(folder.rglob("*.md"))
        rng.shuffle(paths)
        for path in paths:
            if size > max_bytes:
                break
            book = [paragraphs for _, paragraphs in clean_book(path.read_text(encoding="utf-8"))]
            titles.append(path.stem)
            chapters += book
            size += sum(len(p) for c in book for p in c)
    rng.shuffle(chapters)
    return sorted(titles), [[like_sst2(p) for p in c] if rng.random() < 1 / 3 else c for c in chapters]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=Path, nargs="+", required=True, help="folders of Markdown files, the best first")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--max-bytes", type=int, default=45_000_000, help="no more books after this many characters")
    parser.add_argument("--max-length", type=int, default=256, help="model_max_length of the tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)

    titles, chapters = read_chapters(args.books, args.max_bytes, rng)
    texts = [" ".join(paragraphs) for paragraphs in chapters]
    print(f"{len(titles)} books, {len(texts)} chapters, {sum(map(len, texts))} characters", flush=True)
    tokenizer = train_tokenizer(texts[::2], args.vocab)
    tokenizer.save(str(args.out / "tokenizer.json"))
    (args.out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(args.max_length), indent=2) + "\n")
    pieces = [np.array(e.ids, dtype=np.uint16)
              for at in range(0, len(texts), 256) for e in tokenizer.encode_batch_fast(texts[at:at + 256])]
    tokens = np.concatenate(pieces)
    np.save(args.out / "tokens.npy", tokens)

    info = {"tokens": len(tokens), "unknown": int((tokens == 2).sum()), "characters": sum(map(len, texts)),
            "books": titles}
    (args.out / "texts.json").write_text(json.dumps(info, indent=1) + "\n")
    print(json.dumps({key: value for key, value in info.items() if key != "books"}))


if __name__ == "__main__":
    main()
