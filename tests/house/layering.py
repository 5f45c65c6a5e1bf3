#!/usr/bin/env python3
"""Checks the rules of the house that no compiler checks, and proves that it finds violations of them.

Usage: layering.py ROOT             checks the tree at ROOT
       layering.py ROOT --self-test checks that each rule fires on a copy of ROOT with that fault planted
"""

import fnmatch
import functools
import pathlib
import re
import shutil
import sys
import tempfile

MAX_LINES = 600
SOURCE_FOLDERS = ("src", "include", "tests", "bench", "fuzz")
CODE = {".h", ".cc", ".cu", ".cuh"}

# Calls that src/ must not make: a pattern, the floors that may make them all the same, and the reason.
BANNED = [
    (r"\b(?:std::)?(?:printf|puts|putchar)\s*\(", ("cli",), "stdout belongs to results; return a Status or use spdlog"),
    (r"\bstd::(?:cout|cerr|clog)\b", ("cli",), "stdout belongs to results; return a Status or use spdlog"),
    (r"(?<![\w.>_])(?:std::|::)?(?:exit|quick_exit)\s*\(", (), "only main() ends the process, by returning"),
    (r"(?<![\w.>])::?_exit\s*\(|(?<![\w.>:])_exit\s*\(", ("cli",), "only a signal handler of the commands may"),
    (r"(?<![\w.>])(?:std::)?s?rand\s*\(", (), "random numbers come from a request's own seed"),
    (r"\bstd::(?:basic_)?w?regex\b", (), "std::regex recurses without limit"),
    (r"(?<![\w.>])(?:std::|::)?secure_getenv\s*\(", (), "use std::getenv with a name that ENVIRONMENT lists"),
]

# The environment variables that src/ may read. The manual must document each of them.
ENVIRONMENT = {"HOME", "NO_COLOR", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PENSTOCK_API_KEY",
               "PENSTOCK_FORCE_ISA", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "TERM", "XDG_CACHE_HOME"}


def floors(root):
    """Returns the floors of the root CMakeLists.txt, lowest first."""
    text = (root / "CMakeLists.txt").read_text()
    return re.findall(r"add_subdirectory\(src/penstock/(\w+)\)", text)


# Comments, raw strings, strings and characters, in this order.
TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"([^\s()\\]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)


