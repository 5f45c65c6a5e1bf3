#!/usr/bin/env python3
"""Proves that `quality` measures what quantising costs: nothing for the model itself, more with fewer bits, the numbers
that `perplexity` and the log-probabilities give, and a refusal of models whose tokens differ."""
import argparse
import json
import pathlib
import re
import shutil
import tempfile

import program

TEXT = "The old man walked down to the river. He looked at the water for a long time, and then he went home. " * 8


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    penstock = program.Penstock(parser.parse_args().penstock)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text = folder / "text.txt"
        text.write_text(TEXT, encoding="utf-8")

        def quality(model, *flags, reference=program.DEMO_MODEL, code=0):
            done = penstock.run("quality", "--model", model, "--reference", reference, "--text", text, "--json", *flags)
            assert done.returncode == code, done.stderr
            return done.stderr if code else json.loads(done.stdout)

        same = quality(program.DEMO_MODEL)
        assert same["kl_divergence"] == {"mean": 0, "median": 0, "p99": 0, "max": 0}, same
        assert same["same_best_token"] == 1 and same["perplexity"] == same["reference_perplexity"], same
        means = [0.0]
        for bits in ("int8", "hqq4", "hqq3"):
            store = folder / bits
            assert penstock.run("pack", "--model", program.DEMO_MODEL, "--output", store, "--quantize", bits).returncode == 0
            report = quality(store, "--memory", "400MiB")
            means.append(report["kl_divergence"]["mean"])
            assert 0.5 < report["same_best_token"] < 1 or bits == "int8", report
            alone = penstock.run("perplexity", "--model", store, "--text", text, "--context-length", 512)
            expected = float(re.search(r"perplexity ([0-9.]+)", alone.stdout)[1])
            assert abs(report["perplexity"] - expected) < 1e-3 * expected, (report, alone.stdout)
        assert means == sorted(means) and means[1] < 0.01 < means[3], means
        # The other way round the divergence is another one, of the same size.
        back = quality(program.DEMO_MODEL, reference=folder / "hqq3")["kl_divergence"]["mean"]
        assert back != means[3] and 0.5 < back / means[3] < 2, (back, means)

        other = folder / "other"
        shutil.copytree(program.DEMO_MODEL, other)
        vocabulary = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary["model"]["merges"] = []
        (other / "tokenizer.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        assert "different tokenizers" in quality(other, code=4)
        assert "budget" in quality(program.DEMO_MODEL, "--memory", "1MiB", code=6)
    print(f"mean divergences of int8, hqq4 and hqq3: {means[1:]}")


if __name__ == "__main__":
    main()
