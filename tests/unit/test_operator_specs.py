"""Built-in operators are declared once, and everything else follows from the declaration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qo
from qo.pipeline.operators.built_in import BUILT_IN
from qo.pipeline.operators.spec import OperatorSpec
from qo.pipeline.registry import DEFAULT

pytestmark = pytest.mark.fast

ROOT = Path(qo.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs/reference/dag.md").read_text()


def test_an_operator_is_known_to_its_declaration_and_its_implementation_only() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if "dedupe:" in path.read_text()}
    files |= {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if '"dedupe"' in path.read_text()}
    assert files == {"pipeline/operators/spark.py", "spark/operators/dedupe.py"}


@pytest.mark.parametrize("spec", BUILT_IN.values(), ids=lambda spec: spec.name)
def test_an_operator_is_accepted_by_its_runtimes_and_no_others(spec: OperatorSpec) -> None:
    accepting = {runtime.name for runtime in DEFAULT.runtimes.values() if runtime.accepts(spec.name)}
    assert accepting == set(spec.runtimes)


@pytest.mark.parametrize("spec", [each for each in BUILT_IN.values() if each.run], ids=lambda spec: spec.name)
def test_the_function_that_runs_an_operator_can_be_imported(spec: OperatorSpec) -> None:
    assert callable(spec.load())


@pytest.mark.parametrize("spec", BUILT_IN.values(), ids=lambda spec: spec.name)
def test_an_operator_is_on_the_reference_page(spec: OperatorSpec) -> None:
    for runtime in spec.runtimes:
        assert re.search(rf"^\| `{runtime}` \|.*`{spec.name}`", PAGE, re.MULTILINE)


@pytest.mark.parametrize("spec", [each for each in BUILT_IN.values() if each.needs_config], ids=lambda s: s.name)
def test_an_operator_that_needs_a_config_shows_one(spec: OperatorSpec) -> None:
    assert spec.config is not None
    assert spec.example.partition(":")[0] in spec.config.by_name
