"""Two tasks made from plain text, which prepare a small model for pairs of sentences and questions about paragraphs.

pair:  are these two forms of one sentence? Both forms lose words and change order; in the false ones, words of
       the neighbouring sentence replace some of the sentence's own.
cloze: a sentence of the paragraph has lost a phrase; does the answer fill the gap? False answers are phrases of
       the paragraph's other sentences.
"""
import re

SENTENCE_END = re.compile(r"(?<=[.!?;])[\"']? +")
CHOICES = ["True", "False"]


def sentences(paragraphs):
    """Paragraphs -> their sentences of 40 to 220 characters, in order."""
    return [s.strip(" \"'") for p in paragraphs for s in SENTENCE_END.split(p) if 40 <= len(s) <= 220]


def loosen(words, rng, share):
    """The words, fewer by up to `share`, perhaps with two halves in the other order."""
    kept = [w for w in words if rng.random() > share * rng.random()]
    if len(kept) > 6 and rng.random() < 0.4:
        cut = rng.randrange(2, len(kept) - 2)
        kept = kept[cut:] + kept[:cut]
    return kept


def pair(sentence, neighbour, rng):
    """-> {"prompt", "choices", "label"} of the task pair."""
    words, others = sentence.split(), [w for w in neighbour.split() if len(w) > 3]
    second = loosen(words, rng, 0.5)
    same = rng.random() < 0.5 or not others
    if not same:
        places = [i for i, w in enumerate(second) if len(w) > 3] or [0]
        for i in rng.sample(places, max(1, round(len(places) * rng.uniform(0.2, 0.7)))):
            second[i] = rng.choice(others)
    prompt = f"pair sentence1: {' '.join(loosen(words, rng, 0.2))} sentence2: {' '.join(second)}"
    return {"prompt": prompt, "choices": CHOICES, "label": 0 if same else 1}


def phrase(words, rng):
    """(start, end) of one to four words of which one is long, or None."""
    for _ in range(8):
        start = rng.randrange(len(words))
        end = min(len(words), start + rng.randint(1, 4))
        if any(len(w) > 3 for w in words[start:end]):
            return start, end
    return None


def cloze(window, rng):
    """Sentences of one place -> {"prompt", "choices", "label"} of the task cloze, or None."""
    chosen = rng.randrange(len(window))
    words = window[chosen].split()
    place = phrase(words, rng)
    other = window[rng.choice([i for i in range(len(window)) if i != chosen])].split()
    wrong = phrase(other, rng)
    if not place or not wrong:
        return None
    right = rng.random() < 0.5
    answer = " ".join(words[place[0]:place[1]] if right else other[wrong[0]:wrong[1]]).strip(".,;:!?\"' ")
    left = [w for w in words[:place[0]] if rng.random() > 0.15]
    rest = [w for w in words[place[1]:] if rng.random() > 0.15]
    prompt = f"cloze question: {' '.join([*left, '...', *rest])} answer: {answer} paragraph: {' '.join(window)}"
    return {"prompt": prompt, "choices": CHOICES, "label": 0 if right else 1}


def examples(chapters, clozes, pairs, rng):
    """Chapters (lists of paragraphs) -> {"cloze": lines, "pair": lines} with at most so many lines each."""
    out = {"cloze": [], "pair": []}
    places = [s for s in (sentences(c) for c in chapters) if len(s) >= 8]
    while places and len(out["cloze"]) < clozes:
        chapter = rng.choice(places)
        at = rng.randrange(len(chapter) - 6)
        line = cloze(chapter[at:at + rng.randint(3, 6)], rng)
        if line:
            out["cloze"].append(line)
    while places and len(out["pair"]) < pairs:
        chapter = rng.choice(places)
        at = rng.randrange(len(chapter) - 1)
        out["pair"].append(pair(chapter[at], chapter[at + 1], rng))
    return out
