"""One open demo model for all tests that do not need their own."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import common  # noqa: E402

import penstock  # noqa: E402


@pytest.fixture(scope="session")
def llm():
    with penstock.LLM(common.MODEL, common.MEMORY) as opened:
        yield opened
