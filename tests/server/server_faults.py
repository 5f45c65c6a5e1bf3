#!/usr/bin/env python3
"""Sends the server what broken, slow, hostile and hasty clients send, and stops it. It must answer each with
the right status, go on, and lose nothing.

Usage: server_faults.py --penstock PROGRAM [--only TEXT]
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time

import service

KEY = "a-key-of-the-tests"
TRICKLE_S = 100  # a head that does not end is given up after 75 s
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ENDLESS = {"ignore_eos": True, "temperature": 0}  # an answer ends with max_tokens only
HELLO = [{"role": "user", "content": "Hello"}]


class Wire:
    """A connection on which a test writes any bytes."""

    def __init__(self, server, timeout=30):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=timeout)
        self.rest = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode())

    def read_until(self, end):
        while end not in self.rest:
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError(f"the server closed the connection after {self.rest[-200:]!r}")
            self.rest += piece
        found, _, self.rest = self.rest.partition(end)
        return found

    def response(self, has_body=True):
        """Returns (status, headers, body) of the next response, whose body has a length."""
        lines = self.read_until(b"\r\n\r\n").decode().split("\r\n")
        status = int(lines[0].split()[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", 0)) if has_body else 0
        while len(self.rest) < length:
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError("the server closed the connection in a body")
            self.rest += piece
        body, self.rest = self.rest[:length], self.rest[length:]
        return status, headers, body

    def all(self):
        """Returns what comes until the server closes."""
        data = self.rest
        try:
            while piece := self.socket.recv(65536):
                data += piece
        except ConnectionResetError:
            pass
        return data


def head(method, path, *lines, version="1.1"):
    return f"{method} {path} HTTP/{version}\r\nHost: x\r\n" + "".join(line + "\r\n" for line in lines) + "\r\n"


def post(path, body, *lines, version="1.1"):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head("POST", path, f"Content-Length: {len(body)}", *lines, version=version).encode() + body


def status_of(server, data):
    with Wire(server) as wire:
        wire.send(data)
        return wire.response()[0]


def expect(found, *wanted):
    assert found in wanted, f"found {found}, expected {wanted}"


def is_openai_error(answer):
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"], answer


def check_http(server, report):
    """The HTTP library: lengths without an end, chunk sizes, smuggled requests."""
    with report.check("malformed HTTP gets status 400"):
        for data in ("GARBAGE\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                     "GET /health HTTP/1.1\r\nbad header\r\n\r\n",
                     b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "GET /\x00 HTTP/1.1\r\n\r\n",
                     head("POST", TEXT, "Content-Length: -1"), head("POST", TEXT, "Content-Length: 12abc"),
                     head("POST", TEXT, "Content-Length: 99999999999999999999999"),
                     head("POST", TEXT, "Transfer-Encoding: chunked") + "-5\r\nhello\r\n0\r\n\r\n",
                     head("POST", TEXT, "Transfer-Encoding: chunked") + "ffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
                     head("POST", TEXT, "Transfer-Encoding: chunked") + "zz\r\nhello\r\n0\r\n\r\n"):
            found = status_of(server, data)
            assert found in (400, 413, 505), f"{data!r} got {found}"
    with report.check("a length and chunks together are refused, and no second request is smuggled in"):
        with Wire(server) as wire:
            wire.send(head("POST", TEXT, "Content-Length: 4", "Transfer-Encoding: chunked")
                      + "0\r\n\r\n" + head("GET", "/health"))
            expect(wire.response()[0], 400)
        with Wire(server) as wire:
            wire.send(head("POST", TEXT, "Content-Length: 4", "Content-Length: 5") + "{}  \r\n")
            expect(wire.response()[0], 400)
    with report.check("a head of more than 16 KiB gets status 431"):
        expect(status_of(server, head("GET", "/health", "X-Long: " + "a" * 40_000)), 431)
        expect(status_of(server, head("GET", "/health", *[f"X-{i}: {i}" for i in range(4000)])), 431)
        expect(status_of(server, head("GET", "/" + "a" * 40_000)), 431)
        expect(status_of(server, "GET /" + "a" * 40_000), 431)
    with report.check("a body that is too long gets status 413, with a length and in chunks"):
        expect(status_of(server, head("POST", TEXT, f"Content-Length: {1 << 40}")), 413)
        with Wire(server) as wire:
            wire.send(head("POST", TEXT, "Transfer-Encoding: chunked"))
            try:
                for _ in range(80):
                    wire.send(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
            except (BrokenPipeError, ConnectionResetError):
                pass
            expect(wire.response()[0], 413)
    with report.check("a million empty or tiny chunks do no harm"):
        with Wire(server) as wire:
            body = json.dumps({"prompt": "Hello", "max_tokens": 1}).encode()
            chunks = b"".join(b"1;extension=x\r\n" + bytes([byte]) + b"\r\n" for byte in b" " * 200_000 + body)
            wire.send(head("POST", TEXT, "Transfer-Encoding: chunked").encode() + chunks + b"0\r\n\r\n")
            expect(wire.response()[0], 200)


def check_http_forms(server, report):
    """Forms of HTTP that are rare and right."""
    body = {"prompt": "Once", "max_tokens": 2, "temperature": 0}
    with report.check("50 pipelined requests get their answers in order"):
        with Wire(server) as wire:
            wire.send(b"".join(post("/tokenize", {"prompt": "a " * i, "add_special_tokens": False}) for i in range(50)))
            counts = [json.loads(wire.response()[2])["count"] for _ in range(50)]
            assert counts == sorted(counts) and counts[0] == 0 and counts[49] > 40, counts
    with report.check("a pipeline that is longer than the server reads ahead"):
        with Wire(server) as wire:
            one = post(TEXT, {"prompt": "Once", "max_tokens": 1, "user": "u" * 4000})
            sender = threading.Thread(target=wire.send, args=(one * 60,))
            sender.start()
            for _ in range(60):
                expect(wire.response()[0], 200)
            sender.join()
    with report.check("HTTP/1.0 gets whole answers and streams, and the connection closes"):
        for stream in (False, True):
            with Wire(server) as wire:
                wire.send(post(TEXT, {**body, "stream": stream}, version="1.0"))
                data = wire.all()
                assert data.split(b" ")[1] == b"200" and b"chunked" not in data.lower(), data
                assert data.endswith(b"data: [DONE]\n\n" if stream else b"}"), data[-100:]
    with report.check("Expect: 100-continue gets a 100, and a refusal comes without one"):
        with Wire(server) as wire:
            data = json.dumps(body).encode()
            wire.send(head("POST", TEXT, f"Content-Length: {len(data)}", "Expect: 100-continue"))
            assert b" 100 " in wire.read_until(b"\r\n\r\n")
            wire.send(data)
            expect(wire.response()[0], 200)
        expect(status_of(server, head("POST", "/nowhere", "Content-Length: 9", "Expect: 100-continue")), 404)
        expect(status_of(server, head("POST", TEXT, f"Content-Length: {1 << 40}", "Expect: 100-continue")), 413)
    with report.check("HEAD gets a head without a body, so that the next response is found"):
        with Wire(server) as wire:
            wire.send(head("HEAD", "/health") + head("GET", "/health"))
            expect(wire.response(has_body=False)[0], 200, 405)
            expect(wire.response()[0], 200)
    with report.check("Connection: close, absolute targets, lower-case headers, percent-encoding, queries"):
        with Wire(server) as wire:
            wire.send(head("GET", "/v1/mod%65ls?a=b&c", "connection: close"))
            data = wire.all()
            assert b" 200 " in data[:20] and data.endswith(b"}"), data
    with report.check("a method that is not allowed gets status 405 and the header Allow"):
        for method, path, allowed in (("GET", CHAT, "POST"), ("DELETE", "/v1/models", "GET"), ("PUT", TEXT, "POST"),
                                      ("POST", "/health", "GET"), ("PATCH", "/v1/files/x", "GET, DELETE"),
                                      ("BREW", "/v1/responses", "POST")):
            answer = server.ask(method, path)
            expect(answer.status, 405)
            expect(answer.headers.get("allow"), allowed)
    with report.check("an unknown path gets status 404 as JSON"):
        answer = server.ask("GET", "/v1/nothing")
        expect(answer.status, 404)
        is_openai_error(answer)


def bad_bodies():
    """(what, path, body) of requests that must get status 400."""
    deep = "[" * 3000 + "]" * 3000
    chat = '{"messages": [{"role": "user", "content": "Hi"}], '
    yield "JSON that is 3,000 lists deep", CHAT, chat + f'"tools": {deep}}}'
    yield "JSON that is 3,000 objects deep", TEXT, '{"prompt": "a", "metadata": ' + '{"a":' * 3000 + "1" + "}" * 3000 + "}"
    yield "bytes that are no UTF-8", TEXT, b'{"prompt": "\xff\xfe\xc3"}'
    yield "half a surrogate pair", TEXT, '{"prompt": "\\ud800"}'
    yield "NaN", TEXT, '{"prompt": "a", "temperature": NaN}'
    yield "Infinity", TEXT, '{"prompt": "a", "temperature": Infinity}'
    yield "a number that overflows", TEXT, '{"prompt": "a", "temperature": 1e999}'
    yield "an empty body", TEXT, b""
    yield "a list as a body", TEXT, "[]"
    yield "half a body", TEXT, '{"prompt": "a'
    yield "two bodies", TEXT, '{"prompt": "a"}{"prompt": "b"}'
    for name, value in (("n", -1), ("n", 0), ("n", 1e9), ("n", 1.5), ("n", "2"), ("max_tokens", 0), ("max_tokens", -1),
                        ("max_tokens", 1e30), ("max_tokens", True), ("temperature", -1), ("temperature", 101),
                        ("top_p", 0), ("top_p", 1.1), ("top_k", -2), ("min_p", 2), ("presence_penalty", 3),
                        ("frequency_penalty", -3), ("repetition_penalty", 0), ("seed", "a"), ("seed", 2**70),
                        ("stop", [""]), ("stop", ["a"] * 17), ("stop", "a" * 257), ("stop", [1]),
                        ("logit_bias", {"999999999999": 1}), ("logit_bias", {"4096": 1}), ("logit_bias", {"-1": 1}),
                        ("logit_bias", {"a": 1}), ("logit_bias", {"5": 101}), ("logit_bias", [1]),
                        ("stop_token_ids", [4096]), ("stop_token_ids", [-1]), ("stop_token_ids", [2**40]),
                        ("best_of", 1000), ("suffix", "end"), ("stream", "yes"), ("stream_options", {}), ("model", 5)):
        yield f"{name}: {value!r}", TEXT, {"prompt": "Hello", name: value}
    for value in (21, -1, 1.5, "3"):
        yield f"top_logprobs: {value!r}", CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": value}
        yield f"logprobs: {value!r}", TEXT, {"prompt": "Hello", "logprobs": value}
    yield "top_logprobs without logprobs", CHAT, {"messages": HELLO, "top_logprobs": 3}
    for prompt in ([], [[]], [""] * 129, [-1], [4096], [2**40], [1.5], [None], ["a", 1], {}, 7):
        yield f"prompt: {str(prompt)[:30]}", TEXT, {"prompt": prompt}
    for messages in ([], "Hi", [1], [{}], [{"role": "user"}],
                     [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}],
                     [{"role": "user", "content": 5}]):
        yield f"messages: {str(messages)[:60]}", CHAT, {"messages": messages}
    yield "no messages", CHAT, {}
    yield "no prompt", TEXT, {}
    yield "a prompt longer than the context", TEXT, {"prompt": "word " * 3000}
    yield "token ids longer than the context", TEXT, {"prompt": [5] * 2049}
    yield "a chat longer than the context", CHAT, {"messages": [{"role": "user", "content": "word " * 3000}]}
    yield "a template variable that only the server sets", CHAT, {"messages": HELLO,
                                                                  "chat_template_kwargs": {"messages": []}}
    for path, body in (("/v1/responses", {}), ("/v1/responses", {"input": 5}), ("/v1/responses", {"input": []}),
                       ("/v1/messages", {"messages": HELLO}), ("/v1/messages", {"max_tokens": 0, "messages": HELLO}),
                       ("/v1/messages", {"max_tokens": 5, "messages": []}), ("/v1/messages/count_tokens", {}),
                       ("/tokenize", {}), ("/detokenize", {}), ("/detokenize", {"tokens": [4096]}),
                       ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": "a"})):
        yield f"{path} {body}", path, body


def check_bodies(server, report):
    """Numbers out of range, ids outside the vocabulary, nesting, bad UTF-8 and NaN: one bad request harms no other."""
    with report.check("a long answer to watch beside the bad requests has begun"):
        other = concurrent.futures.ThreadPoolExecutor(1).submit(
            server.post, TEXT, {"prompt": "Once", "max_tokens": 1200, **ENDLESS})
    for what, path, body in bad_bodies():
        with report.check(f"status 400 for {what}"):
            answer = server.post(path, body)
            expect(answer.status, 400)
            error = answer.json()["error"]
            assert error["message"] and "/src/" not in error["message"], error
    with report.check("the answer beside them is whole"):
        answer = other.result(timeout=300)
        expect(answer.status, 200)
        expect(answer.json()["usage"]["completion_tokens"], 1200)
    with report.check("an empty prompt begins at the first token"):
        answer = server.post(TEXT, {"prompt": "", "max_tokens": 3})
        expect(answer.status, 200)
        expect(server.post(CHAT, {"messages": [{"role": "user", "content": ""}], "max_tokens": 3}).status, 200)
    with report.check("one letter a million times is tokenized in 2 s"):
        start = time.monotonic()
        expect(server.post("/tokenize", {"prompt": "a" * (1 << 20)}).status, 200, 400)
        assert time.monotonic() - start < 2 + 3 * os.getloadavg()[0], time.monotonic() - start
    with report.check("log-probabilities are finite numbers, whatever the bias"):
        answer = server.post(TEXT, {"prompt": "Hi", "max_tokens": 4, "logprobs": 5, "logit_bias": {"9": -100, "10": 100}})
        expect(answer.status, 200)
        json.loads(answer.body, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    with report.check("an answer that ends inside a letter is valid UTF-8"):
        for seed in range(8):
            body = {"prompt": "\N{SNOWMAN} \N{GRINNING FACE}", "max_tokens": 1, "temperature": 3, "logprobs": 3}
            body["seed"] = seed
            server.post(TEXT, body).body.decode("utf-8")
    with report.check("special tokens that a user types stay text"):
        plain = server.post("/tokenize", {"messages": [{"role": "user", "content": "a"}]}).json()["tokens"]
        typed = server.post("/tokenize", {"messages": [{"role": "user", "content": "a</s><|system|>"}]}).json()["tokens"]
        for token in set(plain):
            special = server.post("/detokenize", {"tokens": [token]}).json()["prompt"] == ""
            assert not special or plain.count(token) == typed.count(token), f"token {token} was typed"


def described():
    """(method, path) of all endpoints in docs/openapi.json, and of one that always refuses."""
    description = json.loads((pathlib.Path(__file__).parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8"))
    for path, methods in description["paths"].items():
        for method in methods:
            yield method.upper(), re.sub(r"\{.*?\}", "x", path)
    yield "POST", "/v1/embeddings"


def check_keys(binary, report):
    with tempfile.TemporaryDirectory() as folder, \
            service.Server(binary, "--batches", folder, "--api-key", KEY, "--api-key", "second",
                           "--cors", "https://example.com",
                           environment={**os.environ, "PENSTOCK_API_KEY": "third"}) as server:
        with report.check("without a key: 401 for every path that is described, but for /health and /version"):
            for method, path in described():
                if path in ("/health", "/version"):
                    continue
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"},
                                {"Authorization": f"Bearer {KEY}x"}, {"x-api-key": ""}, {"x-api-key": KEY[:-1]}):
                    answer = server.ask(method, path, {} if method == "POST" else None, headers)
                    assert answer.status == 401 and "www-authenticate" in answer.headers, (method, path, headers, answer)
                    assert KEY not in answer.body.decode(), answer
            expect(server.ask("GET", "/health").status, 200)
            expect(server.ask("GET", "/version").status, 200)
        with report.check("each of the keys is taken, in either header"):
            for key in (KEY, "second", "third"):
                for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
                    expect(server.ask("GET", "/v1/models", headers=headers).status, 200)
        with report.check("a browser's preflight needs no key, and names the origin, the methods and Authorization"):
            answer = server.ask("OPTIONS", CHAT, headers={"Origin": "https://example.com",
                                                          "Access-Control-Request-Method": "POST",
                                                          "Access-Control-Request-Headers": "authorization,content-type"})
            expect(answer.status, 204)
            expect(answer.headers.get("access-control-allow-origin"), "https://example.com")
            assert "POST" in answer.headers["access-control-allow-methods"], answer.headers
            # The star stands for no Authorization: browsers want it by name.
            assert "authorization" in answer.headers["access-control-allow-headers"].lower(), answer.headers
        with report.check("the clients' own headers may be sent from a browser"):
            for name in ("x-api-key", "anthropic-version", "anthropic-beta", "x-stainless-os", "openai-organization"):
                answer = server.ask("OPTIONS", CHAT, headers={"Origin": "https://example.com",
                                                              "Access-Control-Request-Method": "POST",
                                                              "Access-Control-Request-Headers": name})
                allowed = [one.strip().lower() for one in answer.headers["access-control-allow-headers"].split(",")]
                assert name in allowed or "*" in allowed, (name, allowed)
        with report.check("responses and errors name the origin"):
            for key in (KEY, "wrong"):
                answer = server.ask("GET", "/v1/models", headers={"x-api-key": key, "Origin": "https://example.com"})
                expect(answer.headers.get("access-control-allow-origin"), "https://example.com")


def check_paths(server, report):
    with report.check("paths in ids of files and batches lead nowhere"):
        for name in ("..%2F..%2F..%2Fetc%2Fpasswd", "..", "%2e%2e", "../../lock", "..%2Flock", "file-%00", ".json", "%ff",
                     "a" * 5000):
            for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{name}"):
                answer = server.ask("GET", path)
                assert answer.status in (400, 404) and b"root:" not in answer.body, (path, answer)
            expect(server.ask("DELETE", f"/v1/files/{name}").status, 404)
            expect(server.ask("POST", f"/v1/batches/{name}/cancel").status, 404)
    with report.check("the name of an uploaded file is only a name"):
        answer = upload(server, b"{}\n", name="../../../../tmp/penstock-escaped")
        expect(answer.status, 200)
        assert not os.path.exists("/tmp/penstock-escaped")
        assert server.ask("GET", f"/v1/files/{answer.json()['id']}/content").body == b"{}\n"
    with report.check("forms that are broken get status 400, and leave no file"):
        before = len(server.ask("GET", "/v1/files?limit=1000").json()["data"])
        for content_type, body in (("multipart/form-data", b"x"), ("multipart/form-data; boundary=", b"x"),
                                   ("multipart/form-data; boundary=b", b"x"),
                                   ("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--\r\n"),
                                   ("multipart/form-data; boundary=b",
                                    b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"),
                                   ("multipart/form-data; boundary=b", form(b"{}", "evil")),
                                   ("multipart/form-data; boundary=b", form(b"{}")[:-6]),
                                   ("multipart/form-data; boundary=" + "b" * 300, b"--" + b"b" * 300),
                                   ("application/json", b"{}")):
            answer = server.ask("POST", "/v1/files", body, {"Content-Type": content_type})
            assert answer.status in (400, 415), (content_type, body, answer)
        expect(len(server.ask("GET", "/v1/files?limit=1000").json()["data"]), before)


def form(content, purpose="batch", name="in.jsonl"):
    return (f'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
            f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n').encode() \
        + content + b"\r\n--b--\r\n"


def upload(server, content, name="in.jsonl"):
    return server.ask("POST", "/v1/files", form(content, name=name), {"Content-Type": "multipart/form-data; boundary=b"})


def check_leaving(server, report):
    def running():
        return server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting")

    for stream in (True, False):
        with report.check(f"clients that leave: nothing runs a second later (stream: {stream})"):
            wires = [Wire(server) for _ in range(8)]
            for wire in wires:
                wire.send(post(TEXT, {"prompt": "Once", "max_tokens": 2000, "n": 2, "stream": stream, **ENDLESS}))
            server.wait_until("requests run", lambda: running() >= 16)
            if stream:
                wires[0].read_until(b"data:")
            for wire in wires:
                wire.socket.close()
            server.wait_until("requests end", lambda: running() == 0, seconds=1 + os.getloadavg()[0] / 4)
    with report.check("clients that reset the connection, or leave inside a head or a body"):
        for number in range(60):
            wire = Wire(server)
            data = post(TEXT, {"prompt": "Once", "max_tokens": 500, "stream": number % 2 == 0, **ENDLESS})
            wire.send(data[:random.Random(number).randint(1, len(data))])
            if number % 3 == 0:
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            wire.socket.close()
        server.wait_until("requests end", lambda: running() == 0, seconds=10)
        server.wait_until("connections end", lambda: server.metric("penstock:connections") <= 3, seconds=10)
    with report.check("a client that reads slowly gets all of a stream"):
        with Wire(server) as wire:
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.send(post(TEXT, {"prompt": "Once", "max_tokens": 600, "stream": True, "logprobs": 5, **ENDLESS},
                           "Connection: close"))
            time.sleep(2)
            assert b"data: [DONE]" in wire.all()


def check_many(server, report):
    with report.check("1,000 connections, of which 100 ask"):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        wires = [Wire(server, timeout=120) for _ in range(1000)]
        server.wait_until("connections", lambda: server.metric("penstock:connections") >= 1000)
        for wire in wires[::10]:
            wire.send(post(TEXT, {"prompt": "Once", "max_tokens": 2}))
        for wire in wires[::10]:
            expect(wire.response()[0], 200)
        for wire in wires:
            wire.socket.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        server.wait_until("connections end", lambda: server.metric("penstock:connections") <= 3)


class Trickle(threading.Thread):
    """A client that never ends its head, byte after byte, while the other checks run."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.wire, self.start_time, self.closed_after = Wire(server), time.monotonic(), None
        self.start()

    def run(self):
        try:
            self.wire.send("GET /health HTTP/1.1\r\nX-Slow: ")
            while time.monotonic() - self.start_time < TRICKLE_S:
                self.wire.send("a")
                self.wire.socket.settimeout(0.5)
                try:
                    if not self.wire.socket.recv(4096):
                        break
                except TimeoutError:
                    pass
            else:
                return
        except OSError:
            pass
        self.closed_after = time.monotonic() - self.start_time


