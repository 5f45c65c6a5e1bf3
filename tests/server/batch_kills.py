#!/usr/bin/env python3
"""Proves that a batch goes on after kill -9 of its server, and that each of its lines has exactly one result.

A server with other settings does not continue it.
"""
import argparse
import json
import pathlib
import random
import subprocess
import tempfile
import time

import service
from server_faults import CHAT, expect, upload


def batch_lines(count, tokens):
    for number in range(count):
        body = {"model": service.NAME, "temperature": 0, "max_tokens": tokens + number % 16, "ignore_eos": True}
        body |= {"messages": [{"role": "user", "content": f"Tell me of number {number}."}]}
        if number % 50 == 7:
            body["n"] = -1  # fails
        yield {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}


def check_batches(binary, report, num_kills, count, tokens):
    """The batch goes on after kill -9, with each result once."""
    rng = random.Random(7)
    num_bad = sum(number % 50 == 7 for number in range(count))
    with report.check(f"a batch of {count} lines over {num_kills} kills has each result once, as without kills"), \
            tempfile.TemporaryDirectory() as folder:
        flags = ("--batches", folder, "--threads", 1, "--batch-size", 4)
        content = "".join(json.dumps(line) + "\n" for line in batch_lines(count, tokens)).encode()
        with service.Server(binary, *flags) as server:
            file_id = upload(server, content).json()["id"]
            expect(server.ask("GET", f"/v1/files/{file_id}").json()["bytes"], len(content))
            batch = server.post("/v1/batches", {"input_file_id": file_id, "endpoint": CHAT,
                                                "completion_window": "24h"}).json()
        num_partial = 0
        for _ in range(num_kills):
            with service.Server(binary, *flags) as server:
                time.sleep(rng.uniform(0, 0.25))
            job = pathlib.Path(folder) / "batches" / f"{batch['id']}.jsonl"
            num_partial += job.exists() and 0 < job.read_bytes().count(b"\n") < count
        with service.Server(binary, *flags) as server:
            def is_done():
                return server.ask("GET", f"/v1/batches/{batch['id']}").json()["status"] == "completed"

            server.wait_until("the batch", is_done, seconds=600)
            done = server.ask("GET", f"/v1/batches/{batch['id']}").json()
            expect(done["request_counts"], {"total": count, "completed": count - num_bad, "failed": num_bad})
            results = [json.loads(line) for name in ("output_file_id", "error_file_id")
                       for line in server.ask("GET", f"/v1/files/{done[name]}/content").body.splitlines()]
            assert sorted(one["custom_id"] for one in results) == sorted(f"line-{i}" for i in range(count)), "ids"
            for result in results[:count - num_bad:40]:
                number = int(result["custom_id"].split("-")[1])
                body = list(batch_lines(count, tokens))[number]["body"]
                wanted = server.post(CHAT, body).json()["choices"][0]["message"]["content"]
                expect(result["response"]["body"]["choices"][0]["message"]["content"], wanted)
            assert not list((pathlib.Path(folder) / "files").glob(".upload-*")), "a part of an upload is left"
        print(f"{num_partial} of {num_kills} kills hit a batch with results on disk")
        with service.Server(binary, *flags):
            command = [binary, "serve", "--model", str(service.MODEL), "--port", "0", "--batches", folder]
            second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert second.returncode != 0 and "another server" in second.stderr, second


def state_of(server, batch):
    return server.ask("GET", f"/v1/batches/{batch['id']}").json()


def check_settings(binary, report):
    """A server whose flags give other answers does not continue a batch; one with the same flags does."""
    content = "".join(json.dumps(line) + "\n" for line in batch_lines(20, 100)).encode()
    for changed in (("--kv-dtype", "int8"), ("--system", "Be brief."), ("--attention-window", 64)):
        with report.check(f"a batch is not continued with {changed[0]}"), tempfile.TemporaryDirectory() as folder:
            with service.Server(binary, "--batches", folder, "--batch-size", 1) as server:
                batch = server.post("/v1/batches", {"input_file_id": upload(server, content).json()["id"],
                                                    "endpoint": CHAT, "completion_window": "24h"}).json()
                manifest = pathlib.Path(folder) / "batches" / f"{batch['id']}.jsonl.manifest.json"
                server.wait_until("the job", manifest.exists)
            with service.Server(binary, "--batches", folder, *changed) as server:
                server.wait_until("the refusal", lambda s=server, b=batch: state_of(s, b).get("errors"))
                state = state_of(server, batch)
                assert changed[0].lstrip("-").replace("-", "_") in json.dumps(state["errors"]), state["errors"]
                assert "brief" not in json.dumps(state["errors"]), "clients see the operator's message"
                expect(state["status"], "in_progress")
            with service.Server(binary, "--batches", folder) as server:
                server.wait_until("the batch", lambda s=server, b=batch: state_of(s, b)["status"] == "completed",
                                  seconds=600)
                expect(state_of(server, batch)["request_counts"], {"total": 20, "completed": 19, "failed": 1})
                expect(state_of(server, batch)["errors"], None)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--lines", type=int, default=200, help="of the batch")
    parser.add_argument("--tokens", type=int, default=8, help="of an answer, at least")
    args = parser.parse_args()
    report = service.Report()
    check_batches(args.penstock, report, args.kills, args.lines, args.tokens)
    check_settings(args.penstock, report)
    report.end()


if __name__ == "__main__":
    main()
