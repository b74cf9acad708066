"""The tests of the projects that ``qo init`` makes, with the session that is there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from qo.cli.run.init import PROJECTS, Template
from qo.cli.run.projects.project import write_project

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("template", [Template.SPARK, Template.SQL])
def test_the_tests_of_a_project_pass(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: Template
) -> None:
    write_project(PROJECTS[template], tmp_path, "{}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "pipeline", raising=False)
    [path] = tmp_path.glob("test_*.py")
    spec = importlib.util.spec_from_file_location(f"project_{template}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = [each for name, each in vars(module).items() if name.startswith("test_")]
    for test in tests:
        test(spark)
    assert tests
    sys.modules.pop("pipeline", None)
