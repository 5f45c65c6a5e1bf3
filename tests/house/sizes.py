#!/usr/bin/env python3
"""Checks that functions, files and folders of src/ stay small enough to be read.

Usage: sizes.py ROOT                checks the tree at ROOT
       sizes.py ROOT --self-test    checks that each limit is noticed

Functions are found by counting braces, in a second; clang-tidy measures the same exactly in `make nightly`.
"""
import collections
import re
import sys

import house
import layering

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 600
MAX_P90_FILE_LINES = 300  # nine of ten files are shorter
MAX_FILES_OF_FOLDER = 30
CODE = (".h", ".cc", ".cu", ".cuh")

# Braces after these hold declarations, not statements.
CONTAINER = re.compile(r"^\s*(?:template\s*<.*>\s*)?(?:inline\s+)?(?:namespace|class|struct|union|enum|extern)\b", re.S)


def functions(text):
    """(line of the opening brace, line of the closing one, name) of each function in C++ code, as far as braces tell."""
    code = layering.strip(text, strings=True)
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: "\n" * match.group().count("\n"), code, flags=re.M)
    nesting = []  # for each open brace: its line and the function's name, or None where it holds declarations
    head = 0  # where the text before the next brace begins
    line = 1
    for match in re.finditer(r"[{};\n]", code):
        mark = match.group()
        if mark == "\n":
            line += 1
            continue
        before = code[head:match.start()]
        head = match.end()
        if mark == "{":
            inside = bool(nesting) and nesting[-1][1] is not None
            name = re.search(r"([\w~:<>]+)\s*\(", before)
            is_function = not inside and name and not CONTAINER.match(before.strip())
            nesting.append((line, name.group(1) if is_function else "" if inside else None))
        elif mark == "}" and nesting:
            opened, name = nesting.pop()
            if name:
                yield opened, line, name


def problems(root):
    lengths = {}
    folders = collections.Counter()
    for path in house.files(root / "src", *CODE):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(root)
        lengths[name] = text.count("\n")
        folders[name.parent] += 1
        if lengths[name] > MAX_FILE_LINES:
            yield f"{name}:1: has {lengths[name]} lines, at most {MAX_FILE_LINES} are allowed"
        for first, last, function in functions(text):
            if last - first + 1 > MAX_FUNCTION_LINES:
                yield f"{name}:{first}: {function} has {last - first + 1} lines, at most {MAX_FUNCTION_LINES} are allowed"
    for folder, count in sorted(folders.items()):
        if count > MAX_FILES_OF_FOLDER:
            yield f"{folder}: has {count} source files, at most {MAX_FILES_OF_FOLDER} are allowed"
    p90 = sorted(lengths.values())[len(lengths) * 9 // 10] if lengths else 0
    if p90 >= MAX_P90_FILE_LINES:
        yield f"src: one file in ten has {p90} lines or more; nine in ten must have fewer than {MAX_P90_FILE_LINES}"


def self_test():
    body = "  f();\n" * 69
    few = "int x;\n"
    planted = [
        ({"src/a.cc": "namespace x {\nint F(int a) {\n" + body + "}\n}\n"}, "F has 71 lines"),
        ({"src/a.cc": "struct S : T<int> {\n  S() : a_{1}, b_(2) {\n" + body + "  }\n  int a_;\n};\n"}, "has 71 lines"),
        ({"src/a.cu": "__global__ void K(int a)\n{\n" + body + "}\n"}, "K has 71 lines"),
        ({"src/a.h": "template <typename T>\nvoid F() {\n  if (x) {\n    g();\n  }\n" + "  // x\n" * 66 + "}\n"},
         "F has 71"),
        ({"src/long.cc": few * 601, **{f"src/{i}.cc": few for i in range(10)}}, "has 601 lines"),
        ({f"src/{i}.cc": few for i in range(31)}, "has 31 source files"),
        ({f"src/{i}.cc": few * 300 for i in range(3)}, "one file in ten has 300 lines"),
    ]
    harmless = {
        "src/a.cc": "namespace x {\n" + few * 100 + "}\nclass C {\n" + few * 80 + "};\n",
        "src/b.cc": "void F() {\n  g('{', \"{\");  // {\n" + body[:-7 * 2] + "}\n",
        "src/c.cc": "#define F(x) { \\\n x\nconst int table[] = {\n" + "  1,\n" * 100 + "};\n",
        "tests/a.cc": "void F() {\n" + few * 200 + "}\n",
    }
    return house.self_test(problems, planted, harmless)


if __name__ == "__main__":
    sys.exit(house.main(__doc__, problems, self_test))
