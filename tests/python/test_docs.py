"""The examples of docs/python.md run as they stand."""
import re

import common
import pytest

TEXT = (common.ROOT / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.S)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(number):
    routing = common.ROOT / "build" / "routing.bin"
    routing.unlink(missing_ok=True)
    done = common.run_python(EXAMPLES[number], check=False)
    routing.unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout and not done.stderr


def test_there_are_examples():
    assert len(EXAMPLES) >= 4
