"""The fingerprint of an operator changes with what it does, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from qo.errors import UsageError
from qo.pipeline.code.fingerprint import Unresolvable, fingerprint
from qo.pipeline.loading import load_for_deploy
from qo.pipeline.parsing import read

pytestmark = pytest.mark.fast

OPS = '''
"""Operators."""
import json
from shared import scale

RATE = 2
UNUSED = 3

def helper(row):
    return row * RATE  # As agreed.

def clean(run):
    """Cleans."""
    return scale(helper(run))

def other(run):
    return json.dumps(run)
'''


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "ops.py").write_text(OPS)
    (tmp_path / "shared.py").write_text("from lib.deep import factor\ndef scale(x):\n    return x * factor\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    (tmp_path / "lib" / "deep.py").write_text("from . import sibling\nfactor = sibling.one\n")
    (tmp_path / "lib" / "sibling.py").write_text("one = 1\n")
    return tmp_path


def changed(home: Path, name: str, old: str, new: str) -> set[str]:
    """Which of the two operators is another after an edit."""
    before = {each: fingerprint(f"ops:{each}", [home]) for each in ("clean", "other")}
    text = (home / name).read_text()
    assert old in text
    (home / name).write_text(text.replace(old, new))
    return {each for each, known in before.items() if fingerprint(f"ops:{each}", [home]) != known}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# As agreed.", "# Differently said."),
        ('"""Cleans."""', '"""Another text."""'),
        ('"""Operators."""', ""),
        ("return scale(helper(run))", "return scale(\n        helper(run)\n    )"),
        ("UNUSED = 3", "UNUSED = 4"),
    ],
)
def test_comments_docstrings_formatting_and_what_nobody_uses_do_not_count(home: Path, old: str, new: str) -> None:
    assert changed(home, "ops.py", old, new) == set()


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("ops.py", "row * RATE", "row + RATE", {"clean"}),
        ("ops.py", "RATE = 2", "RATE = 5", {"clean"}),
        ("ops.py", "json.dumps(run)", "json.dumps([run])", {"other"}),
        ("shared.py", "x * factor", "x - factor", {"clean", "other"}),
        ("lib/sibling.py", "one = 1", "one = 2", {"clean", "other"}),
        ("ops.py", "import json", "import json, os", {"clean", "other"}),
    ],
)
def test_what_an_operator_reaches_counts_wherever_it_lies(
    home: Path, name: str, old: str, new: str, expected: set[str]
) -> None:
    assert changed(home, name, old, new) == expected


def test_code_that_looks_names_up_as_it_runs_counts_whole(home: Path) -> None:
    with (home / "ops.py").open("a") as file:
        file.write("def chosen(name):\n    return globals()[name]\n")
    assert changed(home, "ops.py", "UNUSED = 3", "UNUSED = 4") == {"clean", "other"}


def test_declarations_of_a_pipeline_are_not_code(home: Path) -> None:
    text = (
        "import qo\npipeline = qo.Pipeline('sales')\norders = pipeline.add('orders', source={'kind': 'manual'})\n"
        "@pipeline.job(inputs=[orders], strategy='PerPartition')\ndef clean(run):\n    return 1\n"
        "@pipeline.job(inputs=[clean], strategy='PerPartition', max_attempts=2)\ndef other(run):\n    return 2\n"
        "pipeline.publish('totals', other)\n"
    )
    (home / "ops.py").write_text(text)
    assert changed(home, "ops.py", "max_attempts=2", "max_attempts=3") == set()
    assert changed(home, "ops.py", "return 2", "return 3") == {"other"}


@pytest.mark.parametrize("operator", ["nowhere:run", "ops:nothing", "broken:run"])
def test_what_cannot_be_worked_out_says_why(home: Path, operator: str) -> None:
    (home / "broken.py").write_text("def run(:\n")
    with pytest.raises(Unresolvable):
        fingerprint(operator, [home])


SALES = """# Ours.
name: sales
jobs:
  - name: orders
    activation: source
    outputs: 1
    source: {kind: manual}
  - name: clean  # As said.
    activation: reactive
    runtime: python
    operator: ops:clean
    outputs: 1
    execution_strategy: PerPartition
    inputs: [{from: {job: orders}}]
  - runtime: spark
    operator: sql
    name: totals
    activation: reactive
    outputs: 1
    execution_strategy: PerPartition
    inputs: [{from: {job: clean}}]
    config: {FILE}
"""


def test_a_deployed_definition_says_what_its_code_is_known_by(home: Path) -> None:
    path = home / "sales.yaml"
    path.write_text(SALES.replace("{FILE}", "{query: SELECT 1 AS one}"))
    whole = load_for_deploy(str(path))
    job = next(each for each in whole.dag.jobs if each.name == "clean")
    assert job.code == fingerprint("ops:clean", [home])
    assert read(whole.source) == whole.dag
    assert whole.source.startswith("# Ours.\n")  # Its author's comments stay.
    assert whole.warnings == ()
    plain = load_for_deploy(str(path), code=False)
    assert plain.source == path.read_text()
    path.write_text(path.read_text().replace("ops:clean", "ops:nothing"))
    assert "'clean'" in load_for_deploy(str(path)).warnings[0]
    path.write_text(path.read_text().replace("ops:nothing", "ops:nothing\n    code: mine"))
    assert load_for_deploy(str(path)).warnings == ()


def test_a_query_in_a_file_of_its_own_is_written_into_the_definition(home: Path) -> None:
    path = home / "sales.yaml"
    path.write_text(SALES.replace("{FILE}", "{file: totals.sql}"))
    with pytest.raises(UsageError, match=r"totals\.sql"):
        load_for_deploy(str(path))
    (home / "totals.sql").write_text("SELECT *\nFROM clean\n")
    whole = load_for_deploy(str(path))
    job = next(each for each in whole.dag.jobs if each.name == "totals")
    assert job.config == {"query": "SELECT *\nFROM clean\n"}
    assert read(whole.source) == whole.dag
