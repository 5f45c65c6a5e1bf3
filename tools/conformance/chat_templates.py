#!/usr/bin/env python3
"""Compares Penstock's chat templates with Python's jinja2, set up as transformers' apply_chat_template does.

usage: chat_templates.py --data DIR --tool TEMPLATE_TOOL [--conversations N] [--programs N] [--changed N] [--seed N]
                         [--only TEXT]

For each *.jinja and each chat template in a *tokenizer_config.json under DIR, renders fixed conversations and N
random ones. Then renders N random small programs, N of the templates with random changes (most of which must fail),
DIR's file of small Jinja cases (jinja_units.json), and the golden texts of OpenAI's harmony renderer
(harmony/*.txt) with the template of gpt-oss in tests/data. --tool is the test program tests/chat/template_tool.cc.
--only selects the templates whose path contains TEXT. Needs transformers (5.x) and jinja2. The exit status is 1 if a
text differs, or if one side renders what the other refuses; LENIENT lists the exceptions.
"""

import argparse
import datetime
import json
import pathlib
import random
import re
import subprocess
import sys

import conversations
import harmony
import jinja_programs

del sys.path[0]  # this folder, whose tokenizers.py would hide the package of that name
import jinja2
import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template

GPT_OSS = pathlib.Path(__file__).resolve().parents[2] / "tests/data/chat_templates/openai-gpt-oss-120b.jinja"
NOW = "2026-11-05T09:07:03"  # the interpreter's current_time, which the oracle's strftime_now formats, too
# Python prints these with a memory address or in its own form, so no two runs agree.
NOT_COMPARABLE = re.compile(r" at 0x[0-9a-f]+|(<|&lt;)(class '|macro '|cycler|loopcontext|namespace|jinja2\.|built-in "
                            r"function)|TemplateReference|Markup\(",
                            re.I)
# Our interpreter refuses to print what Python prints with an address. It also refuses impossible slices of constants,
# which jinja2 folds to undefined values.
OUR_REFUSALS = re.compile(r"generator cannot be printed|a (int|float|bool|None|dict) cannot be sliced|a slice needs "
                          r"integers")
# Python fails here, but chat templates must not rely on it; each pattern matches the text of the exception.
LENIENT = {
    "jinja2 looks up filters when it compiles, even in loops and macros inside conditions": re.compile(
        r"No (filter|test) named"),
    "a generator has no length, no slices and no JSON form; ours is a list there": re.compile(
        r"object of type '(generator|list_reverseiterator|reversed)' has no len|'generator' object is not subscriptable"
        r"|Object of type (generator|list_reverseiterator|reversed) is not JSON serializable"),
    "str.replace(count=) needs Python 3.13": re.compile(r"replace\(\) takes no keyword arguments"),
}


def strftime_now(pattern):
    return datetime.datetime.fromisoformat(NOW).strftime(pattern)


def render(source, variables):
    """Returns (text, None), or (None, the oracle's error)."""
    try:
        template = _compile_jinja_template(source)
        template.globals["strftime_now"] = strftime_now
        return template.render(**variables), None
    except Exception as error:  # noqa: BLE001 - any failure of the oracle is a failure of the template
        return None, f"{type(error).__name__}: {error}"