def strip(text, strings):
    """Returns `text` without comments, and without strings if `strings`. Keeps line breaks, so line numbers hold."""

    def blank(match):
        token = match.group()
        if token[0] == "'" and match.start() > 0 and text[match.start() - 1].isalnum():
            return token  # a digit separator, as in 100'000
        if token[0] != "/" and not strings:
            return token
        return " " + "\n" * token.count("\n")

    return TOKENS.sub(blank, text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def check_includes(path, text, floor, order):
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*["<]penstock/(\w+)/', text, re.M):
        used = match.group(1)
        if used not in order:
            yield line_of(text, match.start()), f"includes penstock/{used}/, which is no floor"
        elif order.index(used) > order.index(floor):
            yield line_of(text, match.start()), f"floor {floor} includes penstock/{used}/, a floor above it"


def check_banned(path, text, floor):
    code = strip(text, strings=True)
    for pattern, allowed, reason in BANNED:
        if floor in allowed:
            continue
        for match in re.finditer(pattern, code):
            yield line_of(code, match.start()), f"banned: {match.group().strip()}: {reason}"


def check_environment(path, text):
    code = strip(text, strings=False)
    for match in re.finditer(r'(?<![\w.>])(?:std::|::)?getenv\s*\(\s*(?:"([^"\n]*)"\s*\))?', code):
        if match.group(1) not in ENVIRONMENT:
            name = match.group(1) or "a computed name"
            yield line_of(code, match.start()), f"banned: getenv of {name}, which ENVIRONMENT does not list"


def check_text(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in line:
            yield number, "has a tab"
    num_lines = text.count("\n")
    if num_lines > MAX_LINES:
        yield num_lines, f"has more than {MAX_LINES} lines"
    if path.suffix == ".h":
        if not text.startswith("//"):
            yield 1, "a header opens with a comment that says what it is for"
        if not re.search(r"^#pragma once$", text, re.M):
            yield 1, "a header needs #pragma once"


def check_listed(root, order):
    """Checks that each folder is a floor, and that each .cc of a floor or its tests is in a CMakeLists.txt."""
    top = root / "src" / "penstock"
    for folder in sorted(top.iterdir()):
        if folder.is_dir() and folder.name not in order:
            yield folder, 1, "is no floor of the root CMakeLists.txt"
    for floor in order:
        listing = top / floor / "CMakeLists.txt"
        words = set(re.split(r"[\s()]+", listing.read_text())) if listing.exists() else set()
        for source in sorted((top / floor).rglob("*.cc")):
            name = str(source.relative_to(top / floor))
            if name not in words and not any("*" in word and fnmatch.fnmatch(name, word) for word in words):
                yield source, 1, f"is not listed in {listing.relative_to(root)}"
    for test in sorted((root / "tests").rglob("*_test.cc")):
        floor, *rest = test.relative_to(root / "tests").parts
        listing = root / "tests" / floor / "CMakeLists.txt"
        words = set(re.split(r"[\s()]+", listing.read_text())) if listing.exists() else set()
        if "/".join(rest) not in words:
            yield test, 1, f"is not listed in {listing.relative_to(root)}"


def check_links(root, order):
    """Checks that a floor's library links only floors that its sources include, and none above it."""
    top = root / "src" / "penstock"
    for floor in order:
        listing = top / floor / "CMakeLists.txt"
        if not listing.exists():
            continue
        text = listing.read_text()
        included = set()
        for path in (top / floor).rglob("*"):
            if path.suffix in CODE:
                included |= set(re.findall(r'#[ \t]*include[ \t]*["<]penstock/(\w+)/', path.read_text(encoding="utf-8")))
        for match in re.finditer(r"\bpenstock_(\w+)", text):
            used = match.group(1)
            if used not in order or used == floor or match.group() == "penstock_library":
                continue
            if order.index(used) > order.index(floor):
                yield listing, line_of(text, match.start()), f"floor {floor} links {match.group()}, a floor above it"
            # A floor with a public header may be linked for that alone, and `included` does not hold public headers.
            elif used not in included and not (root / "include" / "penstock" / f"{used}.h").exists():
                yield listing, line_of(
                    text, match.start()), f"links {match.group()}, of which floor {floor} includes nothing"


@functools.cache  # the self-test checks the same files again and again
def check_file(name, text, order):
    """Returns all that is wrong with the file `name`, a path relative to the root, as pairs of line and text."""
    folder = name.parts[0]
    results = list(check_text(name, text)) if folder in ("src", "include") else []
    if folder == "src" and len(name.parts) > 3 and name.parts[2] in order:
        results += check_includes(name, text, name.parts[2], order)
        results += check_banned(name, text, name.parts[2])
        results += check_environment(name, text)
    if folder == "include":
        for match in re.finditer(r'#include ["<]penstock/(\w+)/', text):
            results.append((line_of(text, match.start()), "a public header includes an inner one"))
    return results


def problems(root):
    """Returns all that is wrong, as lines "path:line: what"."""
    order = floors(root)
    found = []
    if not order:
        found.append("CMakeLists.txt:1: no floors found")
        return found
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in CODE or not path.is_file():
                continue
            name = path.relative_to(root)
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                found.append(f"{name}:1: is not UTF-8")
                continue
            results = check_file(name, text, tuple(order))
            found += [f"{name}:{line}: {what}" for line, what in results]
    for path, line, what in [*check_listed(root, order), *check_links(root, order)]:
        found.append(f"{path.relative_to(root)}:{line}: {what}")
    return found


# Yields faults to plant: a new file, its text, and a piece of the expected complaint.
def plants(order):
    low, high = order[0], order[-1]
    header = "// A planted header.\n#pragma once\n"
    yield f"src/penstock/{low}/planted.h", header + f'#include "penstock/{high}/x.h"\n', "a floor above it"
    yield f"src/penstock/{low}/planted.h", header + f"  #  include <penstock/{order[1]}/x.h>\n", "a floor above it"
    yield f"src/penstock/{low}/planted.h", header + '#include "penstock/nowhere/x.h"\n', "which is no floor"
    yield f"src/penstock/{low}/planted.cc", "int x;\n", "is not listed in"
    yield "src/penstock/planted/x.h", header, "is no floor of the root"
    yield f"tests/{low}/planted_test.cc", "int x;\n", "is not listed in"
    yield f"src/penstock/{low}/planted.cu", f'#include "penstock/{high}/x.h"\n', "a floor above it"
    yield f"src/penstock/{low}/planted.cuh", f'#include "penstock/{high}/x.h"\n', "a floor above it"
    yield f"src/penstock/{order[1]}/planted.h", header + 'void F() { std::printf("x"); }\n', "banned: std::printf("
    yield f"src/penstock/{order[1]}/planted.h", header + "void F() { std::cout << 1; }\n", "banned: std::cout"
    yield f"src/penstock/{order[1]}/planted.h", header + "void F() { exit(1); }\n", "banned: exit("
    yield f"src/penstock/{order[1]}/planted.h", header + "int x = rand();\n", "banned: rand("
    yield f"src/penstock/{order[1]}/planted.h", header + "std::regex r;\n", "banned: std::regex"
    yield f"src/penstock/{order[1]}/planted.h", header + 'auto e = std::getenv("X");\n', "getenv of X"
    yield f"src/penstock/{order[1]}/planted.h", header + "auto e = getenv(name);\n", "getenv of a computed name"
    yield f"src/penstock/{order[1]}/planted.h", header + "void F() { ::_exit(1); }\n", "banned: ::_exit("
    yield f"src/penstock/{low}/planted.h", header + "\tint x;\n", "has a tab"
    yield f"src/penstock/{low}/planted.h", header + "int x;\n" * MAX_LINES, "has more than"
    yield f"src/penstock/{low}/planted.h", "#pragma once\n", "opens with a comment"
    yield f"src/penstock/{low}/planted.h", "// A header.\n", "needs #pragma once"
    yield "include/penstock/planted.h", header + f'#include "penstock/{low}/x.h"\n', "a public header includes"


# Text that must pass: the same words in comments, strings and longer names.
HARMLESS = """// A planted header: printf( and std::cout and exit( in a comment.
#pragma once
/* std::regex, rand() and
   getenv("X") in a comment of two lines */
inline const char* kText = "std::regex exit(1) rand()";
inline int snprintf_like(int brand) { return brand + 100'000; }
inline void OnExit() { on_exit_now(1); x.exit(2); std::fprintf(stderr, "fine"); std::snprintf(b, 2, "x"); }
"""


def not_code(_, names):
    """Returns the `names` that a copy for the self-test does not need."""
    return [name for name in names if "." in name and not name.endswith((".h", ".cc", ".cu", ".cuh", ".txt"))]


def self_test(root):
    order = floors(root)
    failures = []
    with tempfile.TemporaryDirectory() as temp:
        copy = pathlib.Path(temp)
        shutil.copy(root / "CMakeLists.txt", copy)
        for folder in SOURCE_FOLDERS:
            shutil.copytree(root / folder, copy / folder, ignore=not_code)
        before = set(problems(copy))
        cases = list(plants(order))
        for name, content, expected in cases:
            path = copy / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            new = [line for line in problems(copy) if line not in before]
            if not any(expected in line for line in new):
                failures.append(f"planted {name}, expected '{expected}', found {new}")
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
        harmless = copy / "src" / "penstock" / order[1] / "planted.h"
        harmless.write_text(HARMLESS)
        new = [line for line in problems(copy) if line not in before]
        if new:
            failures.append(f"complains of harmless text: {new}")
    for line in failures:
        print(line)
    print(f"{len(cases) + 1} planted files, {len(failures)} wrong answers")
    return 1 if failures else 0


def main(arguments):
    if not arguments or len(arguments) > 2 or (len(arguments) == 2 and arguments[1] != "--self-test"):
        print(__doc__)
        return 2
    root = pathlib.Path(arguments[0]).resolve()
    if len(arguments) == 2:
        return self_test(root)
    found = problems(root)
    for line in found:
        print(line)
    print(f"{len(found)} problems; floors: {' < '.join(floors(root))}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
