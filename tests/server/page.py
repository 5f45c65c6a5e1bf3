#!/usr/bin/env python3
"""Tests the page of `penstock serve` in a headless Chromium, against a real server. Exits with 77 without a Chromium.

Usage: page.py --penstock BINARY                    runs the tests
       page.py --penstock BINARY --pictures FOLDER  writes docs/'s pictures, page-light.png and page-dark.png, in five
                                               minutes (docs/ holds them with 128 colours)
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import browser

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEMO_MODEL = ROOT / "models" / "penstock-demo"
# About half of the demo's experts stay on disk.
FLAGS = ("--memory", "26MiB", "--context-length", "512", "--batch-size", "4", "--drain", "1")
MAX_PAGE_BYTES = 60 * 1024
QUESTION = "Tell me a story about a fox."


class Server:
    """A server with the demo model."""

    def __init__(self, binary, *flags):
        command = [binary, "serve", "--model", str(DEMO_MODEL), "--port", "0", *FLAGS, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            if "serving" in line:
                break
        found = re.search(r"serving .* at (http://[\d.:]+)/v1", self.lines[-1] if self.lines else "")
        if not found:
            raise AssertionError(f"no server: {self.lines}")
        self.url = found.group(1)
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(browser.PATIENCE_S)

    def call(self, path, body=None):
        """(status, headers, body) of a response."""
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=600) as response:
                return response.status, response.headers, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    def chat(self, text, **fields):
        return json.loads(self.call("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})[2])


class Load:
    """Clients that ask for stories until the end of a `with`."""

    def __init__(self, server, clients):
        self.ends = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(server, number)) for number in range(clients)]

    def ask(self, server, number):
        subjects = ("a fox", "the sea", "a red boat", "two friends", "a hungry bear")
        count = 0
        while not self.ends.is_set():
            count += 1
            subject = subjects[(number + count) % len(subjects)]
            server.chat(f"Tell me story {count} about {subject}." + " And then?" * (7 * count % 40),
                        max_tokens=60 + 37 * count % 200, temperature=1)

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.ends.set()
        for thread in self.threads:
            thread.join()


def expect(value, what):
    if not value:
        raise AssertionError(what)


def opened(chromium, server, width=1400, height=1000, scheme="light"):
    page = chromium.page()
    page.size(width, height)
    page.media(prefers_color_scheme=scheme)
    page.open(server.url + "/")
    page.wait("document.getElementById('state').dataset.is")
    return page


def fill(page, field, text):
    page.run(f"(node => {{ node.value = {json.dumps(text)}; node.dispatchEvent(new Event('input')); "
             f"node.dispatchEvent(new Event('change')); }})(document.getElementById('{field}'))")


def send(page, text):
    page.run("document.getElementById('text').focus()")
    page.type(text)
    page.wait(f"document.getElementById('text').value === {json.dumps(text)}")  # the browser inserts it in its own time
    page.key("Enter", "\r")


def finished(page, answers):
    page.wait(f"!answering && document.querySelectorAll('.assistant').length === {answers}", f"answer {answers}")
    fault = page.run("messages.at(-1).fault || ''")
    expect(not fault, fault)


def test_response(_, server):
    status, headers, body = server.call("/")
    expect(status == 200 and headers["Content-Type"] == "text/html; charset=utf-8", "GET / is no page")
    expect(len(body.encode()) < MAX_PAGE_BYTES, f"the page has {len(body.encode())} bytes")
    policy = headers["Content-Security-Policy"]
    nonce = re.search(r"script-src 'nonce-([0-9a-f]{32})'", policy)
    expect("default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe" not in policy, policy)
    expect(nonce and body.count(f'nonce="{nonce.group(1)}"') == 2, "the nonce is not that of the page")
    expect(server.call("/")[1]["Content-Security-Policy"] != policy, "the nonce stays the same")
    expect(headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer", str(headers))
    expect(not re.search(r"""(?:src|href)=["'](?!#|data:)|@import|url\(""", body), "the page loads a resource")
    expect(not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", body), "text becomes HTML")


def test_chat(chromium, server):
    page = opened(chromium, server)
    page.wait("state === 'ok'")
    fill(page, "temperature", "0")
    fill(page, "max-tokens", "48")
    page.run("lengths = new Set(); setInterval(() => { const body = document.querySelector('.assistant .body'); "
             "if (body) lengths.add(body.textContent.length); }, 5); 0")
    wanted = server.chat(QUESTION, temperature=0, max_tokens=48)["choices"][0]["message"]["content"]
    send(page, QUESTION)
    finished(page, 1)
    expect(page.run("messages[1].content") == wanted, "the answer is not the API's")
    shown = page.run("document.querySelector('.assistant .body').innerText")
    expect(shown.split() == wanted.split(), f"shown {shown!r}, expected {wanted!r}")
    expect(page.run("lengths.size") >= 3, "the answer did not appear piece by piece")
    expect(page.run("document.getElementById('said').textContent") == "Answer: " + wanted, "its end is not announced")
    meta = page.run("document.querySelector('.assistant .meta:not(.fault)').textContent")
    expect(re.search(r"tokens/s · first token after [\d.]+ s · 48 tokens · \d+ prompt tokens", meta), meta)
    send(page, "And then?")
    finished(page, 2)
    meta = page.run("[...document.querySelectorAll('.assistant .meta')].at(-1).textContent")
    expect(re.search(r"\d+ prompt tokens, [1-9]\d* cached", meta), meta)
    second = page.run("messages[3].content")
    expect(page.run("(log => log.scrollHeight - log.scrollTop - log.clientHeight < 2)(document.getElementById('log'))"),
           "the log does not follow the answer")
    page.run("[...document.querySelectorAll('.tools button')].find(b => b.textContent === 'Retry').click()")
    finished(page, 2)
    expect(page.run("messages[3].content") == second, "another answer after Retry")
    page.run("[...document.querySelectorAll('.tools button')].find(b => b.textContent === 'Edit').click()")
    expect(page.run("document.getElementById('text').value") == "And then?", "Edit does not bring the message back")
    fill(page, "text", "")
    send(page, "Who was it?")
    finished(page, 2)
    expect(page.run("messages.map(m => m.role).join()") == "user,assistant,user,assistant", "Edit adds a message")
    expect(page.run("messages[2].content") == "Who was it?", "Edit keeps the old message")
    fill(page, "system", "You are a bear.")
    expect(page.run("requestBody().messages[0].role") == "system", "the system message is not sent")
    page.run("document.getElementById('new').click()")
    shown = page.run("messages.length + document.querySelectorAll('#log > li:not(#empty)').length")
    expect(shown == 0, "New chat keeps some")
    page.key("Enter", "\r", modifiers=8)
    expect(page.run("document.getElementById('text').value") == "\n", "Shift+Enter begins no line")
    check_quiet(page, server)


def test_stop(chromium, server):
    page = opened(chromium, server)
    page.wait("state === 'ok'")
    for number, stop in enumerate(("key", "button"), 1):
        send(page, QUESTION)
        page.wait("messages.length && messages.at(-1).content.length > 5")
        if stop == "key":
            page.key("Escape")
        else:
            page.run("document.getElementById('stop').click()")
        finished(page, number)
        meta = page.run("[...document.querySelectorAll('.assistant .meta')].at(-1).textContent")
        expect(meta.startswith("stopped"), meta)
        page.wait("last && last.running === 0", "the server goes on after a stop")
    check_quiet(page, server)


def test_text(chromium, server):
    """Texts of models become nodes, never HTML; reasoning and tool calls are shown."""
    page = opened(chromium, server)
    text = ("# Title\n<img src=x onerror='document.title=1'><b>no</b> **bold** `<code>`\n\n- one\n- two\n\n3. three\n"
            "```html\n<script>document.title = 1</script>\n- x\n```\n[link](javascript:alert(1))")
    page.run(f"box = document.createElement('div'); document.body.append(box); showText(box, {json.dumps(text)}); 0")
    shown = page.run("box.innerHTML")
    names = page.run("[...new Set([...box.querySelectorAll('*')].map(node => node.localName))].sort().join()")
    expect(names == "code,li,ol,p,pre,strong,ul", names)
    expect("<strong>bold</strong>" in shown and "<code>&lt;code&gt;</code>" in shown and '<ol start="3">' in shown, shown)
    expect("&lt;script&gt;document.title = 1&lt;/script&gt;\n- x" in shown, shown)
    page.run("box.remove(); add({role: 'user', content: 'u'}); "
             "a = {role: 'assistant', content: '', reasoning: ''}; "
             "addDelta(a, {reasoning_content: 'because'}); addDelta(a, {content: 'so'}); "
             "addDelta(a, {tool_calls: [{index: 0, id: 'c1', function: {name: 'look', arguments: '{\"a\"'}}]}); "
             "addDelta(a, {tool_calls: [{index: 0, function: {arguments: ':1}'}}]}); add(a); showTools(); 0")
    expect(page.run("document.querySelector('.think').open") is False, "reasoning is not collapsed")
    expect(page.run("document.querySelector('.call').textContent") == 'Tool call: look{"a":1}', "no tool call")
    expect(page.run("document.getElementById('text-label').textContent") == "Result of look", "no place for the result")
    events = r"data: {\"x\":\"ä\"}\r\n\r\n: ping\n\ndata: [DONE]\n\n"
    got = page.run(f'(async () => {{ const bytes = new TextEncoder().encode("{events}"), got = []; '
                   "const body = new ReadableStream({start(c) { for (const b of bytes) c.enqueue(new Uint8Array([b])); "
                   "c.close(); }}); await readEvents({body}, data => got.push(data)); return got; })()")
    expect(got == ['{"x":"ä"}', "[DONE]"], f"events {got}")
    check_quiet(page, server)


def test_live(chromium, server):
    page = opened(chromium, server)
    page.wait("last")
    before = page.run("[last.steps, last.generated_tokens, document.getElementById('stats').innerText]")
    with Load(server, 5):
        page.wait(f"last.steps > {before[0]} + 20 && last.generated_tokens > {before[1]} + 20")
        page.wait("points.filter(point => point.generated > 0).length > 4", "no rates")
        page.wait("[...document.querySelectorAll('#lanes [role=meter]')].some(m => Number(m.ariaValueNow) > 0)", "no lanes")
        page.wait("document.querySelectorAll('#h-parts ~ .scroll th[scope=row]').length > 4", "no parts")
        page.wait("document.querySelector('#charts svg').getAttribute('aria-label').match(/: [1-9]/)", "an empty chart")
        page.wait("document.getElementById('places').innerText.match(/in DRAM [1-9]/)", "no experts in memory")
        expect(page.run("document.getElementById('stats').innerText") != before[2], "numbers stand still")
    page.run("document.getElementById('map').focus()")
    page.key("ArrowRight")
    page.key("ArrowDown")
    cell = page.run("document.getElementById('cell').textContent")
    expect(cell.startswith("Layer 1, expert 1: "), cell)
    page.run("document.getElementById('by-layer').open = true")
    page.wait("document.querySelectorAll('#layers tr').length === last.experts.layers", "no table of the layers")
    page.wait("last.running === 0")
    page.run("Object.defineProperty(document, 'hidden', {value: true, configurable: true}); "
             "document.dispatchEvent(new Event('visibilitychange')); 0")
    time.sleep(1)
    num_requests = len(page.requests)
    time.sleep(1.5)
    page.run("0")
    expect(len(page.requests) == num_requests, "a hidden page asks on")
    page.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); 0")
    time.sleep(1)
    page.run("0")
    expect(len(page.requests) > num_requests, "a page that is shown again asks no more")
    check_quiet(page, server)


