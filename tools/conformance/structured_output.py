#!/usr/bin/env python3
"""Checks output formats against PyPI's jsonschema, the JSON Schema Test Suite, and a second reader of GBNF.

Usage: structured_output.py --tool build/release/bin/grammar_tool --suite .../draft2020-12 [--schemas FILE]
           [--grammars FOLDER]

Compiles every schema of the suite's files (and of FILE, which has one schema a line). Counts those that are accepted,
and those that are refused, by the reason. Of each accepted schema, draws random answers, which must be valid. No
instance that the suite calls invalid may be accepted. Random answers of grammars must match them, too. Exits with 1
if one of these fails.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys

import gbnf
import jsonschema

NUM_SAMPLES = 20


def cases_of(suite):
    """Yields (name, schema, [(instance, is valid)]) of the suite's files."""
    for path in sorted(pathlib.Path(suite).rglob("*.json")):
        for case in json.loads(path.read_text()):
            name = f"{path.relative_to(suite)}: {case['description']}"
            yield name, case["schema"], [(test["data"], test["valid"]) for test in case["tests"]]


def schemas_of(path):
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        yield f"{path}:{number}", json.loads(line), []


def run(tool, kind, formats):
    """Returns the tool's result for each format and its instances."""
    lines = [json.dumps({"kind": kind, "text": text, "seed": 1, "num_samples": NUM_SAMPLES, "instances": instances})
             for text, instances in formats]
    output = subprocess.run([tool], input="".join(line + "\n" for line in lines), capture_output=True, text=True,
                            check=True).stdout
    return [json.loads(line) for line in output.split("\n")[:-1]]


def run_schemas(tool, cases):
    return run(tool, "json_schema", [
        (json.dumps(schema), [json.dumps(data, ensure_ascii=False, separators=(",", ":")) for data, _ in tests])
        for _, schema, tests in cases])


def check_grammars(tool, folder, counts):
    """Draws answers of each grammar. Returns those that do not match it."""
    faults = []
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(pathlib.Path(folder).glob("*.gbnf"))}
    results = run(tool, "grammar", [(text, []) for text in texts.values()])
    for (name, text), result in zip(texts.items(), results, strict=True):
        if "error" in result:
            counts["grammars refused"] += 1
            print(f"refused: {name}: {result['error']}")
            continue
        counts["grammars accepted"] += 1
        for sample in result["samples"]:
            counts["samples of grammars" + ("" if sample is not None else " that did not end")] += 1
            if sample is not None and not gbnf.matches(text, sample):
                faults.append(f"{name}: the sample {sample!r} does not match")
    return faults


def validator_of(schema):
    draft = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return draft(schema, format_checker=draft.FORMAT_CHECKER)


def reason_of(error):
    """Returns the keyword at the end of an error's path, with the message."""
    path, _, message = error.partition(": ")
    keyword = path.rsplit("/", 1)[-1] if path.startswith("#") else ""
    message = re.sub(r"column \d+: |line \d+, |\"[^\"]*\"|\d+", "", message)
    return f"{keyword}: {message}" if keyword else message


def check(name, schema, tests, result, counts, verbose):
    """Returns the faults of one case."""
    faults = []
    validator = validator_of(schema)
    for sample in result["samples"]:
        counts["samples" if sample is not None else "samples that did not end"] += 1
        if sample is None:
            continue
        try:
            errors = [error.message for error in validator.iter_errors(json.loads(sample))]
        except Exception as error:  # jsonschema raises errors of many kinds
            errors = [repr(error)]
        if errors:
            faults.append(f"{name}: the sample {sample!r} is not valid: {errors[0][:200]}")
    for (data, valid), accepts in zip(tests, result["accepts"], strict=True):
        kind = "valid" if valid else "invalid"
        counts[f"{kind} instances {'accepted' if accepts else 'refused'}"] += 1
        if accepts and not valid:
            faults.append(f"{name}: accepts {json.dumps(data)}, which is not valid")
        if verbose and valid and not accepts:
            print(f"refuses {json.dumps(data)[:100]}: {name}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", required=True)
    parser.add_argument("--suite")
    parser.add_argument("--schemas")
    parser.add_argument("--grammars", help="a folder of GBNF files")
    parser.add_argument("--verbose", action="store_true", help="also prints refused schemas and valid instances")
    args = parser.parse_args()
    cases = list(cases_of(args.suite)) if args.suite else []
    cases += list(schemas_of(args.schemas)) if args.schemas else []
    counts, reasons, faults = collections.Counter(), collections.Counter(), []
    for (name, schema, tests), result in zip(cases, run_schemas(args.tool, cases), strict=True):
        if "error" in result:
            counts["schemas refused"] += 1
            reasons[reason_of(result["error"])] += 1
            if args.verbose:
                print(f"refused: {name}: {result['error']}")
            continue
        counts["schemas accepted"] += 1
        faults += check(name, schema, tests, result, counts, args.verbose)
    faults += check_grammars(args.tool, args.grammars, counts) if args.grammars else []
    for key, count in sorted(counts.items()):
        print(f"{count:6} {key}")
    print("refused because of:")
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason}")
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
