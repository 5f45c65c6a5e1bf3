"""The parts that the house's checks share: which files there are, and the command line."""
import pathlib
import sys
import tempfile

SKIPPED_FOLDERS = {"build", "__pycache__"}


def files(root, *suffixes):
    """The files below `root` with one of these suffixes, without hidden and built ones, sorted."""
    found = []
    for path in root.iterdir():
        if path.name.startswith(".") or path.name in SKIPPED_FOLDERS:
            continue
        if path.is_dir() and not path.is_symlink():
            found += files(path, *suffixes)
        elif path.suffix in suffixes:
            found.append(path)
    return sorted(found)


def self_test(problems, planted, harmless):
    """Checks that `problems` finds each fault of `planted` and nothing in `harmless`. Returns the number of wrong answers.

    `planted` has pairs of the files, {name: text}, and a piece of the complaint; `harmless` is such files.
    """
    wrong = 0
    for content, expected in [*planted, (harmless, None)]:
        with tempfile.TemporaryDirectory() as temp:
            root = pathlib.Path(temp)
            for name, text in content.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            found = list(problems(root))
        good = not found if expected is None else len(found) == 1 and expected in found[0]
        if not good:
            wrong += 1
            print(f"planted {list(content)}, expected {expected!r}, found {found}")
    print(f"{len(planted) + 1} planted trees, {wrong} wrong answers")
    return wrong


def main(documentation, problems, run_self_test):
    """The command line of a check: NAME.py ROOT [--self-test]."""
    arguments = sys.argv[1:]
    if not arguments or arguments[1:] not in ([], ["--self-test"]):
        print(documentation)
        return 2
    if arguments[1:]:
        return 1 if run_self_test() else 0
    found = list(problems(pathlib.Path(arguments[0]).resolve()))
    for line in found:
        print(line)
    return 1 if found else 0
