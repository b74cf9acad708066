"""What the Makefile starts can be started: with the path that it gives, every program finds its modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
FOLDERS = {"tests", "tests/apps"}  # As in pyproject.toml: where tests find modules.
PROGRAMS = sorted(set(re.findall(r"PYTHONPATH=(\S+) \$\(\w+\)\S* -m (\w+)", (ROOT / "Makefile").read_text())))


def imports(file: Path) -> Iterator[str]:
    """The first part of every name that the file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module.partition(".")[0]


def is_in(folder: str, name: str) -> bool:
    return (ROOT / folder / name).is_dir() or (ROOT / folder / f"{name}.py").is_file()


def test_there_are_programs() -> None:
    assert {"suite", "chaos", "soak"} <= {module for _, module in PROGRAMS}


@pytest.mark.parametrize(("path", "module"), PROGRAMS, ids=[module for _, module in PROGRAMS])
def test_a_program_finds_its_modules(path: str, module: str) -> None:
    names = {name for file in (ROOT / "tests" / module).rglob("*.py") for name in imports(file)}
    ours = {name for name in names if any(is_in(folder, name) for folder in FOLDERS)}
    assert [name for name in sorted(ours) if not any(is_in(folder, name) for folder in path.split(":"))] == []
