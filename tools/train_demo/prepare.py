"""Clean the books, train the tokenizer and write the token arrays.

Output folder:
  tokenizer.json                   byte-level BPE, 4096 entries
  {children,novels}.npy            uint16, plain text tokens, chapters as <s> ... </s>
  {children,novels}.starts.npy     int64, positions of paragraph starts in the array
  chat_{children,novels}.npy       uint16, chat-shaped tokens
  chat_{children,novels}.starts.npy  int64, positions of conversation starts
  heldout_{children,novels}.npy    uint16, whole books that are never trained on
  data.json                        counts and the lists of books
"""
import argparse
import collections
import json
import random
import re
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB_SIZE = 4096
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<pad>"]
HELD_OUT = {
    "children": ["The Princess and the Goblin", "Five Children and It"],
    "novels": ["Persuasion"],
}

PUNCT = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--",
    "\u2013": "-", "\u2026": "...", "\u00a0": " ", "\u200b": None, "\ufeff": None,
})
DROP = re.compile(r"^\s*(\||!\[|\[\d+\]|\[\^|\[?Footnote|\[?Illustration|\*{1,2}\d|-{3,}|={3,}|<!--)", re.I)
BOILERPLATE = re.compile(r"gutenberg|e-?text|transcrib|all rights reserved|copyright \(?c?\)?\s*\d|^the end\.?$|^finis\.?$",
                         re.I)


def join_lines(lines):
    """Undo hard wraps: one line of prose, or short capitalised lines kept as verse."""
    lines = [line.strip() for line in lines]
    verse = (len(lines) >= 3 and max(map(len, lines)) < 60
             and all(line[:1].isupper() or line[:1] in "'\"(" for line in lines))
    return ("\n" if verse else " ").join(lines)


def clean_book(text):
    """Markdown text of one book -> list of chapters (title, list of paragraphs)."""
    text = text.translate(PUNCT).replace("\r", "")
    text = re.sub(r"<[^>\n]{1,80}>", " ", text)
    text = re.sub(r"\[(?:\^?\d{1,3}|\*|[a-z])\]", "", text)
    text = re.sub(r"\[(?:illustration|footnote|picture)[^\]]*\]", "", text, flags=re.I)
    text = re.sub(r"\[([^\]\n]+)\]\([^)\n]*\)", r"\1", text)
    chapters, title, paragraphs, lines = [], "", [], []

    def end_paragraph():
        kept = [line for line in lines if not DROP.match(line)]
        lines.clear()
        if not kept:
            return
        paragraph = join_lines(kept)
        paragraph = re.sub(r"(?<!\w)[_*]+|[_*]+(?!\w)|\*+|(?<=\W)_|_(?=\W)", "", paragraph)
        paragraph = re.sub(r"[ \t]+", " ", paragraph).strip(" >")
        if len(paragraph) < 2 or BOILERPLATE.search(paragraph) and len(paragraph) < 400:
            return
        if paragraph.upper() == paragraph and len(paragraph) < 80 and '"' not in paragraph:
            return  # running heads, chapter numbers, signs
        if not re.search(r"[a-z]", paragraph):
            return
        paragraphs.append(paragraph)

    for line in text.split("\n"):
        if line.startswith("#"):
            end_paragraph()
            if paragraphs:
                chapters.append((title, paragraphs))
            title, paragraphs = line.strip("# _*").strip(), []
        elif not line.strip():
            end_paragraph()
        else:
            lines.append(line)
    end_paragraph()
    if paragraphs:
        chapters.append((title, paragraphs))
    # Books with contents lists or notes have "chapters" of stray fragments.
    return [c for c in chapters if sum(map(len, c[1])) >= 300]


