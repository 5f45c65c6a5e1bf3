"""Reads routing traces of version 3 (src/penstock/routing/routing_trace.h): which experts each token chose."""
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MAGIC = b"penstock routing 3\n"
CHECKSUM = 8


@dataclass
class Header:
    model: str
    fingerprint: str
    num_layers: int
    num_experts: int
    num_topk: int
    num_ranked: int
    num_ahead: int
    vocab_size: int


@dataclass
class Sequence:
    """Consecutive tokens of one sequence, beginning where the run computed its first one."""
    tokens: np.ndarray   # [tokens]
    chosen: np.ndarray   # [tokens, num_layers, num_topk]; -1 in layers through which a token does not go (encoders)
    ranked: np.ndarray   # [tokens, num_layers, num_ranked], the best first
    scores: np.ndarray   # [tokens, num_layers, num_ranked], the router's probabilities


class Bytes:
    def __init__(self, data):
        self.data, self.at = data, 0

    def left(self):
        return len(self.data) - self.at

    def take(self, dtype, *shape):
        values = np.frombuffer(self.data, dtype, int(np.prod(shape)), self.at).reshape(shape)
        self.at += values.nbytes
        return values


def read_header(fields):
    if fields.data[:len(MAGIC)] != MAGIC:
        raise SystemExit("not a routing trace with tokens: record one with --record-routing FILE --record-scores")
    fields.at = len(MAGIC)
    layers, experts, topk, ranked, ahead, vocab = struct.unpack_from("<6I", fields.data, fields.at)
    fields.at += 24
    digits, model_bytes = struct.unpack_from("<32sI", fields.data, fields.at)
    fields.at += 36
    model = fields.data[fields.at:fields.at + model_bytes].decode()
    fields.at += model_bytes + CHECKSUM
    return Header(model, digits.decode(), layers, experts, topk, ranked, ahead, vocab)


class Sequences:
    """Joins the rows of steps to sequences."""

    def __init__(self, num_layers):
        self.num_layers = num_layers
        self.open, self.done = {}, []  # by sequence id: [next position, lists of the arrays of Sequence]

    def add(self, ids, positions, tokens, layers):
        """Adds a step's rows. `layers`: {layer: (chosen, ranked, scores)} of all layers, or of one side of a model with
        an encoder."""
        shapes = [(part.shape, part.dtype) for part in next(iter(layers.values()))]
        arrays = [np.full((shape[0], self.num_layers, *shape[1:]), fill, dtype if fill == 0 else np.int64)
                  for (shape, dtype), fill in zip(shapes, (-1, 0, 0), strict=True)]
        for layer, parts in layers.items():
            for array, part in zip(arrays, parts, strict=True):
                array[:, layer] = part
        for row, (sequence, pos) in enumerate(zip(ids.tolist(), positions.tolist(), strict=True)):
            if sequence not in self.open or self.open[sequence][0] != pos:
                self.done.append([[], [], [], []])
                self.open[sequence] = [pos, self.done[-1]]
            self.open[sequence][0] += 1
            for kept, array in zip(self.open[sequence][1], (tokens, *arrays), strict=True):
                kept.append(array[row])


def read_trace(path):
    """-> header, sequences in the order of their first token. A file that was cut short gives what it holds.

    The checksums are not compared: `penstock bench routing --routing FILE` does that.
    """
    fields = Bytes(Path(path).read_bytes())
    header = read_header(fields)
    topk, ranked = header.num_topk, header.num_ranked
    sequences = Sequences(header.num_layers)
    step, layers = None, {}
    while fields.left() >= 24:
        step_idx, layer_idx, rows = struct.unpack_from("<QII", fields.data, fields.at)
        fields.at += 16 + CHECKSUM
        if layer_idx == 2 ** 32 - 1:
            break
        is_first = step is None or step[0] != step_idx
        ahead = min(header.num_ahead, header.num_layers - 1 - layer_idx)
        size = rows * (8 + (4 if is_first else 0) + 2 * topk * (1 + ahead) + 6 * ranked) + CHECKSUM
        if fields.left() < size:
            break
        end = fields.at + size
        ids, positions = fields.take("<u4", rows), fields.take("<u4", rows)
        if is_first:
            if step is not None:
                sequences.add(*step[1:], layers)
            step, layers = (step_idx, ids, positions, fields.take("<u4", rows)), {}
        chosen = fields.take("<u2", rows, topk)
        layers[layer_idx] = (chosen, fields.take("<u2", rows, ranked), fields.take("<f4", rows, ranked))
        fields.at = end
    if step is not None:
        sequences.add(*step[1:], layers)
    return header, [Sequence(*(np.stack(kept) for kept in lists)) for lists in sequences.done]
