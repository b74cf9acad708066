"""What the whole tree must be like, checked by reading it."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import qo
from qo import errors
from support.source_trees import parse_file

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
BIN = Path(sys.executable).parent
LINES_MAX = 400
FUNCTION_LINES_MAX = 60


def test_no_module_is_longer_than_a_reader_can_hold():
    long = {str(path.relative_to(ROOT)): n for path in SOURCES if (n := path.read_text().count("\n")) > LINES_MAX}
    assert long == {}


def test_tests_on_spark_are_where_make_looks_for_them_and_nothing_else_is_there():
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.spark" in path.read_text()}
    there = set((ROOT / "tests" / "spark").glob("test_*.py"))
    beside = ("test_docs.py", "test_up.py", "test_up_failures.py", "test_up_pipelines.py")
    assert marked - there == {ROOT / "tests" / "e2e" / name for name in beside} | {Path(__file__)}
    assert there <= marked
    unmarked = [path.name for path in there if "pytest.mark.fast" in path.read_text()]
    assert unmarked == []


def test_no_function_is_longer_than_a_screen():
    long: list[str] = []
    for path in SOURCES:
        for node in ast.walk(parse_file(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                span = (node.end_lineno or node.lineno) - node.lineno
                if span > FUNCTION_LINES_MAX:
                    long.append(f"{path.name}:{node.name} ({span})")
    assert long == []


def test_no_module_has_a_name_that_says_nothing():
    empty = {"util", "utils", "common", "helper", "helpers", "manager", "misc", "base"}
    assert [path.name for path in SOURCES if path.stem in empty] == []


def test_nobody_is_told_to_install_another_project_of_this_name():
    texts = [*SOURCES, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    assert [path.name for path in texts if re.search(r"pip install '?qo\b", path.read_text())] == []


def test_the_public_names_are_sorted_complete_and_importable():
    assert list(qo.__all__) == sorted(qo.__all__)
    assert set(qo.__all__) == set(qo._HOMES)
    for name in qo.__all__:
        assert getattr(qo, name) is not None


def test_the_error_tree_is_drawn_as_it_is():
    drawn = re.findall(r"^[ │├└─]*([A-Z]\w+)", inspect.getdoc(errors) or "", re.MULTILINE)
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert classes <= set(drawn)


def test_every_error_has_a_documented_exit_code():
    documented = (ROOT / "docs/reference/cli.md").read_text()
    codes = {
        value.exit_code
        for value in vars(errors).values()
        if inspect.isclass(value) and hasattr(value, "exit_code")
    }
    for code in codes:
        assert re.search(rf"^\|\s*`?{code}`?\s*\|", documented, re.MULTILINE), code


@pytest.mark.parametrize(
    "line",
    [
        "import time\ntime.time()",
        "from datetime import UTC, datetime\ndatetime.now(UTC)",
        "import uuid\nuuid.uuid4()",
        "import random\nrandom.random()",
    ],
)
def test_a_local_clock_id_or_chance_in_the_source_breaks_the_lint(line: str, tmp_path: Path):
    command = [
        BIN / "ruff",
        "check",
        "--config",
        ROOT / "pyproject.toml",
        "--stdin-filename",
        "src/qo/queue/x.py",
        "-",
    ]
    run = subprocess.run(command, input=line + "\n", capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 1
    assert "TID251" in run.stdout


def test_only_embedded_stores_the_doctor_pushed_metrics_and_processes_of_spark_read_the_machines_clock():
    allowed = {"embedded.py", "checks.py", "metric_pusher.py", "parquet_source.py"}
    shipped = [path for path in SOURCES if "testing" not in path.parts]
    reading = {path.name for path in shipped if re.search(r"noqa:.*TID251", path.read_text())}
    assert reading <= allowed


def test_an_import_that_points_up_breaks_the_build(tmp_path: Path):
    copy = tmp_path / "src"
    subprocess.run(["cp", "-r", ROOT / "src", copy], check=True)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    keys = copy / "qo/core/keys.py"
    keys.write_text(keys.read_text() + "\nfrom qo.store import port as port\n")
    run = subprocess.run(
        [BIN / "lint-imports", "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(copy), "PATH": str(BIN)},
        capture_output=True,
        text=True,
    )
    assert run.returncode != 0
    assert "qo.core.keys -> qo.store.port" in run.stdout


def test_a_worker_of_python_loads_neither_a_database_nor_spark() -> None:
    heavy = ("sqlalchemy", "fastapi", "pyspark", "pandas", "pyarrow")
    look = f"import sys, qo.agent.service; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
