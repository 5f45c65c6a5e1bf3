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
    chosen: np.ndarray   # [tokens, num_layers, num_topk]
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


def read_trace(path):
    """-> header, sequences in the order of their first token. A file that was cut short gives what it holds.

    The checksums are not compared: `penstock bench routing --routing FILE` does that.
    """
    fields = Bytes(Path(path).read_bytes())
    header = read_header(fields)
    layers, topk, ranked = header.num_layers, header.num_topk, header.num_ranked
    open_, done = {}, []  # by sequence id: [next position, lists of the arrays of Sequence]
    step, parts = None, []
    while fields.left() >= 24:
        step_idx, layer_idx, rows = struct.unpack_from("<QII", fields.data, fields.at)
        fields.at += 16 + CHECKSUM
        if layer_idx == 2 ** 32 - 1:
            break
        ahead = min(header.num_ahead, layers - 1 - layer_idx)
        size = rows * (8 + (4 if layer_idx == 0 else 0) + 2 * topk * (1 + ahead) + 6 * ranked) + CHECKSUM
        if fields.left() < size:
            break
        end = fields.at + size
        ids, positions = fields.take("<u4", rows), fields.take("<u4", rows)
        if layer_idx == 0:
            step, parts = (step_idx, ids, positions, fields.take("<u4", rows)), []
        chosen = fields.take("<u2", rows, topk)
        parts.append((chosen, fields.take("<u2", rows, ranked), fields.take("<f4", rows, ranked)))
        fields.at = end
        if len(parts) < layers or step is None or step[0] != step_idx:
            continue
        arrays = [step[3], *(np.stack([part[i] for part in parts], axis=1) for i in range(3))]
        for row, (sequence, pos) in enumerate(zip(ids.tolist(), positions.tolist(), strict=True)):
            if sequence not in open_ or open_[sequence][0] != pos:
                done.append([[], [], [], []])
                open_[sequence] = [pos, done[-1]]
            open_[sequence][0] += 1
            for kept, array in zip(open_[sequence][1], arrays, strict=True):
                kept.append(array[row])
    return header, [Sequence(*(np.stack(kept) for kept in lists)) for lists in done]
