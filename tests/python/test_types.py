"""The package's types hold (mypy), and the stub names what the extension has."""
import ast
import os
import subprocess
import sys

import common
import pytest

from penstock import _penstock


def test_types_hold():
    pytest.importorskip("mypy")
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir",
                           "build/mypy-cache"], capture_output=True, text=True, cwd=common.ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_of_the_examples(tmp_path):
    pytest.importorskip("mypy")
    files = []
    for number, example in enumerate(common.EXAMPLES):
        files.append(tmp_path / f"example_{number}.py")
        files[-1].write_text(example, encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", "build/mypy-cache", *files],
                          capture_output=True, text=True, cwd=common.ROOT, check=False,
                          env={**os.environ, "MYPYPATH": str(common.ROOT / "python")})
    assert done.returncode == 0, done.stdout + done.stderr


def test_stub_is_complete():
    stub = ast.parse((common.ROOT / "python" / "penstock" / "_penstock.pyi").read_text(encoding="utf-8"))
    names = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert names == {name for name in vars(_penstock) if not name.startswith("__")}
    session = next(node for node in stub.body if isinstance(node, ast.ClassDef))
    assert {node.name for node in session.body} == {
        name for name in vars(_penstock.Session) if not name.startswith("__") or name == "__init__"}
