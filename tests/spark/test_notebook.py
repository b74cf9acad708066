"""%load_ext qo, in the IPython that a notebook has."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from pyspark.sql import SparkSession
from traitlets.config import Config

from qo.dispatcher.state import upgrade
from qo.dispatcher.state.database import open_state
from qo.spark.io import writing
from qo.spark.io.native import LocalFiles
from support.dispatcher.pipelines import dag, deployed, source
from support.spark.attempts import Shop

pytestmark = pytest.mark.spark

SHOP = dag("shop", source("orders", runtime="python", operator="shop.feed:run"), publish={"orders": "orders"})


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    for name, value in (("QO_STATE", f"sqlite:{tmp_path / 'state.db'}"), ("QO_DATA", f"file:{tmp_path / 'data'}")):
        monkeypatch.setenv(name, value)
    yield InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    InteractiveShell.clear_instance()


@pytest.fixture
def shop(notebook: InteractiveShell, tmp_path: Path) -> Iterator[Shop]:
    state = open_state(f"sqlite:{tmp_path / 'state.db'}")
    upgrade.upgrade(state)
    yield Shop(state, f"file:{tmp_path / 'data'}", deployed(state, SHOP))
    state.close()


def run(notebook: InteractiveShell, cell: str) -> ExecutionResult:
    """Run a cell as a notebook does: with an event loop in this thread."""

    async def run_cell() -> ExecutionResult:
        return await notebook.run_cell_async(cell, transformed_cell=notebook.transform_cell(cell))

    return asyncio.run(run_cell())


def test_a_command_runs_in_a_cell_and_its_errors_end_the_cell(
    notebook: InteractiveShell, shop: Shop, capsys: pytest.CaptureFixture[str]
):
    handlers = list(logging.getLogger().handlers)
    assert run(notebook, "%load_ext qo").success
    assert run(notebook, "%qo dataset list").success
    assert "orders" in capsys.readouterr().out
    failed = run(notebook, "%qo dataset show nowhere\nafter = 1")
    assert not failed.success
    assert "after" not in notebook.user_ns
    assert "nowhere" in str(failed.error_in_exec)
    assert "Traceback" not in capsys.readouterr().err
    for command in ("up", "status --watch", "try clean@1"):
        assert "run this in a terminal" in str(run(notebook, f"%qo {command}").error_in_exec)
    assert logging.getLogger().handlers == handlers
    assert run(notebook, "%unload_ext qo").success
    assert not run(notebook, "%qo dataset list").success


def test_datasets_are_frames_that_show_as_tables(notebook: InteractiveShell, shop: Shop, spark: SparkSession):
    held, attempt = shop.begin("orders", "one")
    frame = spark.createDataFrame([(7,), (9,)], "id long")
    writing.write(spark, frame, attempt.output(), LocalFiles(), [], attempt.work)
    attempt.output().describe(partition_key="one")
    shop.commit(held, attempt)
    notebook.push({"spark": spark})
    run(notebook, "%load_ext qo")
    try:
        shown = run(notebook, "read('orders').orderBy('id')").result
        assert "<td>7</td>" in shown._repr_html_()
        assert run(notebook, "spark.range(1).select(F.lit('own').alias('x')).first().x").result == "own"
        assert run(notebook, "%qo shell").success
        assert notebook.user_ns["spark"] is spark
        run(notebook, "%unload_ext qo")
        assert spark.range(1).count() == 1  # The session of the user goes on.
    finally:
        spark.conf.unset("spark.sql.repl.eagerEval.enabled")


def test_qo_needs_no_ipython():
    code = (
        "import sys, qo; qo.load_ipython_extension; print([m for m in sys.modules if m in ('IPython', 'pyspark')])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    )