def test_states(chromium, server):
    with Server(server.process.args[0], "--api-key", "secret") as locked:
        expect(locked.call("/")[0] == 200 and locked.call("/live")[0] == 401, "the page is locked, or nothing is")
        page = opened(chromium, locked)
        page.wait("state === 'key' && !document.getElementById('banner').hidden", "the page does not ask for the key")
        page.run("document.getElementById('give-key').click()")
        expect(page.run("document.activeElement.id") == "key", "the button does not lead to the key")
        page.type("secret")
        page.run("document.activeElement.blur()")
        page.wait("state === 'ok' && last", "the key does not unlock")
        send(page, QUESTION)
        page.wait("messages.length === 2 && messages[1].content.length > 5", "no answer with the key")
        page.key("Escape")
        expect(page.run("sessionStorage.getItem('penstock-key')") == "secret", "the key is not kept")
        expect("secret" not in page.run("JSON.stringify(localStorage)"), "the key stays after the tab")
    page.wait("state === 'gone' || state === 'draining'", "the page does not see the server's end")
    page.run("setState('loading')")
    expect("being loaded" in page.run("document.getElementById('banner').innerText"), "loading is not shown")
    expect(page.run("document.getElementById('send').disabled"), "a message could be sent while the model is loaded")


CONTRASTS = r"""(() => {
  const rgb = text => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = node => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  const check = (node, colour, text) => {
    const [a, b] = [light(rgb(colour)), light(ground(node))].sort((x, y) => y - x), ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${text.slice(0, 40)}`);
  };
  for (const node of document.body.querySelectorAll("*")) {
    if (!node.checkVisibility() || node.closest("svg") || node.matches("option")) continue;
    for (const child of node.childNodes) {
      if (child.nodeType === 3 && child.data.trim()) check(node, getComputedStyle(node).color, child.data.trim());
    }
    if (node.placeholder) check(node, getComputedStyle(node, "::placeholder").color, node.placeholder);
  }
  return low;
})()"""
NAMELESS = r"""[...document.querySelectorAll(
  "button, input, textarea, select, a, summary, [tabindex], [role=meter], [role=img], section, nav")].filter(node => {
    const labelled = (node.getAttribute("aria-labelledby") || "").split(" ").map(id => document.getElementById(id));
    const names = [node.getAttribute("aria-label"), ...labelled.map(label => label && label.textContent),
      ...[...node.labels || []].map(label => label.textContent),
      node.matches("button, a, summary, pre") ? node.textContent : ""];
    return !names.some(name => name && name.trim());
  }).map(node => node.outerHTML.slice(0, 80))"""
