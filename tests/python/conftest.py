"""One open demo model for all tests that do not need their own."""
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "server")]

import common  # noqa: E402

import penstock  # noqa: E402


@pytest.fixture(scope="session")
def llm():
    with penstock.LLM(common.MODEL, common.MEMORY) as opened:
        yield opened