def train_tokenizer(texts):
    """Byte-level BPE with the GPT-2 split; every byte is in the alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


SYSTEMS = ["You are a storyteller.", "You are a helpful assistant.", "You tell stories to children.",
           "You are a kind old writer of tales."]
BEGIN = ["Tell me a story that begins: {s}", "Write a story that starts with this line: {s}",
         "Begin a tale with these words: {s}", "Please write a passage that opens with: {s}"]
FOLLOW = ["{s}", "{s} What happened then?", "Continue this story: {s}", "Go on from here: {s}",
          "Carry on with this: {s}", "{s}\nTell me what comes next."]
ABOUT1 = ["Tell me a story about {a}.", "Write a short story about {a}.", "What can you tell me about {a}?",
          "Can you write something about {a}?", "Imagine you are writing about {a}. Begin.",
          "Describe {a} in a few paragraphs.", "I should like to hear about {a}.", "Who is {a}?"]
ABOUT2 = ["Tell me a story about {a} and {b}.", "Write a passage with {a}, {b} and {c}.",
          "How do {a} and {b} go together? Explain with a story that mentions {c}.",
          "Compose a scene about {a}. It should include {b} and {c}.",
          "Write about {a}, {b}, and {c}. Make it lively."]
TITLED = ["Tell me the story of {t}.", "{t}", "Write a chapter called \"{t}\"."]
NEXT = ["Go on.", "What happened next?", "And then?", "Tell me more.", "Please continue the story.",
        "Now write the next part.", "Continue with more about {a}."]
SENTENCE = re.compile(r"^(.{20,240}?[.!?][\"')]*)\s+(?=\S)", re.S)


def passage(paragraphs, start, rng, limit):
    """Whole paragraphs from `start` until about `limit` characters -> (list, next start)."""
    taken, size = [], 0
    while start < len(paragraphs):
        p = paragraphs[start]
        if taken and (size + len(p) > limit):
            break
        taken.append(p)
        size += len(p)
        start += 1
    return taken, start


def content_words(text, common, rng):
    """Up to three telling words of the text: names and uncommon words, repeated ones first."""
    counts = collections.Counter(w for w in re.findall(r"[A-Za-z]{4,}", text)
                                 if w.lower() not in common)
    words = [w for w, n in counts.most_common(6)]
    rng.shuffle(words)
    return [w if w[0].isupper() else rng.choice(["the ", "a ", "", "the "]) + w for w in words[:3]]


def opening(body, title, common, rng):
    """A user message for a passage -> (message, what the assistant answers)."""
    text = "\n\n".join(body)
    first = SENTENCE.match(text)
    kind = rng.random()
    if first and kind < 0.22:
        return rng.choice(BEGIN).format(s=first.group(1)), text
    if first and kind < 0.45 and len(text) - first.end() > 80:
        return rng.choice(FOLLOW).format(s=first.group(1)), text[first.end():]
    if kind < 0.52 and 6 < len(title) < 60 and not re.match(r"(chapter|book|volume|part|[ivxlc]+\b|\d)", title, re.I):
        return rng.choice(TITLED).format(t=title.title() if title.isupper() else title), text
    words = content_words(text, common, rng)
    if len(words) == 3 and kind < 0.8:
        return rng.choice(ABOUT2).format(a=words[0], b=words[1], c=words[2]), text
    if words:
        return rng.choice(ABOUT1).format(a=words[0]), text
    return "Tell me a story.", text


def chat_texts(books, common, rng, passes):
    """Chat-shaped strings cut from the chapters; each pass cuts at other places."""
    for _ in range(passes):
        for _, chapters in books:
            for title, paragraphs in chapters:
                at = rng.randrange(3)
                while at < len(paragraphs):
                    first = at
                    body, at = passage(paragraphs, at, rng, rng.choice([300, 500, 800, 1200]))
                    if sum(map(len, body)) < 120 or sum(map(len, body)) > 1900:
                        continue
                    message, answer = opening(body, title if first < 3 else "", common, rng)
                    out = "<s>"
                    if rng.random() < 0.15:
                        out += f"<|system|>\n{rng.choice(SYSTEMS)}</s>\n"
                    out += f"<|user|>\n{message}</s>\n<|assistant|>\n{answer}</s>"
                    if rng.random() < 0.25 and at < len(paragraphs):
                        body, at = passage(paragraphs, at, rng, 500)
                        words = content_words("\n\n".join(body), common, rng) or ["it"]
                        more = rng.choice(NEXT).format(a=words[0])
                        out += f"\n<|user|>\n{more}</s>\n<|assistant|>\n" + "\n\n".join(body) + "</s>"
                    yield out


def plain_array(books, tokenizer, shuffle):
    """Books -> (uint16 tokens, int64 paragraph starts); chapters are <s> text </s>."""
    bos, eos = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    chapters = [paragraphs for _, chapters in books for _, paragraphs in chapters]
    if shuffle:
        shuffle.shuffle(chapters)
    pieces, starts, at = [], [], 0
    for paragraphs in chapters:
        texts = [p + "\n\n" for p in paragraphs[:-1]] + paragraphs[-1:]
        ids = [bos]
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            starts.append(at + len(ids))
            ids += encoding.ids
        ids.append(eos)
        at += len(ids)
        pieces.append(np.array(ids, dtype=np.uint16))
    return np.concatenate(pieces), np.array(starts, dtype=np.int64)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--children", type=Path, required=True, help="folder of children's books (*.md)")
    parser.add_argument("--novels", type=Path, required=True, help="folder of novels (*.md)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)

    train, held, info = {}, {}, {"held_out": HELD_OUT, "books": {}, "tokens": {}}
    for name, folder in (("children", args.children), ("novels", args.novels)):
        books = [(p.stem, clean_book(p.read_text(encoding="utf-8"))) for p in sorted(folder.rglob("*.md"))]
        train[name] = [b for b in books if b[0] not in HELD_OUT[name]]
        held[name] = [b for b in books if b[0] in HELD_OUT[name]]
        assert len(held[name]) == len(HELD_OUT[name])
        info["books"][name] = [b[0] for b in train[name]]

    def text_of(books):
        return ["\n\n".join(ps) for _, chapters in books for _, ps in chapters]

    children, novels = text_of(train["children"]), text_of(train["novels"])
    tokenizer = train_tokenizer(children + rng.sample(novels, len(novels) // 6))
    tokenizer.save(str(args.out / "tokenizer.json"))
    counts = collections.Counter(w for t in children for w in re.findall(r"[a-z]{4,}", t.lower()))
    common = {w for w, _ in counts.most_common(700)}

    for name, passes in (("children", 3), ("novels", 1)):
        tokens, starts = plain_array(train[name], tokenizer, rng)
        np.save(args.out / f"{name}.npy", tokens)
        np.save(args.out / f"{name}.starts.npy", starts)
        info["tokens"][name] = len(tokens)
        tokens, _ = plain_array(held[name], tokenizer, None)
        np.save(args.out / f"heldout_{name}.npy", tokens)
        info["tokens"][f"heldout_{name}"] = len(tokens)
        texts = list(chat_texts(train[name], common, rng, passes))
        rng.shuffle(texts)
        pieces = [np.array(e.ids, dtype=np.uint16)
                  for at in range(0, len(texts), 4096)
                  for e in tokenizer.encode_batch_fast(texts[at:at + 4096], add_special_tokens=False)]
        starts = np.cumsum([0] + [len(p) for p in pieces[:-1]]).astype(np.int64)
        np.save(args.out / f"chat_{name}.npy", np.concatenate(pieces))
        np.save(args.out / f"chat_{name}.starts.npy", starts)
        info["tokens"][f"chat_{name}"] = int(sum(map(len, pieces)))
        info.setdefault("conversations", {})[name] = len(pieces)
        if name == "children":
            for t in texts[:6]:
                print(t, "\n" + "=" * 60)
    (args.out / "data.json").write_text(json.dumps(info, indent=1) + "\n")
    print(json.dumps(info["tokens"]))


if __name__ == "__main__":
    main()