TABBABLE = r"""[...document.querySelectorAll("button, input, textarea, a, summary, [tabindex]")]
  .filter(node => node.checkVisibility() && !node.disabled).length"""


def test_access(chromium, server):
    for scheme in ("light", "dark"):
        for width, height in ((360, 740), (1400, 1000)):
            place = f"{scheme}, {width} pixels"
            page = opened(chromium, server, width, height, scheme)
            page.wait("last")
            fill(page, "max-tokens", "5")
            send(page, QUESTION)
            finished(page, 1)
            page.run("for (const node of document.querySelectorAll('details')) node.open = true; 0")
            for view in ("chat", "live"):
                if width < 900:
                    page.run(f"document.getElementById('see-{view}').click()")
                time.sleep(0.6)
                expect(page.run("document.documentElement.scrollWidth <= innerWidth"), f"{place}: {view} is too wide")
                fits = page.run("document.documentElement.scrollHeight <= innerHeight && "
                                "document.getElementById('form').getBoundingClientRect().bottom <= innerHeight")
                expect(fits, f"{place}: {view} is too high")
                low = page.run(CONTRASTS)
                expect(not low, f"{place}: contrast {low}")
            nameless = page.run(NAMELESS)
            expect(not nameless, f"{place}: without a name: {nameless}")
            twice = page.run("(ids => ids.filter((id, i) => ids.indexOf(id) !== i))([...document.querySelectorAll('[id]')]"
                             ".map(node => node.id))")
            expect(not twice, f"{place}: ids twice: {twice}")
            check_focus(page, place)
            background = page.run("getComputedStyle(document.body).backgroundColor")
            expect((sum(map(int, re.findall(r"\d+", background))) < 300) == (scheme == "dark"), f"{place}: {background}")
            check_quiet(page, server)
    page.run("document.getElementById('theme').click()")
    expect(page.run("document.documentElement.dataset.shade") == "light", "the button does not change the theme")
    page.run("localStorage.clear()")


