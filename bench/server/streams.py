"""Clients that stream answers of a server with the API of OpenAI, cheap enough to share its processors.

One process holds all clients. An event is searched for a few bytes, not parsed, except for the one with the usage.
"""
import asyncio
import json
import pathlib
import random
import re
import socket
import subprocess
import tempfile
import time
import urllib.request

TOKEN = re.compile(rb'"(?:content|text)":"[^"]')    # in an event that has some of the answer's text
USAGE = b'"usage":{'


class Server:
    """Runs a server while the context lasts; `command` lacks the address."""

    def __init__(self, command):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = free.getsockname()
        self.command = [str(word) for word in [*command, "--host", self.address[0], "--port", self.address[1]]]

    def __enter__(self):
        self.errors = tempfile.TemporaryFile(mode="w+")    # a pipe that nobody reads would stop the server
        self.process = subprocess.Popen(self.command, stdout=self.errors, stderr=self.errors)
        while not self.is_ready():
            if self.process.poll() is not None:
                self.errors.seek(0)
                raise RuntimeError(f"the server ended: {self.errors.read()[-2000:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        self.errors.close()

    def is_ready(self):
        try:
            return bool(self.get("/health"))
        except OSError:
            return False

    def get(self, path):
        with urllib.request.urlopen("http://{}:{}{}".format(*self.address, path), timeout=60) as response:
            return response.read().decode()

    def peak_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status).group(1))


class Answer:
    """A client's view of its answer; times are in seconds. A piece is what an event brings: one token or more."""

    def __init__(self):
        self.statuses = []                  # of each try
        self.begin = self.first = self.last = None
        self.gaps = []                      # between the arrivals of pieces
        self.usage = None                   # the last one: at the end, or in each piece for a client that leaves
        self.end = "broken"                 # or "complete", "left", "refused"


class Stream(asyncio.BufferedProtocol):
    """One connection: sends a request and reads the answer's events into an Answer, then resolves `done`."""

    buffer = memoryview(bytearray(1 << 16))    # all connections use it by turns

    def __init__(self, request, answer, leaves_after, pause):
        self.request, self.answer, self.leaves_after, self.pause = request, answer, leaves_after, pause
        self.done = asyncio.get_running_loop().create_future()
        self.rest, self.in_body, self.transport = b"", False, None

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.request)

    def get_buffer(self, _):
        return self.buffer

    def buffer_updated(self, num_bytes):
        now = time.monotonic()
        data = self.rest + self.buffer[:num_bytes]
        if not self.in_body:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self.rest = head
                return
            self.in_body = True
            self.answer.statuses.append(int(head.split(None, 2)[1]))
            if self.answer.statuses[-1] != 200:
                self.close("refused")
                return
        whole = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
        self.rest = data[whole:]
        if whole:
            self.read_events(data[:whole], now)

    def read_events(self, data, now):
        answer, count = self.answer, len(TOKEN.findall(data))
        for _ in range(count):
            if answer.first is None:
                answer.first = now
            else:
                answer.gaps.append(now - answer.last)
            answer.last = now
        if (at := data.rfind(USAGE)) >= 0:
            answer.usage = json.JSONDecoder().raw_decode(data[at + len(USAGE) - 1:].decode())[0]
        if b"[DONE]" in data:
            self.close("complete")
        elif self.leaves_after is not None and answer.usage and answer.usage["completion_tokens"] >= self.leaves_after:
            self.close("left")
        elif self.pause and count:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(self.pause, self.resume)

    def resume(self):
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self, end):
        self.answer.end = end
        self.transport.close()

    def connection_lost(self, _):
        if not self.done.done():
            self.done.set_result(None)


def request_bytes(path, body):
    text = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n" \
        .encode() + text


async def ask(address, path, body, leaves_after=None, pause=0):
    """Returns the Answer to a request that streams, tried again after status 429. The client leaves after `leaves_after`
    tokens, and waits `pause` seconds after each arrival."""
    options = {"include_usage": True} if leaves_after is None else {"include_usage": True, "continuous_usage_stats": True}
    request = request_bytes(path, {**body, "stream": True, "stream_options": options})
    answer = Answer()
    answer.begin = time.monotonic()
    while True:
        _, stream = await asyncio.get_running_loop().create_connection(
            lambda: Stream(request, answer, leaves_after, pause), *address)
        await stream.done
        if answer.end != "refused" or answer.statuses[-1] != 429:
            return answer
        answer.end = "broken"
        await asyncio.sleep(random.uniform(0.5, 1.5))


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None
