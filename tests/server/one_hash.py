#!/usr/bin/env python3
"""Proves that a request has one answer, however it reaches the engine, and that conversations share their beginnings.

The same greedy and seeded requests are answered alone, among 63 others, after a prefix hit, in a batch, through Python
(if the package is built) and by `penstock run`; tokens and log-probabilities have one hash. Then conversations of eight
turns: prompt tokens are computed at most 1.1 times as often as there are new ones.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import service


def requests(count):
    """Returns bodies: chats with seeds, some greedy, all with log-probabilities."""
    system = {"role": "system", "content": "You tell of animals and of the sea, in short and plain words. " * 4}
    return [{"messages": [system, {"role": "user", "content": f"Tell me of number {i}."}], "max_tokens": 24,
             "temperature": 0 if i % 2 else 0.8, "seed": 1000 + i, "logprobs": True, "top_logprobs": 2}
            for i in range(count)]


def digest(body):
    """Returns a hash of the tokens of a response's body, with their log-probabilities."""
    tokens = [[item["token"], item["logprob"]] for item in body["choices"][0]["logprobs"]["content"]]
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]


def post(server, body):
    answer = server.post("/v1/chat/completions", body)
    assert answer.status == 200, answer
    return digest(answer.json())


def by_run(binary, bodies, folder):
    source, output = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps({"id": str(i), **body}) + "\n" for i, body in enumerate(bodies)))
    service.program.Penstock(binary).run_job(service.MODEL, source, output, "--memory", "20MiB")
    results = {}
    for line in output.read_text().splitlines():
        result = json.loads(line)
        results[int(result["custom_id"])] = digest(result["response"]["body"])
    return [results[i] for i in range(len(bodies))]


def by_batch(server, bodies, folder):
    path = folder / "batch.jsonl"
    path.write_text("".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body})
                            + "\n" for i, body in enumerate(bodies)))
    boundary = "----one-hash"
    form = (f"--{boundary}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--{boundary}\r\n"
            f"Content-Disposition: form-data; name=\"file\"; filename=\"b.jsonl\"\r\n\r\n{path.read_text()}\r\n"
            f"--{boundary}--\r\n")
    file = server.post("/v1/files", form, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"}).json()
    batch = server.post("/v1/batches", {"input_file_id": file["id"], "endpoint": "/v1/chat/completions",
                                        "completion_window": "24h"}).json()
    path = f"/v1/batches/{batch['id']}"
    server.wait_until("the batch", lambda: server.ask("GET", path).json()["status"] == "completed",
                      service.program.HANG_S)
    output = server.ask("GET", f"/v1/files/{server.ask('GET', path).json()['output_file_id']}/content").body.decode()
    results = {}
    for line in output.splitlines():
        result = json.loads(line)
        results[int(result["custom_id"])] = digest(result["response"]["body"])
    return [results[i] for i in range(len(bodies))]


PYTHON = """
import json, sys, hashlib, penstock
bodies = json.load(sys.stdin)
with penstock.LLM(sys.argv[1], memory="32MiB") as llm:
    for body in bodies:
        params = penstock.SamplingParams(max_tokens=body["max_tokens"], temperature=body["temperature"], seed=body["seed"],
                                         logprobs=body["top_logprobs"])
        answer = llm.chat(body["messages"], params)[0].outputs[0]
        print(json.dumps(answer.token_ids))
"""


def by_python(bodies, folder):
    """Returns the token ids of answers through Python, or None if the package is not built."""
    package = service.program.ROOT / "build" / "release" / "python"
    python = service.program.ROOT / "build" / "python-env" / "bin" / "python"
    if not package.exists() or not python.exists():
        return None
    done = subprocess.run([python, "-c", PYTHON, service.MODEL], input=json.dumps(bodies), text=True, check=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(package)})
    return [json.loads(line) for line in done.stdout.splitlines()]


def token_ids(server, body):
    """Returns the token ids of an answer's text, as the server's tokens spell them."""
    answer = server.post("/v1/chat/completions", body).json()
    return "".join(item["token"] for item in answer["choices"][0]["logprobs"]["content"])


def check_one_hash(server, binary, report):
    bodies = requests(64)
    with tempfile.TemporaryDirectory() as name, report.check("one hash from every way to the engine"):
        folder = pathlib.Path(name)
        alone = [post(server, body) for body in bodies[:8]]
        again = [post(server, body) for body in bodies[:8]]
        assert again == alone, "after a prefix hit"
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            among = list(pool.map(lambda body: post(server, body), bodies))
        assert among[:8] == alone, "among 63 others"
        assert by_batch(server, bodies, folder) == among, "in a batch"
        assert by_run(binary, bodies, folder) == among, "by run"
        print(f"hash of 64 requests: {hashlib.sha256(''.join(among).encode()).hexdigest()[:16]}")
        through_python = by_python(bodies[:8], folder)
        if through_python is None:
            print("skipped: through Python, which is not built")
            return
        texts = [server.post("/detokenize", {"tokens": ids}).json()["prompt"].lstrip() for ids in through_python]
        assert texts == [token_ids(server, body).lstrip() for body in bodies[:8]], "through Python"


def converse(server, number, turns):
    """Holds one conversation; returns how many tokens its prompts had that no earlier prompt or answer of it had."""
    messages, known, new = [], 0, 0
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Conversation {number}, question {turn}: what came next, and why?"})
        body = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 12, "temperature": 0,
                                                    "ignore_eos": True}).json()
        messages.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
        new += body["usage"]["prompt_tokens"] - known
        known = body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    return new


def check_conversations(server, report, count, turns):
    with report.check(f"{count} conversations of {turns} turns compute prompts once"):
        given = server.metric("vllm:prefix_cache_queries_total")
        shared = server.metric("vllm:prefix_cache_hits_total")
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            new = sum(pool.map(lambda number: converse(server, number, turns), range(count)))
        given = server.metric("vllm:prefix_cache_queries_total") - given
        computed = given - (server.metric("vllm:prefix_cache_hits_total") - shared)
        print(f"prompt tokens: {given:.0f} given, {new} new, {computed:.0f} computed ({computed / new:.3f} of the new ones)")
        assert computed <= 1.1 * new, computed / new


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--conversations", type=int, default=100)
    args = parser.parse_args()
    report = service.Report()
    with tempfile.TemporaryDirectory() as batches, service.Server(
            args.penstock, "--memory", "256MiB", "--batch-size", 64, "--batches", batches) as server:
        check_one_hash(server, args.penstock, report)
        check_conversations(server, report, args.conversations, 8)
    report.end()


if __name__ == "__main__":
    sys.exit(main())
