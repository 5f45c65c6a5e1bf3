"""Labelled texts as token arrays: the form that train.py reads.

An archive has for each task NAME and part (train, dev, val):
  NAME.PART.inputs   (N, L) uint16, padded with 0 on the right; L is a multiple of 8
  NAME.PART.labels   (N,) uint8, the index of the right choice
and for each task NAME.choices, (C, T) uint16: the choices as targets, each ends with </s>, padded with 0.
"""
import numpy as np

EOS = 1


def padded(rows, multiple=8):
    """Lists of ids -> (N, L) uint16, filled with zeros, L the next multiple."""
    longest = max(map(len, rows), default=1)
    out = np.zeros((len(rows), -(-longest // multiple) * multiple), dtype=np.uint16)
    for row, ids in zip(out, rows, strict=True):
        row[:len(ids)] = ids
    return out


def encode(tokenizer, texts, max_length):
    """Texts -> lists of ids; the last id is always </s>, also of a text that is cut."""
    ids = [e.ids for at in range(0, len(texts), 1024) for e in tokenizer.encode_batch_fast(texts[at:at + 1024])]
    return [row if len(row) <= max_length else row[:max_length - 1] + [EOS] for row in ids]


def pack(path, tokenizer, tasks, max_length):
    """Writes `tasks`, {name: {part: lines}}; a line has "prompt", "choices" and "label". -> longest inputs."""
    arrays, longest = {}, {}
    for name, parts in tasks.items():
        choices = next(lines[0]["choices"] for lines in parts.values() if lines)
        arrays[f"{name}.choices"] = padded(encode(tokenizer, choices, max_length), 1)
        for part, lines in parts.items():
            inputs = padded(encode(tokenizer, [line["prompt"] for line in lines], max_length))
            arrays[f"{name}.{part}.inputs"] = inputs
            arrays[f"{name}.{part}.labels"] = np.array([line["label"] for line in lines], dtype=np.uint8)
            longest[f"{name}.{part}"] = inputs.shape[1]
    np.savez(path, **arrays)
    return longest
