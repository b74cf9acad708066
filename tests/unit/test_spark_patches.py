"""Patches of PySpark, py4j and Hadoop: listed in one table, off by one setting, only on versions they were made for."""

from __future__ import annotations

import ast
import importlib
import logging
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from qo.config.spark import SparkSettings
from qo.spark import patches
from qo.spark.patches import lean, patch
from qo.spark.patches.patch import Patch, Versions
from qo.spark.patches.table import ACTIVE_SESSION, LEAN_JAR, LOOKUP_CACHE, PATCHES, STOP_GUARD

pytestmark = pytest.mark.fast

SPARK = Path(patches.__file__).parents[1]
PATCHED = ("pyspark", "py4j")
VERSIONED = [each for each in PATCHES if each.made_for]


@pytest.fixture(autouse=True)
def _nothing_warned_about_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "_warned", set())


def pretend_installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setattr(patch, "installed_version", lambda package: version)


@pytest.mark.parametrize("each", PATCHES, ids=lambda each: each.name)
def test_every_patch_is_on_with_the_versions_that_qo_allows(each: Patch) -> None:
    assert each.is_enabled(SparkSettings())


@pytest.mark.parametrize("each", PATCHES, ids=lambda each: each.name)
def test_one_setting_turns_every_patch_off_in_silence(each: Patch, caplog: pytest.LogCaptureFixture) -> None:
    assert not each.is_enabled(SparkSettings(patches=False))
    assert caplog.text == ""


def test_a_patch_that_is_off_is_not_applied() -> None:
    def send_command(command: str) -> str:
        return command

    client = SimpleNamespace(send_command=send_command)
    LOOKUP_CACHE.apply_if_enabled(SparkSettings(patches=False), client)
    assert client.send_command is send_command
    STOP_GUARD.apply_if_enabled(SparkSettings(patches=False), client)
    assert not hasattr(client, "stop")


@pytest.mark.parametrize(
    "version", ["3.5.1", "4.1.2", "4.4.0", "5.0.0.dev1", "0.10.9.10", "0.11", "unreadable", None]
)
@pytest.mark.parametrize("each", VERSIONED, ids=lambda each: each.name)
def test_another_version_is_not_patched_and_a_warning_says_what_to_do(
    each: Patch, version: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend_installed(monkeypatch, version)
    assert not each.is_enabled(SparkSettings())
    assert each.name in caplog.text
    assert each.without in caplog.text
    assert "install a version in that range, or set spark.patches = false" in caplog.text


def test_the_warning_comes_once_for_each_patch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend_installed(monkeypatch, "5.0.0")
    for _ in range(3):
        assert not ACTIVE_SESSION.is_enabled(SparkSettings())
        assert not lean.is_lean(SparkSettings(), {})
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.split("'")[2] for each in warnings] == [ACTIVE_SESSION.name, LEAN_JAR.name]
    assert "made for pyspark >=4.2,<4.4 and is not applied to version 5.0.0" in warnings[0]


@pytest.mark.parametrize("version", ["4.2", "4.2.0", "4.3.11", "4.3.0.dev1"])
def test_versions_are_compared_by_their_numbers(version: str) -> None:
    assert version in Versions("4.2", "4.4")
    assert "0.10.9.9" in Versions("0.10.9.7", "0.10.9.10")


def test_the_table_lists_every_patch_and_says_all_about_it() -> None:
    modules = {each.name for each in pkgutil.iter_modules(patches.__path__)} - {"patch", "table", "private_state"}
    assert {each.function.partition(":")[0].rpartition(".")[2] for each in PATCHES} == modules
    for each in PATCHES:
        module, _, name = each.function.partition(":")
        assert callable(getattr(importlib.import_module(module), name))
        assert each.changes
        assert each.why
        assert each.without
    assert len({each.name for each in PATCHES}) == len(PATCHES)


def test_only_the_package_of_patches_assigns_to_what_is_pysparks_or_py4js() -> None:
    outside = [path for path in SPARK.rglob("*.py") if SPARK / "patches" not in path.parents]
    assigned = [f"{path.relative_to(SPARK)}: {each}" for path in outside for each in patched(path.read_text())]
    assert assigned == []


@pytest.mark.parametrize(
    "code",
    [
        "from pyspark import SparkContext\nSparkContext._gateway = None",
        "from pyspark import SparkContext as C\nC._jvm, x = None, 1",
        "import pyspark.sql\npyspark.sql.SparkSession.active = None",
        "from py4j import protocol\nsetattr(protocol, 'SUCCESS', 'y')",
        "from py4j import protocol\nprotocol.register_input_converter(1)",
        "from pyspark import java_gateway\nnames: Any = java_gateway\nbefore, names.Popen = names.Popen, 1",
        "from pyspark.sql import SparkSession\ndef f(spark: SparkSession):\n    spark.stop = print",
        "def f(self):\n    self._spark.sparkContext.stop = print",
        "def f(client):\n    client._closed = True",
    ],
)
def test_an_assignment_to_pyspark_or_py4j_is_recognised(code: str) -> None:
    assert patched(code)


def patched(code: str) -> list[str]:
    """Assignments in a module to names of PySpark and py4j, to variables of their types, and to private attributes."""
    tree = ast.parse(code)
    theirs = set(_imported(tree)) | set(_annotated(tree, set(_imported(tree))))
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Name) and value.id in theirs:  # Another name for it.
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            theirs |= {each.id for each in targets if isinstance(each, ast.Name)}
    return [ast.unparse(each) for each in _targets(tree) if _is_theirs(each, theirs)]


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PATCHED):
            yield from (each.asname or each.name for each in node.names)
        elif isinstance(node, ast.Import):
            names = (each for each in node.names if each.name.startswith(PATCHED))
            yield from (each.asname or each.name.partition(".")[0] for each in names)


def _annotated(tree: ast.AST, types: set[str]) -> Iterator[str]:
    """Arguments and variables of these types."""
    for node in ast.walk(tree):
        annotation = node.annotation if isinstance(node, ast.arg | ast.AnnAssign) else None
        if annotation is not None and types & {
            each.id for each in ast.walk(annotation) if isinstance(each, ast.Name)
        }:
            yield node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)


def _targets(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("setattr", "register_input_converter")
        ):
            yield node.args[0] if ast.unparse(node.func) == "setattr" else node.func


def _is_theirs(target: ast.expr, theirs: set[str]) -> bool:
    parts = ast.unparse(target).split(".")
    if parts[0] in ("self", "cls"):
        return len(parts) > 2  # Of something that this object holds.
    if "(" in ast.unparse(target):
        return parts[-1].startswith("_")  # What a call has returned, such as a logger.
    return parts[0] in theirs or (len(parts) > 1 and parts[-1].startswith("_"))
