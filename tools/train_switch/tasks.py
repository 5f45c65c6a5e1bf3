"""Write SST-2, MRPC and MultiRC as text-to-text examples with T5's prefixes, split by hashes.

Output folder:
  {train,dev,val}/{sst2,mrpc,multirc}.jsonl  {"id", "prompt", "choices", "label"}: input lines of scoring jobs
  tasks.npz                                  the same as token arrays (pack.py)
  tasks.json                                 counts and the share of the most frequent label

`dev` chooses the checkpoint while training, `val` is only measured. An example's part is a function of its own
text; in MultiRC of its paragraph's text, so all questions about a paragraph are in one part.

A paragraph of MultiRC that is too long keeps the sentences that share the most telling words with question and
answer, in their order; a word tells more, the fewer paragraphs have it.

Models as small as these do not learn to compare words. So a star stands before each word of an answer that the
paragraph lacks, and before each word of MRPC's sentences that the other one lacks (T5 has stars in WSC). The archive
also has mrpc_stars and multirc_stars: the same training lines with the labels of the best rule that only counts
stars. These labels have no noise, so a model learns to count in fewer steps; fine-tuning begins with them.
"""
import argparse
import collections
import csv
import hashlib
import json
import math
import random
import re
from pathlib import Path

from pack import pack
from tokenizers import Tokenizer

PUNCT = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--", "\u2013": "-",
                       "\u2026": "...", "\u00a0": " ", "\ufeff": None})
# Shares of the hash values that go to val and dev, and the lines that these keep at most.
SHARES = {"sst2": (0.012, 0.012), "mrpc": (0.2, 0.06), "multirc": (0.1, 0.06)}
MAX_LINES = 800
PARTS = ("train", "dev", "val")


def fraction(text):
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def part_of(task, key):
    val, dev = SHARES[task]
    value = fraction(key)
    return "val" if value < val else "dev" if value < val + dev else "train"


def clean(text):
    return " ".join(text.translate(PUNCT).split())


def read_sst2(paths):
    """GLUE's TSV (sentence, label) -> (key, example) pairs; equal sentences are kept once."""
    seen = set()
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            next(rows)
            for sentence, label in rows:
                sentence = clean(sentence)
                if sentence in seen:
                    continue
                seen.add(sentence)
                yield sentence, {"prompt": f"sst2 sentence: {sentence}", "choices": ["negative", "positive"],
                                 "label": int(label)}


def words_of(text):
    """Lower-cased words, cut to six letters so that forms of a word meet."""
    return {w[:6] for w in re.findall(r"[a-z0-9]+", text.lower())}


def mark(text, other):
    """The text with a star before each word that `other`, a set of words_of, lacks."""
    return " ".join(w if words_of(w) <= other else f"* {w}" for w in text.split())


def read_mrpc(path):
    """Microsoft's tab-separated file (quality, two ids, two strings) -> (key, example) pairs."""
    for row in path.read_text(encoding="utf-8-sig").splitlines()[1:]:
        quality, _, _, first, second = row.split("\t")
        first, second = clean(first), clean(second)
        one, two = mark(first, words_of(second)), mark(second, words_of(first))
        yield first + "\t" + second, {"prompt": f"mrpc sentence1: {one} sentence2: {two}",
                                      "choices": ["not_equivalent", "equivalent"], "label": int(quality)}


class Shortener:
    """Chooses the sentences of a paragraph that answer a question."""

    def __init__(self, tokenizer, paragraphs, max_length):
        self.tokenizer, self.max_length = tokenizer, max_length
        counts = collections.Counter(w for p in paragraphs for w in words_of(p))
        self.weight = {w: math.log(len(paragraphs) / n) for w, n in counts.items()}
        self.sentences = {}

    def parts(self, paragraph):
        """-> list of (sentence, its words, number of its tokens)."""
        if paragraph not in self.sentences:
            found = [s for s in re.split(r"(?<=[.!?])[\"']? +", paragraph) if s]
            sizes = [len(e.ids) for e in self.tokenizer.encode_batch_fast(found, add_special_tokens=False)]
            self.sentences[paragraph] = list(zip(found, map(words_of, found), sizes, strict=True))
        return self.sentences[paragraph]

    def shorten(self, paragraph, question, answer, used):
        """The best sentences, in order, so that all tokens with `used` other ones fit in max_length."""
        parts = self.parts(paragraph)
        asked, told = words_of(question), words_of(answer)
        scores = [sum(self.weight.get(w, 0) * ((w in asked) + (w in told)) for w in words) for _, words, _ in parts]
        kept, room = set(), self.max_length - used
        for i in sorted(range(len(parts)), key=lambda i: -scores[i]):
            if parts[i][2] <= room:
                kept.add(i)
                room -= parts[i][2]
        return " ".join(parts[i][0] for i in sorted(kept))


