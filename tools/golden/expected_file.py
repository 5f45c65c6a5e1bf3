"""The file expected.json of a golden model: what transformers computed with it, and how far that is from ties."""

import json

import torch
import transformers


def expected_of(seed, dtype, margins, **results):
    """Returns the contents of expected.json; `margins` are those of each prompt, as (logit, router)."""
    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "seed": seed,
        "dtype": dtype,
        "min_margin": round(min(margin for margin, _ in margins), 6),
        "min_router_margin": round(min([margin for _, margin in margins if margin < 1e30], default=0.0), 6),
        **results,
    }


def write_expected(folder, expected):
    """Writes expected.json, with one line per prompt."""
    lines = [f'  "{key}": ' + (json.dumps(value) if key not in ("prompts", "greedy") else
             "[\n    " + ",\n    ".join(json.dumps(row) for row in value) + "\n  ]")
             for key, value in expected.items()]
    (folder / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
