"""Drives a headless Chromium through its DevTools protocol, with Python's standard library alone."""
import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request

PATIENCE_S = 60  # seconds that no machine needs


def program():
    """The path of Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class WebSocket:
    """A client's side of a WebSocket (RFC 6455) for text messages."""

    def __init__(self, url):
        host, _, path = url.removeprefix("ws://").partition("/")
        name, port = host.split(":")
        self.socket = socket.create_connection((name, int(port)), PATIENCE_S)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.stream = self.socket.makefile("rb")
        if b" 101 " not in self.stream.readline():
            raise ConnectionError(f"{url} is no WebSocket")
        while self.stream.readline().strip():
            pass

    def send(self, text):
        data = text.encode()
        size = len(data)
        head = (struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else
                struct.pack("!BBH", 0x81, 0x80 | 126, size) if size < 1 << 16 else
                struct.pack("!BBQ", 0x81, 0x80 | 127, size))
        self.socket.sendall(head + bytes(4) + data)  # a mask of zeros changes nothing

    def receive(self):
        """Returns the next message; raises TimeoutError or ConnectionError."""
        message = b""
        while True:
            first, size = self.stream.read(2)
            if size >= 126:
                size = int.from_bytes(self.stream.read(2 if size == 126 else 8), "big")
            data = self.stream.read(size)
            if first & 15 == 8:
                raise ConnectionError("the browser closed the connection")
            if first & 15 <= 1:
                message += data
                if first & 128:
                    return message.decode()


class Page:
    """A tab. Collects the console's errors and the addresses of all requests."""

    def __init__(self, url):
        self.socket = WebSocket(url)
        self.number = 0
        self.errors = []
        self.requests = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message.get("method"), message.get("params", {}))

    def note(self, event, params):
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def run(self, script):
        """Returns the value of a JavaScript expression, awaited."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script[:200]}: {result['exceptionDetails']['exception'].get('description')}")
        return result["result"].get("value")

    def wait(self, condition, what=None, seconds=PATIENCE_S):
        """Waits until a JavaScript expression is true, and returns its value."""
        end = time.monotonic() + seconds
        while True:
            value = self.run(condition)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {what or condition}")
            time.sleep(0.05)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, **features):
        """Emulates media features: prefers_color_scheme="dark"."""
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()])

    def key(self, name, text="", modifiers=0):
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowDown": 40}
        common = {"key": name, "code": name, "windowsVirtualKeyCode": codes.get(name, 0), "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def picture(self, path, whole=False):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))


class Browser:
    """A headless Chromium with an empty profile."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        flags = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={self.folder.name}", "--disable-gpu",
                 "--no-first-run", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
                 "--disable-dev-shm-usage", "--disable-sync", "--mute-audio"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # it refuses to run as root otherwise
        self.process = subprocess.Popen([program(), *flags, "about:blank"], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        port_file = os.path.join(self.folder.name, "DevToolsActivePort")
        end = time.monotonic() + PATIENCE_S
        while not os.path.exists(port_file) or not open(port_file, encoding="ascii").read().count("\n"):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("Chromium did not start")
            time.sleep(0.05)
        with open(port_file, encoding="ascii") as file:
            self.port = int(file.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.folder.cleanup()

    def page(self):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return Page(json.load(response)["webSocketDebuggerUrl"])