def check_focus(page, place):
    """Tab reaches every control in the order of the document, and shows where it is."""
    page.run("document.activeElement.blur(); scrollTo(0, 0); document.querySelector('.skip').focus(); seen = []; 0")
    for _ in range(page.run(TABBABLE)):
        page.run("seen.push(document.activeElement); 0")
        shown = page.run("[document.activeElement, document.activeElement.parentElement].some(node => "
                         "getComputedStyle(node).outlineStyle !== 'none' || node.classList.contains('skip'))")
        expect(shown, f"{place}: focus is not seen at " + page.run("document.activeElement.outerHTML.slice(0, 80)"))
        page.key("Tab")
    missed = page.run("[...document.querySelectorAll('button, input, textarea, summary, canvas')].filter(node => "
                      "node.checkVisibility() && !node.disabled && !seen.includes(node)).map(n => n.outerHTML.slice(0, 80))")
    expect(not missed, f"{place}: Tab does not reach {missed}")
    in_order = page.run("seen.every((node, i) => !i || seen[i - 1].compareDocumentPosition(node) & 4)")
    expect(in_order, f"{place}: Tab leaves the order of the document")


def check_quiet(page, server):
    page.run("0")
    expect(not page.errors, f"console: {page.errors}")
    hosts = {url for url in page.requests if not url.startswith((server.url + "/", "data:"))}
    expect(not hosts, f"requests to other hosts: {hosts}")


