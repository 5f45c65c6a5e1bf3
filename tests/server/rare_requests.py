#!/usr/bin/env python3
"""Sends the server requests that are rare and right, and looks at what it counts and keeps.

Usage: rare_requests.py --penstock PROGRAM
"""
import argparse
import concurrent.futures
import contextlib
import json
import pathlib
import re
import socket
import tempfile
import time

import server_faults
import service

CHAT, TEXT = server_faults.CHAT, server_faults.TEXT
NAME = "another/name"
BODY_MEMORY = 32 << 20  # of 2 MiB of bodies and their JSON, and what allocators keep
CLIENTS_MEMORY = 64 << 20
FORMAT_MEMORY = 112 << 20  # beside the budget: one format that is compiled (64 MiB), and what allocators keep


def refused(server, reason):
    text = server.ask("GET", "/metrics").body.decode()
    found = re.search(rf'^penstock:requests_refused_total{{.*reason="{reason}"}} (\d+)$', text, re.M)
    return int(found.group(1)) if found else 0


def wait_for_batch(server, lines):
    """Runs a batch; returns its result lines."""
    file = server_faults.upload(server, "".join(json.dumps(line) + "\n" for line in lines).encode()).json()["id"]
    batch = server.post("/v1/batches", {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}).json()
    server.wait_until("the batch ends", lambda: get(server, batch)["status"] in ("completed", "failed"), seconds=300)
    content = server.ask("GET", f"/v1/files/{get(server, batch)['output_file_id']}/content").body.decode()
    return [json.loads(line) for line in content.splitlines()]


def check_errors(server, folder, report):
    """Errors do not tell the client where the server keeps files."""
    with report.check("a batch that fails names its file by the id alone"):
        file = server_faults.upload(server, b"\x1f\x8b\x08\0 compressed").json()["id"]
        batch = server.post("/v1/batches", {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}).json()
        server.wait_until("the batch fails", lambda: get(server, batch)["status"] == "failed")
        message = get(server, batch)["errors"]["data"][0]["message"]
        assert message.startswith(file) and folder not in message, message
    with report.check("an upload that the disk refuses gets status 507 without a path, and is counted"):
        files = pathlib.Path(folder) / "files"
        files.rename(files.with_name("away"))
        before = refused(server, "disk_full")
        answer = server_faults.upload(server, b"{}\n")
        files.with_name("away").rename(files)
        assert answer.status == 507 and folder not in answer.body.decode(), answer
        server_faults.expect(refused(server, "disk_full"), before + 1)


def get(server, batch):
    return server.ask("GET", f"/v1/batches/{batch['id']}").json()


def check_counts(server, report):
    """Refusals of all endpoints are counted, and everything names the served model."""
    with report.check("refusals of files, batches, paths and broken HTTP are counted"):
        for reason, ask in (
                ("not_found", lambda: server.ask("GET", "/v1/files/file-none")),
                ("not_found", lambda: server.ask("DELETE", "/v1/files/file-none")),
                ("not_found", lambda: server.ask("GET", "/v1/batches/batch_none")),
                ("not_found", lambda: server.ask("GET", "/v1/nothing")),
                ("invalid_request", lambda: server.ask("GET", "/v1/batches?limit=0")),
                ("invalid_request", lambda: server.post("/v1/batches", {"input_file_id": "none"})),
                ("invalid_request", lambda: server.ask("POST", "/v1/files", b"{}")),
                ("invalid_request", lambda: server_faults.status_of(server, "GARBAGE\r\n\r\n")),
                ("too_long", lambda: server_faults.status_of(server, "GET /" + "a" * 40_000))):
            before = refused(server, reason)
            ask()
            assert refused(server, reason) == before + 1, reason
    with report.check("answers, result lines of batches and metrics have the name of --served-model-name"):
        body = {"model": NAME, "messages": server_faults.HELLO, "max_tokens": 2}
        server_faults.expect(server.post(CHAT, body).json()["model"], NAME)
        results = wait_for_batch(server, [{"custom_id": "a", "method": "POST", "url": CHAT, "body": body}])
        assert [line["response"]["body"]["model"] for line in results] == [NAME], results
        assert f'model_name="{NAME}"' in server.ask("GET", "/metrics").body.decode()
        assert f"serving {NAME} at" in server.messages()


