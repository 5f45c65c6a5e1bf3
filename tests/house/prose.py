#!/usr/bin/env python3
"""Checks how comments, docstrings and paragraphs of Markdown begin: with a subject, not with "Of", "That" or "What".

Usage: prose.py ROOT                checks the tree at ROOT
       prose.py ROOT --self-test    checks that each fault is noticed
"""
import ast
import io
import re
import sys
import tokenize

import house
import layering
import markdown

CODE = (".h", ".cc", ".cu", ".cuh")
OPENING = re.compile(r"(?:Of|That|What)\b")


def joined(comments):
    """(line, text) of each comment; those alone in their lines, below each other in one column, are one.

    `comments` are (line, column, alone in its line, text).
    """
    last = None
    for line, column, alone, text in comments:
        if not (last and alone and last == (line - 1, column)):
            yield line, text
        last = (line, column)


def code_comments(text):
    found = []
    for match in layering.TOKENS.finditer(text):
        token = match.group()
        if token.startswith(("//", "/*")):
            start = text.rfind("\n", 0, match.start()) + 1
            alone = not text[start:match.start()].strip()
            found.append((layering.line_of(text, match.start()), match.start() - start, alone, token.strip("/*! \n")))
    return joined(found)


def python_comments(text):
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[:token.start[1]].strip()
            found.append((*token.start, alone, token.string.strip("#! ")))
    yield from joined(found)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            yield node.body[0].lineno, ast.get_docstring(node)


def paragraphs(text):
    before = "\n"
    for number, line, kind in markdown.blocks(text):
        if kind == "prose" and not before.strip() and line and not line.startswith(" "):
            yield number, line.lstrip("*_>")
        before = line if kind == "prose" else ""


def problems(root):
    for suffixes, comments in ((CODE, code_comments), ((".py",), python_comments), ((".md",), paragraphs)):
        for path in house.files(root, *suffixes):
            for line, text in sorted(comments(path.read_text(encoding="utf-8"))):
                if OPENING.match(text):
                    begin = text.split("\n")[0][:50]
                    yield f"{path.relative_to(root)}:{line}: begins with '{begin.split()[0]}': {begin}"


def self_test():
    planted = [
        ({"a.cc": "// Of a matrix.\n// More.\nint x;\n"}, "a.cc:1: begins with 'Of'"),
        ({"a.cu": "int x;  // That which counts.\n"}, "a.cu:1: begins with 'That'"),
        ({"a.h": "/* What it does. */\n"}, "a.h:1: begins with 'What'"),
        ({"a.h": "int x;  // counted\n// What it does.\n"}, "a.h:2: begins with 'What'"),
        ({"a.py": "x = 1  # Of y\n"}, "a.py:1: begins with 'Of'"),
        ({"a.py": 'def f():\n    """What it does."""\n'}, "a.py:2: begins with 'What'"),
        ({"a.md": "# What\n\nThat is\nall.\n"}, "a.md:3: begins with 'That'"),
    ]
    harmless = {
        "a.cc": "// The sum\n// Of a matrix.\nconst char* x = \"// What\";\nint y;  // a sum\n        // What is summed.\n",
        "a.py": "# Offsets\n# That one\nx = '# What'\n\"\"\"What\"\"\"\n",
        "a.md": "Thatched, one\nWhat two.\n\n- What three\n\n```\n\nWhat\n```\n\n| What |\n",
    }
    return house.self_test(problems, planted, harmless)


if __name__ == "__main__":
    sys.exit(house.main(__doc__, problems, self_test))
