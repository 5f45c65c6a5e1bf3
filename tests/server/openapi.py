#!/usr/bin/env python3
"""Lets schemathesis ask the server what the descriptions of its API allow, and what they do not.

No answer may have a status of 500 or above, or another form than the description says.

Usage: openapi.py --penstock PROGRAM
       openapi.py --cut FILE > tests/data/openai/served.json    makes the second description anew

docs/openapi.json describes the server. The second judge is OpenAI's own description, cut to what the server has.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import environment

environment.enter()

import service  # noqa: E402

DESCRIPTION = environment.ROOT / "docs" / "openapi.json"
OPENAI = environment.ROOT / "tests" / "data" / "openai" / "served.json"
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "unsupported_method", "allow_header_conformance")
SERVED = {"/chat/completions": ("post",), "/completions": ("post",), "/responses": ("post",), "/models": ("get",),
          "/models/{model}": ("get",), "/files": ("get", "post"), "/files/{file_id}": ("get", "delete"),
          "/files/{file_id}/content": ("get",), "/batches": ("get", "post"), "/batches/{batch_id}": ("get",),
          "/batches/{batch_id}/cancel": ("post",)}
RUN_S = 300


def references(value):
    """Yields all references inside a part of a description."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    for part in value if isinstance(value, list) else ():
        yield from references(part)


def without_prose(value):
    """Returns a part of a description without texts for readers."""
    if isinstance(value, list):
        return [without_prose(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {key: "" if key == "description" and isinstance(part, str) else without_prose(part)
            for key, part in value.items() if not key.startswith("x-")}


def cut(document):
    """Returns the served part of OpenAI's description, which says nothing of errors."""
    error = {"description": "An error", "content": {"application/json": {"schema": {
        "type": "object", "required": ["error"], "properties": {"error": {"$ref": "#/components/schemas/Error"}}}}}}
    paths = {}
    for name, methods in SERVED.items():
        paths[name] = {method: document["paths"][name][method] for method in methods}
        for operation in paths[name].values():
            operation["responses"].update({"4XX": error, "503": error})
    # The content of a file is bytes, though the description calls it a JSON text.
    paths["/files/{file_id}/content"]["get"]["responses"]["200"]["content"] = {"application/jsonl": {}}
    components, wanted = {}, list(references(paths))
    while wanted:
        _, _, kind, name = wanted.pop().split("/")
        if name not in components.setdefault(kind, {}):
            components[kind][name] = document["components"][kind][name]
            wanted += references(components[kind][name])
    components = {kind: dict(sorted(parts.items())) for kind, parts in components.items()}
    return without_prose({"openapi": document["openapi"], "info": document["info"], "paths": paths,
                          "components": components})


def judge(server, description, base, num_examples, checks):
    """Runs schemathesis; returns what it has found, or None."""
    command = [str(pathlib.Path(sys.executable).parent / "schemathesis"), "--no-color", "run", str(description),
               "--url", server.url + base, "--phases", "examples,coverage,fuzzing", "--max-examples", str(num_examples),
               "--seed", "1", "--checks", ",".join(checks), "--continue-on-failure", "--no-shrink",
               "--request-timeout", "60", "--suppress-health-check", "all", "--warnings", "off"]
    with tempfile.TemporaryDirectory() as folder:  # schemathesis keeps its examples here
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False, cwd=folder,
                              env={**os.environ, "COLUMNS": "120"})
    print("\n".join(line for line in done.stdout.splitlines() if "generated" in line), flush=True)
    return None if done.returncode == 0 else done.stdout[-20000:] + done.stderr[-2000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock")
    parser.add_argument("--cut", type=pathlib.Path, metavar="FILE", help="print the served part of OpenAI's description")
    parser.add_argument("--examples", type=int, default=15, help="fuzzed requests of each operation")
    args = parser.parse_args()
    if args.cut:
        return print(json.dumps(cut(json.loads(args.cut.read_text(encoding="utf-8"))), indent=1, ensure_ascii=False))
    findings = []
    with tempfile.TemporaryDirectory() as folder:
        # Answers are short, for requests may ask for 128 of them.
        flags = ("--batches", pathlib.Path(folder) / "batches", "--context-length", 128, "--max-tokens", 4)
        with service.Server(args.penstock, *flags) as server:
            findings.append(judge(server, DESCRIPTION, "", args.examples, CHECKS))
            # Its methods are not all served, and a HEAD of its own is unknown to it.
            findings.append(judge(server, OPENAI, "/v1", args.examples, CHECKS[:4]))
            assert server.is_alive() and server.post("/tokenize", {"prompt": "a"}).status == 200, server.messages()[-2000:]
    for finding in filter(None, findings):
        print(finding)
    sys.exit(1 if any(findings) else 0)


if __name__ == "__main__":
    main()
