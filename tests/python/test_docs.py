"""The examples of docs/python.md run as they stand, and that of the README with the demo model."""
import re
import textwrap

import common
import pytest

from penstock import _base


@pytest.mark.parametrize("number", range(len(common.EXAMPLES)))
def test_example_runs(number):
    routing = common.ROOT / "build" / "routing.bin"
    routing.unlink(missing_ok=True)
    done = common.run_python(common.EXAMPLES[number], check=False)
    routing.unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout and not done.stderr


def test_readme_runs_anywhere(tmp_path):
    readme = (common.ROOT / "README.md").read_text(encoding="utf-8")
    code = textwrap.dedent(re.search(r"^    import penstock\n(?:    .*\n)+", readme, re.M).group(0))
    for name, value in (("qwen3-int8", str(common.MODEL)), ("16GiB", common.MEMORY)):
        assert name in code
        code = code.replace(name, value)
    done = common.run_python(code, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and not done.stderr


def test_a_chat_has_the_fields_of_a_job():
    jobs = (common.ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    table = re.search(r"\*\*Chats\.\*\*.*?\n\n(\|.*?)\n\n", jobs, re.S).group(1)
    assert set(re.findall(r"^\| `(\w+)`", table, re.M)) == {"tools", *_base.CHAT_FIELDS}


def test_there_are_examples():
    assert len(common.EXAMPLES) >= 4