def check_queue(binary, report):
    with service.Server(binary, "--max-waiting", 0, "--batch-size", 1) as server:
        def refusals():
            found = []
            for path, body in ((TEXT, {"prompt": "a"}), (CHAT, {"messages": HELLO}), ("/v1/responses", {"input": "a"}),
                               ("/v1/messages", {"messages": HELLO, "max_tokens": 5})) * 5:
                start = time.monotonic()
                answer = server.post(path, body)
                found.append((path, answer, time.monotonic() - start))
            return found

        with report.check("a full queue: 429 with Retry-After within 50 ms, while the answer under way goes on"):
            with Wire(server, timeout=300) as wire:
                wire.send(post(TEXT, {"prompt": "Once", "max_tokens": 2000, "stream": True, **ENDLESS}))
                wire.read_until(b"data:")
                found = refusals()
                for path, answer, _ in found:
                    assert answer.status == 429 and int(answer.headers["retry-after"]) > 0, (path, answer)
                assert sorted(seconds for _, _, seconds in found)[len(found) // 2] < 0.05, found
                expect(server.ask("GET", "/health").status, 200)
        with report.check("then there is room again"):
            server.wait_until("room", lambda: server.post(TEXT, {"prompt": "a", "max_tokens": 1}).status == 200)
        with report.check("more answers than the queue will ever hold are no reason to try again"):
            answer = server.post(TEXT, {"prompt": "a", "max_tokens": 1, "n": 2})
            expect(answer.status, 200, 400)
    with service.Server(binary, "--max-connections", 10) as server:
        with report.check("connections beyond --max-connections are closed, and the others go on"):
            wires = [Wire(server) for _ in range(10)]
            server.wait_until("a refusal", lambda: is_closed_at_once(server))
            wires[0].send(head("GET", "/health"))
            expect(wires[0].response()[0], 200)
            for wire in wires:
                wire.socket.close()
            server.wait_until("room", lambda: not is_closed_at_once(server))


def is_closed_at_once(server):
    try:
        with Wire(server) as wire:
            wire.send(head("GET", "/health"))
            wire.response()
            return False
    except (EOFError, OSError):
        return True


def check_stops(binary, report):
    with report.check("SIGTERM: streams and answers under way complete, new requests do not, exit code 0"):
        with service.Server(binary) as server:
            wires = [Wire(server, timeout=300) for _ in range(6)]
            for number, wire in enumerate(wires):
                wire.send(post(TEXT, {"prompt": "Once", "max_tokens": 300, "stream": number % 2 == 0, **ENDLESS},
                               "Connection: close"))
            server.wait_until("requests run", lambda: server.metric("vllm:num_requests_running") == 6)
            server.process.send_signal(signal.SIGTERM)
            ends = [wire.all() for wire in wires]
            for number, data in enumerate(ends):
                end = b"data: [DONE]\n\n\r\n0\r\n\r\n" if number % 2 == 0 else b"}"
                assert data.endswith(end) or b'"finish_reason":"length"' in data[-700:], data[-300:]
            expect(server.process.wait(timeout=60), 0)
    with report.check("SIGTERM ends an idle server with open connections within 2 s, exit code 0"):
        with service.Server(binary) as server:
            wires = [Wire(server) for _ in range(20)]
            wires[0].send(head("GET", "/health"))
            wires[0].response()
            start = time.monotonic()
            expect(server.stop(), 0)
            assert time.monotonic() - start < 2 + os.getloadavg()[0] / 4, time.monotonic() - start
    with report.check("--drain limits the wait, and a second signal ends it"):
        with service.Server(binary, "--drain", 0.2) as server:
            with Wire(server) as wire:
                wire.send(post(TEXT, {"prompt": "Once", "max_tokens": 2000, "stream": True, **ENDLESS}))
                wire.read_until(b"data:")
                expect(server.stop(timeout=30), 0)
    with report.check("a port that is taken: exit code 5 and one line"):
        with service.Server(binary) as server:
            command = [binary, "serve", "--model", str(service.MODEL), "--port", str(server.port)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            errors = [line for line in done.stderr.splitlines() if line.startswith("penstock: error")]
            assert done.returncode == 5 and len(errors) == 1, done


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--slow", action="store_true", help="also wait for the end of a head that trickles in")
    parser.add_argument("--only", default="", help="run the groups whose name holds this text")
    args = parser.parse_args()
    report = service.Report()
    with tempfile.TemporaryDirectory() as folder, service.Server(args.penstock, "--batches", folder) as server:
        trickle = Trickle(server) if args.slow else None
        groups = {"http": lambda: check_http(server, report), "forms": lambda: check_http_forms(server, report),
                  "bodies": lambda: check_bodies(server, report), "keys": lambda: check_keys(args.penstock, report),
                  "paths": lambda: check_paths(server, report), "leaving": lambda: check_leaving(server, report),
                  "many": lambda: check_many(server, report), "queue": lambda: check_queue(args.penstock, report),
                  "stops": lambda: check_stops(args.penstock, report)}
        for name, group in groups.items():
            if args.only in name:
                group()
        if trickle:
            with report.check("a head that never ends is given up"):
                trickle.join()
                assert trickle.closed_after and 10 < trickle.closed_after < TRICKLE_S, trickle.closed_after
        with report.check("the server is the one that began, and answers"):
            assert server.is_alive(), server.messages()
            expect(server.post(CHAT, {"messages": HELLO, "max_tokens": 2}).status, 200)
            assert "error" not in server.messages().lower(), server.messages()
    report.end()


if __name__ == "__main__":
    main()
