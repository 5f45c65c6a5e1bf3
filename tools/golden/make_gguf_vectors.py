#!/usr/bin/env python3
"""Writes tests/tensor/gguf_blocks/: what the package gguf computes from random blocks and from random weights.

usage: make_gguf_vectors.py [ROOT OF THE REPOSITORY]
"""

import importlib.metadata
import pathlib
import sys

import gguf
import numpy as np

NUM_BLOCKS = {"Q8_0": 64, "Q4_0": 64, "Q4_K": 16, "Q6_K": 16, "Q5_K": 16, "MXFP4": 256, "Q4_1": 64, "Q5_0": 64, "Q5_1": 64,
              "Q2_K": 16, "Q3_K": 16, "IQ4_NL": 64, "IQ4_XS": 16,
              "IQ3_S": 16, "IQ3_XXS": 16, "IQ2_S": 16, "IQ2_XS": 16, "IQ2_XXS": 16,
              "IQ1_M": 16, "IQ1_S": 16, "TQ1_0": 16, "TQ2_0": 16}
# Offsets of the f16 scales in a block.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_K": [0, 2], "Q6_K": [208], "Q5_K": [0, 2], "MXFP4": [], "Q4_1": [0, 2],
          "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0],
          "IQ3_S": [0], "IQ3_XXS": [0], "IQ2_S": [0], "IQ2_XS": [0], "IQ2_XXS": [0], "IQ1_M": [], "IQ1_S": [0],
          "TQ1_0": [52], "TQ2_0": [64]}
# Zeros, denormals, the smallest normal number, the largest, infinities and NaN, which random bytes rarely are.
ODD_SCALES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0xFFFF]

README = """# Blocks of GGUF

`tools/golden/make_gguf_vectors.py` made these files with gguf {gguf} and numpy {numpy}.
`tests/tensor/block_formats_test.cc` reads them. Everything is little-endian.

- `<type>.blocks`: random bytes as blocks of that type. The first blocks have odd f16 scales: zero, denormal,
  the least normal number, the largest, infinite or NaN. With several scales in a block these meet each other.
- `<type>.weights`: the floats that `gguf.quants.dequantize` makes of them.
- `<type>.quantised`: blocks that `gguf.quants.quantize` makes of the floats in `weights`, for the types that
  it knows. The floats are normal, heavy-tailed, zeros, or halves of codes (ties). Some have all magnitudes
  from 1e-36 to 1e10, so that scales overflow and underflow f16.
"""


def random_blocks(name, rng):
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    blocks = rng.integers(0, 256, (NUM_BLOCKS[name], size), dtype=np.uint8)
    for block in range(len(ODD_SCALES)):
        for shift, offset in enumerate(SCALES[name]):
            odd = ODD_SCALES[(block + 3 * shift) % len(ODD_SCALES)]
            blocks[block, offset:offset + 2] = odd & 0xFF, odd >> 8
    if name == "MXFP4":
        blocks[:, 0] = np.arange(256)  # every power of two
    return blocks


def random_weights(rng):
    normal = rng.standard_normal((16, 32))
    heavy = rng.standard_t(2, (16, 32)) * 0.02
    magnitudes = rng.standard_normal((47, 32)) * 10.0 ** np.arange(-36, 11)[:, None]
    ties = rng.integers(-254, 255, (8, 32)) / 2.0
    ties[:, 0] = [127, -127, 8, -8, 4, -4, 16, -16]
    ties[2:] = np.clip(ties[2:], -abs(ties[2:, :1]), abs(ties[2:, :1]))
    zeros = np.zeros((2, 32))
    zeros[1, ::2] = -0.0
    weights = np.concatenate([normal, heavy, magnitudes, ties, zeros]).astype(np.float32)
    return rng.permutation(weights, axis=0)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    folder = root / "tests/tensor/gguf_blocks"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20)
    weights = random_weights(rng)
    weights.astype("<f4").tofile(folder / "weights")
    for name in NUM_BLOCKS:
        kind = gguf.GGMLQuantizationType[name]
        blocks = random_blocks(name, rng)
        blocks.tofile(folder / f"{name}.blocks")
        with np.errstate(invalid="ignore", over="ignore"):
            gguf.quants.dequantize(blocks, kind).astype("<f4").tofile(folder / f"{name}.weights")
        if name in ("Q8_0", "Q4_0"):
            with np.errstate(over="ignore"):
                gguf.quants.quantize(weights, kind).tofile(folder / f"{name}.quantised")
    versions = {name: importlib.metadata.version(name) for name in ("gguf", "numpy")}
    (folder / "README.md").write_text(README.format(**versions), encoding="ascii")


if __name__ == "__main__":
    main()
