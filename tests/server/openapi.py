#!/usr/bin/env python3
"""Lets schemathesis ask the server what the descriptions of its API allow, and what they do not.

No answer may have a status of 500 or above, or another form than the description says.

Usage: openapi.py --penstock PROGRAM [--openai FILE]

docs/openapi.json describes the server. OpenAI's own (github.com/openai/openai-openapi), cut to what the server has, is a
second judge where --openai names the file.
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
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "unsupported_method", "allow_header_conformance")
SERVED = {"/chat/completions": ("post",), "/completions": ("post",), "/responses": ("post",), "/models": ("get",),
          "/models/{model}": ("get",), "/files": ("get", "post"), "/files/{file_id}": ("get", "delete"),
          "/files/{file_id}/content": ("get",), "/batches": ("get", "post"), "/batches/{batch_id}": ("get",),
          "/batches/{batch_id}/cancel": ("post",)}
RUN_S = 300


def cut(path, folder):
    """Returns a file with the served part of OpenAI's description, which says nothing of errors."""
    document = json.loads(path.read_text(encoding="utf-8"))
    error = {"description": "An error", "content": {"application/json": {"schema": {
        "type": "object", "required": ["error"], "properties": {"error": {"$ref": "#/components/schemas/Error"}}}}}}
    paths = {}
    for name, methods in SERVED.items():
        paths[name] = {method: document["paths"][name][method] for method in methods}
        for operation in paths[name].values():
            operation["responses"].update({"4XX": error, "503": error})
    # The content of a file is bytes, though the description calls it a JSON text.
    paths["/files/{file_id}/content"]["get"]["responses"]["200"]["content"] = {"application/jsonl": {}}
    document["paths"] = paths
    cut_path = pathlib.Path(folder) / "openai.json"
    cut_path.write_text(json.dumps(document), encoding="utf-8")
    return cut_path


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
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--openai", type=pathlib.Path, help="OpenAI's description of its API")
    parser.add_argument("--examples", type=int, default=15, help="fuzzed requests of each operation")
    args = parser.parse_args()
    findings = []
    with tempfile.TemporaryDirectory() as folder:
        # Answers are short, for requests may ask for 128 of them.
        flags = ("--batches", pathlib.Path(folder) / "batches", "--context-length", 128, "--max-tokens", 4)
        with service.Server(args.penstock, *flags) as server:
            findings.append(judge(server, DESCRIPTION, "", args.examples, CHECKS))
            if args.openai and args.openai.exists():
                # Its methods are not all served, and a HEAD of its own is unknown to it.
                findings.append(judge(server, cut(args.openai, folder), "/v1", args.examples, CHECKS[:4]))
            elif args.openai:
                print(f"{args.openai} is not here: judged by {DESCRIPTION.name} alone")
            assert server.is_alive() and server.post("/tokenize", {"prompt": "a"}).status == 200, server.messages()[-2000:]
    for finding in filter(None, findings):
        print(finding)
    sys.exit(1 if any(findings) else 0)


if __name__ == "__main__":
    main()