TESTS = (test_response, test_chat, test_stop, test_text, test_live, test_states, test_access)


def write_pictures(chromium, server, folder):
    with Load(server, 5):
        pages = [(scheme, opened(chromium, server, 1400, 1270, scheme)) for scheme in ("light", "dark")]
        for scheme, page in pages:
            page.call("Page.bringToFront")
            page.wait("state === 'ok'")
            send(page, "Hi! Tell me a story about a fox.")
            finished(page, 1)
            fill(page, "max-tokens", "200")
            time.sleep(130)
            send(page, "And what did the fox say then?")
            page.wait("messages.length > 3 && messages[3].content.length > 60")
            page.picture(pathlib.Path(folder) / f"page-{scheme}.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--pictures", metavar="FOLDER")
    parser.add_argument("--only", default="", help="tests whose names match")
    args = parser.parse_args()
    if not browser.program():
        print("page: skipped: chromium is not installed (scripts/install-deps.sh --all)")
        return 77
    failures = 0
    with browser.Browser() as chromium, Server(args.penstock) as server:
        if args.pictures:
            write_pictures(chromium, server, args.pictures)
            return 0
        for test in TESTS:
            if not re.search(args.only, test.__name__):
                continue
            start = time.monotonic()
            try:
                test(chromium, server)
                result = "passed"
            except (AssertionError, RuntimeError, OSError) as error:
                failures += 1
                result = f"FAILED: {error}"
            print(f"page: {test.__name__}: {result}, {time.monotonic() - start:.1f} s", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