def check_answers(server, report):
    """Several answers have log-probabilities, and an answer may continue the last message."""
    with report.check("several answers have their own log-probabilities, those of single requests"):
        body = {"prompt": "Once", "max_tokens": 5, "n": 3, "seed": 7, "temperature": 1, "logprobs": 2}
        choices = server.post(TEXT, body).json()["choices"]
        plain = server.post(TEXT, {**body, "logprobs": None}).json()["choices"]
        assert [choice["text"] for choice in choices] == [choice["text"] for choice in plain], (choices, plain)
        assert all(len(choice["logprobs"]["token_logprobs"]) == 5 for choice in choices), choices
        first = server.post(TEXT, {**body, "n": 1}).json()["choices"][0]
        server_faults.expect(choices[0]["logprobs"], first["logprobs"])
        answer = server.post(TEXT, {**body, "stream": True}).body.decode()
        streamed = [[], [], []]
        for event in re.findall(r"^data: (\{.*)$", answer, re.M):
            for choice in json.loads(event)["choices"]:
                if choice["logprobs"]:
                    streamed[choice["index"]] += choice["logprobs"]["token_logprobs"]
        server_faults.expect(streamed, [choice["logprobs"]["token_logprobs"] for choice in choices])
    with report.check("log-probabilities that could take more than their share of the memory are refused by name"):
        body = {"prompt": "Once", "max_tokens": 400, "n": 16, "logprobs": 20}
        answer = server.post(TEXT, body)
        assert answer.status == 400 and answer.json()["error"]["param"] == "logprobs", answer
        assert server.post(TEXT, {**body, "n": 1, "max_tokens": 8}).status == 200
        assert server.post(TEXT, {**body, "n": 1, "max_tokens": 300, "stream": True}).status == 200
    with report.check("log-probabilities of several requests share it"):
        body = {"prompt": "Once", "max_tokens": 200, "n": 1, "logprobs": 20, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            statuses = list(pool.map(lambda _: server.post(TEXT, body).status, range(8)))
        assert set(statuses) <= {200, 429} and 200 in statuses, statuses
        server_faults.expect(server.post(TEXT, body).status, 200)
    messages = [*server_faults.HELLO, {"role": "assistant", "content": "Hello. My name is"}]
    more = {"max_tokens": 8, "temperature": 0}
    prompt = {"messages": messages, "continue_final_message": True}
    with report.check("a chat's answer continues the last message: its prompt ends with it"):
        tokens = server.post("/tokenize", prompt).json()["tokens"]
        assert server.post("/detokenize", {"tokens": tokens}).json()["prompt"].endswith("Hello. My name is"), tokens
        expected = server.post(TEXT, {"prompt": tokens, **more, "echo": True}).json()["choices"][0]["text"]
        answer = server.post(CHAT, {**prompt, **more}).json()["choices"][0]["message"]["content"]
        assert answer and expected.endswith("Hello. My name is" + answer), (expected, answer)
    with report.check("so does /v1/messages, also as a stream, and counts the same tokens"):
        body = {"messages": messages, **more}
        found = server.post("/v1/messages", body).json()
        server_faults.expect(found["content"], [{"type": "text", "text": answer}])
        server_faults.expect(server.post("/v1/messages/count_tokens", {"messages": messages}).json()["input_tokens"],
                             len(tokens))
        stream = server.post("/v1/messages", {**body, "stream": True}).body.decode()
        pieces = [json.loads(line)["delta"]["text"] for line in re.findall(r"^data: (.*\"text_delta\".*)$", stream, re.M)]
        server_faults.expect("".join(pieces), answer)
    with report.check("an empty beginning, and one that calls tools, are refused by name"):
        for last in ({"role": "assistant", "content": " "},
                     {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}):
            refusal = server.post("/v1/messages", {"messages": [*server_faults.HELLO, last], **more})
            assert refusal.status == 400 and "continue_final_message" in refusal.json()["error"]["message"], refusal


def check_half_closed(server, report):
    """A client may end sending before it has its response."""
    with report.check("a client that ends sending gets its answer, whole, streamed, and of a file"):
        file = server_faults.upload(server, b"{}\n" * 100_000).json()["id"]
        for data, end in ((server_faults.head("GET", "/v1/models"), b"}"),
                          (server_faults.head("GET", f"/v1/files/{file}/content"), b"{}\n"),
                          (server_faults.post(TEXT, {"prompt": "Once", "max_tokens": 900, **server_faults.ENDLESS}), b"}"),
                          (server_faults.post(TEXT, {"prompt": "Once", "max_tokens": 900, "stream": True,
                                                     **server_faults.ENDLESS}), b"0\r\n\r\n")):
            with server_faults.Wire(server, timeout=300) as wire:
                wire.send(data)
                wire.socket.shutdown(socket.SHUT_WR)
                found = wire.all()
                assert found.startswith(b"HTTP/1.1 200 OK\r\n") and found.endswith(end), (found[:300], found[-300:])
    with report.check("one that leaves afterwards frees its place"):
        for stream in (False, True):
            with server_faults.Wire(server) as wire:
                wire.send(server_faults.post(TEXT, {"prompt": "Once", "max_tokens": 2000, "stream": stream,
                                                    **server_faults.ENDLESS}))
                wire.socket.shutdown(socket.SHUT_WR)
                server.wait_until("it runs", lambda: server.metric("vllm:num_requests_running") == 1)
            start = time.monotonic()
            server.wait_until("it ends", lambda: server.metric("vllm:num_requests_running") == 0, seconds=60)
            print(f"  after {time.monotonic() - start:.2f} s (stream: {stream})")


def check_bodies(binary, report):
    """Bodies that need far more memory than their bytes stay within what the server has for them."""
    with service.Server(binary, "--memory", "64MiB", "--batch-size", 2) as server:
        limit = 2 << 20  # of a body
        chat = {"messages": server_faults.HELLO, "max_tokens": 2}
        server_faults.expect(server.post(CHAT, chat).status, 200)
        before = server.metric("penstock:memory_used_bytes")
        peak = Peak(server)
        zeros = ",".join("0" * (limit // 3))
        keys = ",".join(f'"{i:x}":0' for i in range(limit // 12))
        long = "a" * (limit * 3 // 4)
        for what, path, body, status in (
                ("a list of a million numbers", CHAT, json.dumps(chat)[:-1] + f', "user": [{zeros}]}}', 413),
                ("an object of many keys", CHAT, json.dumps(chat)[:-1] + f', "user": {{{keys}}}}}', 413),
                ("many tokens to be made text", "/detokenize", f'{{"tokens": [{zeros}]}}', 413),
                ("a long text to be tokenized", "/tokenize", {"prompt": long}, 400),
                ("the same as a piece", "/tokenize", {"content": long}, 400),
                ("a long prompt", TEXT, {"prompt": long}, 400),
                ("many prompts beside a long field", TEXT, {"prompt": ["a"] * 30, "max_tokens": 1, "user": long}, 200)):
            with report.check(f"{what}: status {status}, and little memory"):
                server.wait_until("the bytes of earlier bodies are free", lambda p=path, b=body, s=status:
                                  server.post(p, b).status == s)
                grown = peak.bytes() - before
                print(f"  {grown / 2**20:.0f} MiB more")
                assert grown < BODY_MEMORY, grown
        with report.check("requests that wait with long fields share their memory"):
            bodies = [{"input": "Once", "max_output_tokens": 300, "metadata": {"a": str(i) + "b" * (limit // 4)}}
                      for i in range(30)]
            with concurrent.futures.ThreadPoolExecutor(30) as pool:
                statuses = list(pool.map(lambda body: server.post("/v1/responses", body).status, bodies))
            assert set(statuses) <= {200, 429} and 200 in statuses, statuses
            assert peak.bytes() - before < BODY_MEMORY, peak.bytes() - before
            server_faults.expect(server.post("/v1/responses", {**bodies[0], "max_output_tokens": 1}).status, 200)


def check_many_clients(binary, report):
    """A thousand clients ask, do not read, and send their next requests at once."""
    ask = server_faults.post(TEXT, {"prompt": "Once", "max_tokens": 2000, **server_faults.ENDLESS})
    more = server_faults.head("GET", "/v1/models?" + "a" * 4000).encode() * 32
    with service.Server(binary, "--memory", "64MiB", "--batch-size", 2, "--max-waiting", 1000) as server, \
            contextlib.ExitStack() as stack:
        server_faults.expect(server.post(TEXT, {"prompt": "Once", "max_tokens": 2}).status, 200)
        before = server.metric("penstock:memory_used_bytes")
        peak = Peak(server)
        with report.check("1,000 clients with 128 KiB of requests behind one that waits take little memory"):
            for _ in range(1000):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
                client.sendall(ask)
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.send(more)
            server.wait_until("all wait", lambda: server.metric("vllm:num_requests_running") +
                              server.metric("vllm:num_requests_waiting") >= 1000, seconds=300)
            grown = peak.bytes() - before
            print(f"  {grown / 2**20:.0f} MiB more")
            assert grown < CLIENTS_MEMORY, grown


def check_batch_files(binary, report):
    """Files for batches are refused before their lines take more memory than the server has for them."""
    small = b'{"custom_id": "%d", "method": "POST", "url": "/v1/completions", "body": {}}\n'
    with tempfile.TemporaryDirectory() as folder, \
            service.Server(binary, "--memory", "64MiB", "--batch-size", 2, "--batches", folder) as server:
        server_faults.expect(server.post(CHAT, {"messages": server_faults.HELLO, "max_tokens": 2}).status, 200)
        before = server.metric("penstock:memory_used_bytes")
        peak = Peak(server)
        for what, content in (("a line of many numbers", b'{"custom_id": "a", "x": [' + b"0," * (7 << 20) + b"0]}\n"),
                              ("a long line", b'{"custom_id": "a", "x": "' + b"a" * (15 << 20) + b'"}\n'),
                              ("many lines", b"".join(small % number for number in range(540_000)))):
            with report.check(f"a file for a batch with {what} is refused, and takes little memory"):
                file = server_faults.upload(server, content).json()["id"]
                batch = server.post("/v1/batches",
                                    {"input_file_id": file, "endpoint": TEXT, "completion_window": "24h"}).json()
                server.wait_until("it is refused", lambda b=batch: get(server, b)["errors"], seconds=300)
                message = get(server, batch)["errors"]["data"][0]["message"]
                assert "to be validated" in message and message.startswith(file), message
                grown = peak.bytes() - before
                print(f"  {grown / 2**20:.0f} MiB more")
                assert grown < BODY_MEMORY, grown


def large_schema(number):
    """A schema of 200 KB that no other equals, with texts that share nothing."""
    return {"type": "object", "properties": {f"p{number}_{i}": {"enum": [f"{number}-{i}-{j:05}" * 4 for j in range(20)]}
                                             for i in range(100)}}


def check_formats(binary, report):
    """Formats of strangers take bounded memory, however many there are."""
    with service.Server(binary, "--memory", "64MiB", "--batch-size", 2) as server:
        with report.check("many requests with large schemas at once, all different"):
            plain = {"messages": server_faults.HELLO, "max_tokens": 2, "response_format": {"type": "json_object"}}
            server_faults.expect(server.post(CHAT, plain).status, 200)
            before = server.metric("penstock:memory_used_bytes")
            peak = Peak(server)

            def ask(number):
                schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": large_schema(number)}}
                body = {"messages": server_faults.HELLO, "max_tokens": 2, "response_format": schema}
                return server.post(CHAT, body).status

            with concurrent.futures.ThreadPoolExecutor(24) as pool:
                statuses = list(pool.map(ask, range(96)))
            assert set(statuses) <= {200, 429} and 200 in statuses, statuses
            grown = peak.bytes() - before
            print(f"  {statuses.count(200)} answered, {grown / 2**20:.0f} MiB more")
            assert grown < FORMAT_MEMORY, grown
        with report.check("many short patterns at once that need much memory are refused"):
            letters = "".join(chr(0x4E00 + 2 * i) for i in range(2000))  # no two of them are neighbours
            schema = {"type": "string", "minLength": 1, "pattern": f"^[{letters}]{{100000}}$"}
            body = {**plain, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda _: server.post(CHAT, body), range(16)))
            assert all(answer.status == 400 and b"too much memory" in answer.body for answer in answers), answers
            grown = peak.bytes() - before
            print(f"  {grown / 2**20:.0f} MiB more")
            assert grown < FORMAT_MEMORY, grown


class Peak:
    """The most resident memory of a server."""

    def __init__(self, server):
        self.process = pathlib.Path(f"/proc/{server.process.pid}")
        (self.process / "clear_refs").write_text("5", encoding="utf-8")  # forgets the peak so far

    def bytes(self):
        status = (self.process / "status").read_text(encoding="utf-8")
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) << 10


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    args = parser.parse_args()
    report = service.Report()
    with tempfile.TemporaryDirectory() as folder:
        with service.Server(args.penstock, "--batches", folder, "--served-model-name", NAME) as server:
            check_counts(server, report)
            check_answers(server, report)
            check_half_closed(server, report)
            check_errors(server, folder, report)
            assert server.is_alive(), server.messages()
    check_bodies(args.penstock, report)
    check_many_clients(args.penstock, report)
    check_batch_files(args.penstock, report)
    check_formats(args.penstock, report)
    report.end()


if __name__ == "__main__":
    main()
