#!/usr/bin/env python3
"""Writes src/penstock/tensor/codebooks.inc: the codebooks of GGUF's IQ types, as the package gguf has them.

usage: make_codebooks.py [ROOT OF THE REPOSITORY]
"""

import importlib.metadata
import pathlib
import sys

import gguf

# Type, name of the table, bits of each entry's element.
TABLES = [("IQ2_XXS", "kIq2XxsBook", 2), ("IQ2_XS", "kIq2XsBook", 2), ("IQ2_S", "kIq2SBook", 2),
          ("IQ3_XXS", "kIq3XxsBook", 3), ("IQ3_S", "kIq3SBook", 3), ("IQ1_S", "kIq1Book", 2)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    lines = [f"// Made by tools/golden/make_codebooks.py from the Python package gguf {importlib.metadata.version('gguf')} "
             f"(MIT license).",
             "// An entry holds the numbers of 8 values (3 bits each: of 4 values), the first one in its lowest bits."]
    for name, table, bits in TABLES:
        kind = getattr(gguf.quants, name)
        kind.init_grid()
        numbers = {value: number for number, value in enumerate(kind.grid_map)}
        entries = [sum(numbers[int(value)] << bits * i for i, value in enumerate(row))
                   for row in kind.grid.reshape(kind.grid_shape)]
        lines.append(f"constexpr uint16_t {table}[{len(entries)}] = {{")
        lines += ["    " + " ".join(f"0x{entry:04X}," for entry in entries[i:i + 14]) for i in range(0, len(entries), 14)]
        lines.append("};")
    (root / "src/penstock/tensor/codebooks.inc").write_text("\n".join(lines) + "\n", encoding="ascii")


main()
