#!/usr/bin/env python3
"""Checks that the lists of choices in docs/ are what `penstock list` prints; --write puts them right.

A list is an indented block of a page that begins with `$ penstock list TABLE`. Every table is shown on some page.
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^    \$ penstock list (\S+)\n((?:    .*\n)*)", re.M)
NOT_IN_DOCS = {"hardware"}  # a wide table of its own, which docs/planning.md explains


def listed(program, *table):
    return subprocess.run([program, "list", *table], check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", required=True, help="the program")
    parser.add_argument("--write", action="store_true", help="rewrite the lists that differ")
    args = parser.parse_args()
    tables = re.findall(r"^([a-z-]+) \(", listed(args.penstock), re.M)
    failed = []
    seen = set()

    def current(match):
        seen.add(match[1])
        lines = listed(args.penstock, match[1]).splitlines()
        return "".join(f"    {line}\n" for line in [f"$ penstock list {match[1]}", *lines])

    for page in sorted(ROOT.glob("docs/*.md")):
        text = page.read_text(encoding="utf-8")
        new = BLOCK.sub(current, text)
        if new != text and args.write:
            page.write_text(new, encoding="utf-8")
        elif new != text:
            failed.append(f"{page.relative_to(ROOT)}: a list is not what the program prints (docs_lists.py --write)")
    failed += [f"no page of docs/ shows `penstock list {table}`" for table in tables if table not in seen | NOT_IN_DOCS]
    print("\n".join(failed) if failed else f"{len(seen)} lists are what the program prints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