class Report:
    def __init__(self, tool, shown):
        self.tool = tool
        self.shown = shown
        self.rows = []
        self.failed = False

    def ours(self, cases):
        requests = [{"template": source, "trusted": {"current_time": NOW, **trusted}, "untrusted": untrusted}
                    for source, trusted, untrusted in cases]
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        run = subprocess.run([self.tool], input=lines.encode(), stdout=subprocess.PIPE, check=True)
        results = [json.loads(line) for line in run.stdout.decode().split("\n")[:-1]]
        if len(results) != len(cases):
            raise RuntimeError(f"{len(results)} results of {len(cases)} cases")
        return results

    def compare(self, name, cases):
        """Each case is (template source, trusted variables, untrusted variables)."""
        passed = rendered = skipped = 0
        wrong = []
        for (source, trusted, untrusted), got in zip(cases, self.ours(cases), strict=True):
            want, error = render(source, {**untrusted, **trusted, "current_time": NOW})
            if want is not None and (NOT_COMPARABLE.search(want) or OUR_REFUSALS.search(got.get("error", ""))):
                skipped += 1
                continue
            lenient = error is not None and any(pattern.search(error) for pattern in LENIENT.values())
            if got.get("text") == want or lenient:
                passed += 1
                rendered += want is not None
            else:
                wrong.append((source, trusted, untrusted, got, want, error))
        self.rows.append((name, len(cases) - skipped, passed, rendered))
        self.failed |= bool(wrong) or rendered == 0
        for source, trusted, untrusted, got, want, error in wrong[:self.shown]:
            print(f"{name}:\n  template {source!r:.1500}\n  trusted {trusted!r:.300}\n  untrusted {untrusted!r:.3000}"
                  if self.shown else "")
            self.show_difference(got, want, error)
        sys.stdout.flush()

    def compare_goldens(self, name, source, goldens):
        """Each golden is (its name, trusted variables, untrusted variables, text)."""
        goldens = list(goldens)
        passed = 0
        results = self.ours([(source, trusted, untrusted) for _, trusted, untrusted, _ in goldens])
        for (case, _, _, text), got in zip(goldens, results, strict=True):
            equal = "text" in got and harmony.agrees(text, got["text"])
            print(f"{name} {case}: {'equal' if equal else 'DIFFERS'}")
            if not equal:
                self.show_difference(got, text, None)
            passed += equal
        self.rows.append((name, len(goldens), passed, passed))
        self.failed |= passed < len(goldens)

    @staticmethod
    def show_difference(got, want, error):
        text = got.get("text")
        if text is None or want is None:
            print(f"  got  {text if text is not None else got['error']!r:.600}\n  want "
                  f"{want if want is not None else error!r:.600}")
            return
        at = next((i for i, (a, b) in enumerate(zip(text, want, strict=False)) if a != b), min(len(text), len(want)))
        print(f"  at {at}: got {text[max(at - 60, 0):at + 60]!r}\n  want {want[max(at - 60, 0):at + 60]!r}")

    def table(self):
        width = max(len(row[0]) for row in self.rows)
        print(f"\n{'template':{width}} | cases | passed | of these rendered")
        print(f"{'-' * width} | ----- | ------ | -----------------")
        for name, cases, passed, rendered in self.rows:
            print(f"{name:{width}} | {cases:5} | {passed:6} | {rendered:17}")
        total = [sum(row[i] for row in self.rows) for i in (1, 2, 3)]
        print(f"{'all':{width}} | {total[0]:5} | {total[1]:6} | {total[2]:17}")


def templates(data):
    """Yields (name, source) of each template under the folder."""
    for path in sorted(data.rglob("*.jinja")):
        yield str(path.relative_to(data)), path.read_bytes().decode("utf-8")
    for path in sorted(data.rglob("*tokenizer_config.json")):
        found = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        named = found if isinstance(found, list) else [{"name": "", "template": found}] if found else []
        for entry in named:
            yield f"{path.relative_to(data)} {entry['name']}".strip(), entry["template"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--conversations", type=int, default=200, help="random conversations for each template")
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--changed", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--only", default="")
    parser.add_argument("--shown", type=int, default=3, help="differences to show for each row")
    arguments = parser.parse_args()
    print(f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}, seed {arguments.seed}")
    report = Report(arguments.tool, arguments.shown)
    for name, source in templates(arguments.data):
        if arguments.only not in name:
            continue
        rng = random.Random(f"{arguments.seed} {name}")
        cases = [(source, *case) for case in conversations.fixed()]
        cases += [(source, *conversations.generated(rng)) for _ in range(arguments.conversations)]
        report.compare(name, cases)
    if arguments.only in "generated programs" and arguments.programs > 0:
        programs = jinja_programs.Programs(random.Random(arguments.seed))
        report.compare("generated programs", [(programs.program(), {}, jinja_programs.CONTEXT) for _ in range(
            arguments.programs)])
    if arguments.only in "changed templates" and arguments.changed > 0:
        rng = random.Random(f"{arguments.seed} changed")
        sources = [source for _, source in templates(arguments.data) if len(source) < 12000]
        fixed = list(conversations.fixed())
        report.compare("changed templates", [(jinja_programs.changed(rng, rng.choice(sources)), *rng.choice(fixed))
                                             for _ in range(arguments.changed if sources else 0)])
    for path in sorted(arguments.data.rglob("jinja_units.json")) if arguments.only in "jinja_units.json" else []:
        units = json.loads(path.read_text(encoding="utf-8"))["cases"]
        report.compare(str(path.relative_to(arguments.data)), [(case["template"], {}, case["context"]) for case in units
                                                               if not case.get("needs_host_function")])
    for folder in sorted(arguments.data.rglob("harmony")) if arguments.only in "harmony goldens" else []:
        for name, reason in sorted(harmony.EXCLUDED.items()):
            print(f"harmony goldens {name}: not compared, {reason}")
        report.compare_goldens("harmony goldens", GPT_OSS.read_text(encoding="utf-8"), harmony.cases(folder))
    report.table()
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