def read_multirc(path, tokenizer, max_length):
    """SuperGLUE's JSON lines -> (paragraph, example) pairs, one for each answer."""
    passages = [json.loads(line)["passage"] for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [clean(re.sub(r"<[^>]+>|Sent \d+:", " ", p["text"])) for p in passages]
    shortener = Shortener(tokenizer, texts, max_length)
    for text, passage in zip(texts, passages, strict=True):
        for question in passage["questions"]:
            asked = clean(question["question"])
            for answer in question["answers"]:
                told = clean(answer["text"])
                head = f"multirc question: {asked} answer: {mark(told, words_of(text))} paragraph:"
                used = len(tokenizer.encode(head).ids)
                yield text, {"prompt": f"{head} {shortener.shorten(text, asked, told, used)}",
                             "choices": ["False", "True"], "label": int(answer["label"])}


def split(task, pairs):
    """(key, example) pairs -> {part: lines}. dev and val keep the MAX_LINES lines of the smallest hashes."""
    parts = {part: [] for part in PARTS}
    for number, (key, example) in enumerate(pairs):
        parts[part_of(task, key)].append({"id": f"{task}-{number}", **example})
    for part in ("dev", "val"):
        parts[part] = sorted(parts[part], key=lambda line: fraction(line["prompt"]))[:MAX_LINES]
    return parts


def both_orders(lines):
    """MRPC's lines and the same with sentences exchanged: a paraphrase is one in both directions."""
    swapped = []
    for line in lines:
        first, second = line["prompt"].removeprefix("mrpc sentence1: ").split(" sentence2: ", 1)
        swapped.append({**line, "prompt": f"mrpc sentence1: {second} sentence2: {first}"})
    return lines + swapped


def starred(line):
    """Share of starred words in the answer or in the two sentences."""
    text = re.sub(r"^multirc .*? answer: | paragraph: .*|^mrpc sentence1: | sentence2:", " ", line["prompt"])
    words = text.split()
    stars = words.count("*")
    return stars / max(1, len(words) - stars)


def best_limit(lines):
    """The limit for which `starred(line) <= limit` is the label of most lines."""
    ordered = sorted((starred(line), line["label"]) for line in lines)
    right = best = sum(label == 0 for _, label in ordered)
    limit = -1.0
    for i, (share, label) in enumerate(ordered):
        right += 1 if label else -1
        if right > best and (i + 1 == len(ordered) or ordered[i + 1][0] > share):
            best, limit = right, share
    return limit


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sst2", type=Path, nargs="+", required=True, help="TSV files")
    parser.add_argument("--mrpc", type=Path, required=True, help="msr_paraphrase_train.txt")
    parser.add_argument("--multirc", type=Path, required=True, help="train.jsonl")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of texts.py")
    parser.add_argument("--max-length", type=int, default=256, help="tokens of an input, with </s>")
    parser.add_argument("--paragraph-length", type=int, default=256, help="the same for MultiRC")
    parser.add_argument("--train-lines", type=int, default=4000, help="lines of train/*.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))

    tasks = {"sst2": split("sst2", read_sst2(args.sst2)), "mrpc": split("mrpc", read_mrpc(args.mrpc)),
             "multirc": split("multirc", read_multirc(args.multirc, tokenizer, args.paragraph_length))}
    info = {}
    for task, parts in tasks.items():
        for part, lines in parts.items():
            share = sum(line["label"] for line in lines) / len(lines)
            info[f"{task}.{part}"] = {"lines": len(lines), "majority": round(max(share, 1 - share), 4)}
            shown = random.Random(1).sample(lines, min(len(lines), args.train_lines)) if part == "train" else lines
            path = args.out / part / f"{task}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(line) + "\n" for line in shown), encoding="utf-8")
    packed = {task: dict(parts) for task, parts in tasks.items()}
    packed["mrpc"]["train"] = both_orders(packed["mrpc"]["train"])
    for task in ("mrpc", "multirc"):
        limit = best_limit(tasks[task]["train"])
        packed[task + "_stars"] = {"train": [{**line, "label": int(starred(line) <= limit)}
                                             for line in packed[task]["train"]]}
        for part, lines in tasks[task].items():
            right = sum((starred(line) <= limit) == bool(line["label"]) for line in lines)
            info[f"{task}.{part}"]["accuracy_of_counting_stars"] = round(right / len(lines), 4)
    longest = pack(args.out / "tasks.npz", tokenizer, packed, args.max_length)
    for name, size in longest.items():
        info.setdefault(name, {})["longest_input"] = size
    (args.out / "tasks.json").write_text(json.dumps(info, indent=1) + "\n")
    print(json.dumps(info, indent=1))


if __name__ == "__main__":
    main()
