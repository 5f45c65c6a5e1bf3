#!/usr/bin/env python3
"""Writes the tokenizer.ggml.* keys of a GGUF file as JSON, which tests/tokenizer/tokenizer_tool.cc reads.

usage: dump_gguf_vocabulary.py FILE.gguf > FILE.gguf.json

Needs the package gguf.
"""

import base64
import json
import sys

import gguf


def dump(path):
    """Returns the keys without "tokenizer.ggml." and their values for JSON; precompiled_charsmap is in base64."""
    out = {}
    for name, field in gguf.GGUFReader(path).fields.items():
        if not name.startswith("tokenizer.ggml."):
            continue
        key, value = name.removeprefix("tokenizer.ggml."), field.contents()
        out[key] = base64.b64encode(bytes(v & 255 for v in value)).decode() if key == "precompiled_charsmap" else value
    return out


if __name__ == "__main__":
    json.dump(dump(sys.argv[1]), sys.stdout, ensure_ascii=False)
