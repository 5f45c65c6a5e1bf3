"""Starts `penstock serve` in tests, asks it with the standard library's HTTP client, and ends it."""
import contextlib
import http.client
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import program  # noqa: E402  (a file of tests/cli)

MODEL = program.DEMO_MODEL
NAME = "penstock-demo"
START_S = 120  # loading takes far less, unless the machine is very busy


# The demo model's own template has no tools. Each part of a chat is a line here, so that a test can find it.
TOOLS_TEMPLATE = (
    "{{ bos_token }}{% if tools %}{% for tool in tools %}{{ '\\nTOOL ' + tool.function.name + ' ' + (tool | tojson) }}"
    "{% endfor %}{% endif %}{% for message in messages %}{{ '\\n' + message.role | upper + ' ' }}"
    "{% if message.reasoning_content %}{{ 'THINKING ' + message.reasoning_content + ' ' }}{% endif %}"
    "{{ message.content or '' }}{% for call in message.tool_calls or [] %}"
    "{{ '\\nCALL ' + call.function.name + ' ' + (call.function.arguments | tojson) }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\nASSISTANT ' }}{% endif %}")


def model_with_tools(folder):
    """Returns a folder with the demo model and TOOLS_TEMPLATE."""
    model = pathlib.Path(folder) / NAME
    shutil.copytree(MODEL, model)
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["chat_template"] = TOOLS_TEMPLATE
    path.write_text(json.dumps(config), encoding="utf-8")
    return model


class Answer:
    """An HTTP response."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, {name.lower(): value for name, value in headers}, body

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:300]!r}"


class Server:
    """A server on a free port of this machine, which runs until stop() or kill()."""

    def __init__(self, binary, *flags, model=MODEL, environment=None):
        self.log = tempfile.NamedTemporaryFile(prefix="penstock-serve-", suffix=".log")
        command = [str(binary), "serve", "--model", str(model), "--port", "0", *map(str, flags)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.log, env=environment)
        self.port = self._wait_for_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def _wait_for_port(self):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r"serving .* at http://[^ ]*:(\d+)/v1", self.messages())
            if found:
                return int(found.group(1))
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"the server did not start: {self.messages()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.log.close()

    def messages(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8", errors="replace")

    def ask(self, method, path, body=None, headers=None, timeout=program.HANG_S):
        """Sends one request on a connection of its own. A body that is no text or bytes is sent as JSON."""
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.getheaders(), response.read())

    def post(self, path, body, **more):
        return self.ask("POST", path, body, **more)

    def metric(self, name, **more):
        """Returns the sum of a metric's values over its labels."""
        text = self.ask("GET", "/metrics", **more).body.decode()
        values = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.M)
        assert values, f"no metric {name}"
        return sum(map(float, values))

    def is_alive(self):
        return self.process.poll() is None

    def wait_until(self, what, condition, seconds=30):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s; {self.messages()[-500:]}"
            time.sleep(0.02)

    def stop(self, timeout=program.HANG_S):
        """Asks the server to stop; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=timeout)

    def kill(self):
        if self.is_alive():
            self.process.kill()
        self.process.wait()


class Report:
    """Runs checks one after the other; one that fails does not hide the others."""

    def __init__(self):
        self.num_checks, self.faults = 0, []

    @contextlib.contextmanager
    def check(self, what):
        self.num_checks += 1
        start = time.monotonic()
        try:
            yield
        except Exception as error:  # any fault of the server or of the client is a finding
            self.faults.append(what)
            print(f"FAILED: {what}: {type(error).__name__}: {str(error)[:1500]}", flush=True)
        else:
            print(f"passed: {what} ({time.monotonic() - start:.2f} s)", flush=True)

    def end(self):
        print(f"{self.num_checks - len(self.faults)} of {self.num_checks} checks passed")
        for what in self.faults:
            print(f"failed: {what}")
        sys.exit(1 if self.faults else 0)
