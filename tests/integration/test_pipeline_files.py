"""Python files are read as Python, and their problems have a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from qo.pipeline.declare import Pipeline
from qo.pipeline.problems import DefinitionError
from support.cli.command import Qo

PIPELINE = """
import qo
flow = qo.Pipeline("days")
days = flow.add("days", source={"kind": "manual"})
"""


def test_a_python_file_is_read_as_python_and_not_as_yaml(tmp_path: Path) -> None:
    (tmp_path / "new_user_days.py").write_text(PIPELINE)
    qo = Qo(tmp_path)
    assert qo.ok("dag", "validate", "new_user_days.py")
    assert "new_user_days:flow" in qo.here("dag", "validate", "new_user_days:pipeline").err
    assert qo.ok("dag", "validate", "new_user_days:flow")


def test_what_is_missing_in_a_declaration_is_a_problem_with_a_line() -> None:
    pipeline = Pipeline("d")
    days = pipeline.add("days", source={"kind": "manual"})
    pipeline.job(inputs=[days], stategy="PerPartition")(test_a_python_file_is_read_as_python_and_not_as_yaml)
    with pytest.raises(DefinitionError, match=r"test_pipeline_files\.py:\d+:.*stategy"):
        pipeline.document()
