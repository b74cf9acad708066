"""Landing files that are gone when a rebuild wants them: an error that says what to do, or the rows from before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from qo.agent.operator_run import Run
from qo.api.contract.task import EventBody
from qo.config.settings import Settings
from qo.core.pipeline.dag import Dag, SourceKind
from qo.dispatcher.commits import pieces, removals
from qo.dispatcher.sources import emission
from qo.dispatcher.state import datasets
from qo.spark.engine.error_translation import BadData
from qo.spark.io import writing
from qo.spark.io.files import files_for
from qo.spark.io.input_frames import FileMissing
from qo.spark.operators import ingest
from qo.spark.operators.operator_context import Context, Inputs
from support.dispatcher.pipeline_tasks import partition_task
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock, opened
from support.spark.attempts import Shop

pytestmark = pytest.mark.spark

COLUMNS = [{"name": "id", "type": "bigint"}]
CONFIG: dict[str, Any] = {"format": "csv", "options": {"header": True}, "columns": COLUMNS}


def shop_with(config: Mapping[str, Any], **fields: Any) -> Dag:
    landing = source("landing", "files", of={"path": "landing"})
    raw = job("raw", reads="landing", runtime="spark", operator="ingest", config=dict(config), **fields)
    return dag("shop", landing, raw)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(f"sqlite:{tmp_path / 'state.db'}", Clock()) as state:
        yield Shop(state, f"file:{tmp_path / 'data'}", deployed(state, shop_with(CONFIG)))


def land(shop: Shop, directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    event = EventBody(partition_key=name, attributes={"location": f"file:{directory}/", "files": [name]})
    with shop.state.write() as tx:
        emission.emit(tx, "shop", "landing", key=name, events=[event], by="tests", kind=SourceKind.FILES)
    return path


def attempt(spark: SparkSession, shop: Shop, key: str, version: int) -> tuple[Any, Run, Context]:
    found = live(shop.topology, "shop.raw", version)
    held, run = shop.claim(partition_task(shop.state, found, key))
    context = Context(
        spark,
        run,
        Inputs(list(run.inputs), lambda name: spark.range(0)),
        run.config,
        files_for(Settings(), "file:/"),
    )
    return held, run, context


def build(spark: SparkSession, shop: Shop, key: str, version: int) -> dict[str, Any]:
    """Make a partition as a worker does; what its result says."""
    held, run, context = attempt(spark, shop, key, version)
    frame = ingest.run(context)[0]
    writing.write(spark, frame, run.output(), context.files, [], run.work)
    shop.commit(held, run)
    return context.details


def rows_of(spark: SparkSession, shop: Shop, version: int) -> list[Any]:
    generation = live(shop.topology, "shop.raw", version).outputs[0].generation_id
    with shop.state.read() as tx:
        found, _ = pieces.standing(tx, generation, None)
    files = [f"{each.location}{name}" for each in found for name in each.files]
    return sorted(tuple(row) for row in spark.read.parquet(*files).collect()) if files else []


def next_version(shop: Shop, **changes: Any) -> int:
    number = staged(shop.state, edited(shop_with(CONFIG), "raw", **changes)).version
    shop.topology = loaded(shop.state)
    return number


def test_a_file_that_is_gone_is_named_with_the_ways_out(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    land(shop, tmp_path, "monday.csv", "id\n1\n").unlink()
    _, _, context = attempt(spark, shop, "monday.csv", 1)
    with pytest.raises(FileMissing) as caught:
        ingest.run(context)
    said = str(caught.value)
    assert f"the file file:{tmp_path}/monday.csv is gone: it was announced at 20" in said
    assert "as shop.landing@monday.csv. Put it back and replay the task" in said
    assert "qo dataset remove shop.landing monday.csv; or write 'missing: keep'" in said


def test_rows_of_a_file_that_is_gone_are_kept_and_said_to_be(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    path = land(shop, tmp_path, "monday.csv", "id\n1\n2\n")
    build(spark, shop, "monday.csv", 1)
    path.unlink()
    number = next_version(shop, config={**CONFIG, "missing": "keep", "options": {"header": True, "sep": ","}})
    said = build(spark, shop, "monday.csv", number)
    assert rows_of(spark, shop, number) == rows_of(spark, shop, 1) == [(1,), (2,)]
    assert said["kept"]["files_gone"] == [f"file:{path}"]
    assert said["kept"]["generation_id"] == live(shop.topology, "shop.raw", 1).outputs[0].generation_id


def test_rows_are_kept_if_their_columns_fit(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    path = land(shop, tmp_path, "monday.csv", "id\n1\n")
    build(spark, shop, "monday.csv", 1)
    path.unlink()
    wider = [*COLUMNS, {"name": "note", "type": "string"}]
    number = next_version(shop, config={**CONFIG, "missing": "keep", "columns": wider})
    with pytest.raises(BadData, match="do not fit the columns: they have no 'note': write 'drift: add'"):
        build(spark, shop, "monday.csv", number)
    number = next_version(
        shop, config={**CONFIG, "missing": "keep", "columns": [{"name": "id", "type": "string"}]}
    )
    with pytest.raises(BadData, match="'id' was bigint and is string"):
        build(spark, shop, "monday.csv", number)
    number = next_version(
        shop,
        config={**CONFIG, "missing": "keep", "columns": wider, "options": {"header": True, "sep": ","}},
        drift="add",
    )
    build(spark, shop, "monday.csv", number)
    assert rows_of(spark, shop, number) == [(1, None)]


def test_what_was_never_committed_cannot_be_kept(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    number = next_version(shop, config={**CONFIG, "missing": "keep", "options": {"header": True, "sep": ","}})
    land(shop, tmp_path, "monday.csv", "id\n1\n").unlink()
    with pytest.raises(
        FileMissing, match=r"monday\.csv was never committed before: there is nothing to keep, and the file"
    ):
        build(spark, shop, "monday.csv", number)
    with shop.state.write() as tx:
        removals.remove(tx, datasets.resolve(tx, "shop.landing"), ["monday.csv"], by="ann", key="k")
