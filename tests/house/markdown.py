#!/usr/bin/env python3
"""Checks the Markdown pages: width of prose, links and their anchors, and the repository's paths that they name.

Usage: markdown.py ROOT                checks the tree at ROOT
       markdown.py ROOT --self-test    checks that each fault is noticed
"""
import re
import sys

import house

MAX_COLUMNS = 110
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^\s{0,3}\[[^\]]+\]:\s*<?(\S+?)>?\s*$")
PATH = re.compile(r"[\w.-]+(?:/[\w.*-]+)+/?")
SCRIPT = re.compile(r"(?:\./)?(?:scripts|tools|bench|tests)/.*\.(?:py|sh)")
PLACEHOLDER = re.compile(r"(?:^|[/.])[A-Z_]{2,}(?:[/.]|$)")  # bench/results/NAME.json
REAL_CAPITALS = {"README", "CONTRIBUTING", "ARCHITECTURE", "GLOSSARY", "CHANGELOG", "SECURITY", "LICENSE"}


def blocks(text):
    """(line number, line, kind) of each line; kind is prose, code, table or verbatim (HTML and headings)."""
    fence = None
    in_list = code_before = False
    before_was_blank = True
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        mark = re.match(r"(`{3,}|~{3,})", bare)
        if fence:
            yield number, line, "code"
            if mark and bare == mark.group() and bare.startswith(fence):
                fence = None
            continue
        if mark:
            fence = mark.group()
            yield number, line, "code"
            continue
        if not bare:
            before_was_blank = True
            yield number, line, "prose"
            continue
        if not line.startswith(" "):
            in_list = bool(re.match(r"(?:[-*+]|\d+[.)])\s", line)) or in_list and not before_was_blank
        is_code = line.startswith("    ") and not in_list and (before_was_blank or code_before)
        kind = "code" if is_code else "table" if bare.startswith("|") else "verbatim" if re.match(r"<|#", bare) else "prose"
        yield number, line, kind
        before_was_blank = False
        code_before = is_code


def slugs(text):
    """The anchors that GitHub makes of a page's headings, and those that it sets itself."""
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for _, line, kind in blocks(text):
        heading = re.match(r"#{1,6}\s+(.*?)\s*#*$", line) if kind == "verbatim" else None
        if heading:
            name = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).replace("`", "").lower()
            slug = re.sub(r"[^\w\- ]", "", name).replace(" ", "-")
            same = sum(other == slug or re.fullmatch(re.escape(slug) + r"-\d+", other) is not None for other in found)
            found.add(f"{slug}-{same}" if same else slug)
    return found


def check_width(text):
    for number, line, kind in blocks(text):
        start = re.match(r"\s*(?:[-*+>]\s+|\d+[.)]\s+)*", line).end()
        # A line without spaces is a long address, which cannot be broken.
        if kind == "prose" and len(line) > MAX_COLUMNS and " " in line[start:MAX_COLUMNS + 1]:
            yield number, f"has {len(line)} columns, prose has at most {MAX_COLUMNS}"


def check_links(root, path, text):
    for number, line, kind in blocks(text):
        if kind == "code":
            continue
        line = re.sub(r"`[^`]*`", "``", line)
        targets = LINK.findall(line) + REFERENCE.findall(line) + re.findall(r"(?:src|href)=\"([^\"]+)\"", line)
        for target in targets:
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            page = (path.parent / name).resolve() if name else path
            if not page.exists():
                yield number, f"links {target}, which does not exist"
            elif root not in page.parents and page != root:
                yield number, f"links {target}, which is outside the repository"
            elif anchor and page.suffix == ".md" and anchor not in slugs(page.read_text(encoding="utf-8")):
                yield number, f"links {target}, but {page.relative_to(root)} has no such heading"


def exists(root, path, word):
    bases = (root, path.parent, root / "src" / "penstock", root / "include", root / "tests")
    names = (word.rstrip("/"), word + ".cc", word + ".py")  # programs are named without their source's suffix
    return any(any(base.glob(name)) if "*" in name else (base / name).exists() for base in bases for name in names)


def check_paths(root, path, text):
    """Words in backticks, and scripts in code, that begin with a folder of the repository or a floor, exist."""
    floors = {folder.name for folder in (root / "src" / "penstock").glob("*") if folder.is_dir()}
    tops = {folder.name for folder in root.iterdir() if folder.is_dir()} - house.SKIPPED_FOLDERS
    for number, line, kind in blocks(text):
        if kind == "code":
            words = [word for word in line.split() if SCRIPT.fullmatch(word)]
        else:
            words = " ".join(re.findall(r"`([^`]+)`", line)).split()
        for word in words:
            word = word.removeprefix("./").rstrip(",;:")
            if not PATH.fullmatch(word) or word.split("/")[0] not in floors | tops:
                continue
            capitals = PLACEHOLDER.search(word)
            if capitals and capitals.group().strip("/.") not in REAL_CAPITALS:
                continue
            if not exists(root, path, word):
                yield number, f"names {word}, which does not exist"


def problems(root):
    for path in house.files(root, ".md"):
        text = path.read_text(encoding="utf-8")
        found = [*check_width(text), *check_links(root, path, text), *check_paths(root, path, text)]
        for number, what in sorted(found):
            yield f"{path.relative_to(root)}:{number}: {what}"


def self_test():
    long = "word " * 22 + "x"
    page = {"docs/other.md": "# A `title`, here\n\n## Twice\n\n## Twice\n", "src/penstock/base/json.h": "",
            "scripts/a.py": ""}
    planted = [
        ({"a.md": long + "\n"}, "a.md:1: has 111 columns"),
        ({"a.md": "- item\n\n    " + long + "\n"}, "a.md:3: has 115 columns"),
        ({"a.md": "[x](docs/none.md)\n", **page}, "links docs/none.md, which does not exist"),
        ({"a.md": "[x](docs/other.md#nothing)\n", **page}, "has no such heading"),
        ({"a.md": "[x](docs/other.md#twice-2)\n", **page}, "has no such heading"),
        ({"a.md": "[x]: docs/none.md\n", **page}, "links docs/none.md"),
        ({"a.md": "[x](../../../etc/passwd)\n", **page}, "passwd, which"),
        ({"a.md": '<img src="none.svg">\n'}, "links none.svg"),
        ({"a.md": "See `base/none.h`.\n", **page}, "names base/none.h"),
        ({"a.md": "See `docs/*.txt`.\n", **page}, "names docs/*.txt"),
        ({"a.md": "    scripts/none.py --x\n", **page}, "names scripts/none.py"),
    ]
    harmless = {
        "a.md": f"# Title {long}\n\n| {long} |\n\n```\n{long}\n```\n\n    {long}\n\nhttps://{'x' * 120}\n",
        "docs/b.md": "[x](other.md#a-title-here) [y](other.md#twice-1) [z](https://a.b/c) [b](../a.md) `[x](none)`\n"
                     "`base/json.h` `src/penstock/base/*.h` `docs/NAME.json` `a/b` `base/json.h,`\n",
        **page,
    }
    return house.self_test(problems, planted, harmless)


if __name__ == "__main__":
    sys.exit(house.main(__doc__, problems, self_test))
