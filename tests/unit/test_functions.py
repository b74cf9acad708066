"""A function that is not there is found in the sources, and nothing is imported for that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from qo.agent.operators import on_thread
from qo.core.pipeline.expectation import describe_value
from qo.core.words import with_article
from qo.pipeline.code import functions
from qo.pipeline.parsing import read
from qo.pipeline.problems import DefinitionError
from qo.worker.loop.outcome import traceback_of

pytestmark = pytest.mark.fast

PIPELINE = """\
name: shop
jobs:
  - {name: orders, activation: source, outputs: 1, source: {kind: manual}}
  - name: clean
    activation: reactive
    runtime: python
    operator: OPERATOR
    inputs: [{from: {job: orders}}]
    execution_strategy: PerPartition
    outputs: 1
"""
OPS = """\
raise SystemExit("nobody should import this")
from elsewhere import given
made = lambda run: None
def clean(run): ...
async def later(run): ...
class Kept:
    def run(self): ...
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(OPS)
    (tmp_path / "stars.py").write_text("from ops import *\n")
    (tmp_path / "lazy.py").write_text("def __getattr__(name): ...\n")
    (tmp_path / "broken.py").write_text("def clean(run:\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text('raise SystemExit("nor this")\n')
    (tmp_path / "lib" / "deep.py").write_text("def clean(run): ...\n")
    return tmp_path


def check(operator: str, more: str = "") -> None:
    text = PIPELINE.replace("OPERATOR", operator) + more
    functions.check(read(text, file="pipeline.yaml"), text, "pipeline.yaml")


@pytest.mark.parametrize(
    "operator",
    ["ops:clean", "ops:later", "ops:made", "ops:given", "ops:Kept.run", "stars:any", "lazy:any", "lib.deep:clean"],
)
def test_what_is_there_is_nothing_wrong(home: Path, operator: str) -> None:
    check(operator)


def test_what_is_installed_counts_as_there(home: Path) -> None:
    check("json.encoder:py_encode_basestring")
    with pytest.raises(DefinitionError, match="defines no 'nothing'"):
        check("json.encoder:nothing")


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        ("ops:cleen", r"pipeline.yaml:7:\d+: job 'clean': .*ops.py defines no 'cleen'; did you mean 'clean'\?"),
        ("nowhere:clean", r"pipeline.yaml:7:\d+: job 'clean': there is no module 'nowhere' in "),
        ("lib.nowhere:clean", "there is no module 'lib.nowhere'"),
        ("broken:clean", "broken.py cannot be read as Python"),
    ],
)
def test_what_is_missing_is_said_where_it_is_named(home: Path, operator: str, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        check(operator)


def test_who_says_what_its_code_is_may_have_it_elsewhere(home: Path) -> None:
    check("nowhere:clean", "    code: '1'\n")


def test_what_was_found_of_data_is_said_in_words() -> None:
    assert describe_value({"outside": 1, "sample": ["-1.20", None]}) == "outside 1, such as -1.20; nothing"
    assert describe_value({"nulls": {"day": 3, "origin": 1}}) == "nulls (day 3, origin 1)"
    assert describe_value({"duplicates": 2, "sample": [{"day": "2013-01-01", "ok": True}]}) == (
        "duplicates 2, such as day 2013-01-01, ok true"
    )
    assert describe_value("no nulls") == "no nulls"


def test_an_article_fits_its_noun() -> None:
    assert [with_article(each) for each in ("ingest", "job", "expectation")] == [
        "an ingest",
        "a job",
        "an expectation",
    ]


def test_a_traceback_begins_with_the_code_of_its_author() -> None:
    def author() -> None:
        try:
            read(None)  # type: ignore[arg-type]
        except Exception as error:
            raise ValueError("theirs") from error

    with pytest.raises(ValueError, match="theirs") as raised:
        asyncio.run(on_thread(author))
    trace = raised.tb
    while "qo/agent" not in trace.tb_frame.f_code.co_filename:  # As a worker sees it: without this test.
        assert trace.tb_next is not None
        trace = trace.tb_next
    told = traceback_of(raised.value.with_traceback(trace)) or ""
    parts = told.split("Traceback (most recent call last):")[1:]
    assert [part.splitlines()[1].endswith("in author") for part in parts] == [True, True]
    assert "qo/pipeline" in told  # What the author's code has called stays.
    assert "qo/agent" not in told


def test_a_traceback_without_code_of_an_author_is_whole() -> None:
    with pytest.raises(TypeError) as raised:
        functions.check(None, None, None)  # type: ignore[arg-type]
    told = traceback_of(raised.value.with_traceback(raised.tb.tb_next)) or ""
    assert "code/functions.py" in told
