"""Files of others: columns declared, learnt once or enforced; what does not fit is named."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from qo.api.contract.task import ColumnBody, InputMode, Piece, WorkInput, WorkOutput
from qo.config.fetch import FetchSettings
from qo.config.origins import load
from qo.config.settings import Settings
from qo.config.spark import SparkSettings
from qo.errors import Unavailable, UsageError
from qo.spark.engine.error_translation import BadData, explain
from qo.spark.io.files import files_for
from qo.spark.io.input_frames import FileMissing
from qo.spark.operators import ingest
from qo.spark.operators.operator_context import Context, Inputs
from qo.store.s3 import S3Store
from qo.testing.spark import make_run, run_operator
from qo.worker.loop.cancel import CancelToken

pytestmark = pytest.mark.spark

SPARK_RAISES = (PySparkException, Py4JError, BadData)

COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "day", "type": "date"}]
CSV: dict[str, Any] = {"format": "csv", "options": {"header": True}}


def context_of(
    spark: SparkSession, config: dict[str, Any], known: Mapping[str, Any] | None = None, *files: str, **work: Any
) -> Context:
    """An attempt at files of an input, or at those of ``path``."""
    columns = None if known is None else [ColumnBody(name=name, type=kind) for name, kind in known.items()]
    output = WorkOutput(index=0, dataset_id="a", generation_id="a", prefix="file:/nowhere/", columns=columns)
    landed = WorkInput(
        position=0,
        name="landed",
        dataset_id="l",
        generation_id="l",
        mode=InputMode.PARTITION,
        pieces=[Piece(revision=1, files=list(files))],
    )
    inputs = [landed] if files else []
    run = make_run("ingest", inputs, config, partition_key="monday", outputs=[output], **work)
    opened = Inputs([each.name for each in inputs], lambda name: spark.range(0))
    return Context(spark, run, opened, config, files_for(Settings(), "file:/"))


def ingested(
    spark: SparkSession, config: dict[str, Any], known: Mapping[str, Any] | None = None, *files: str, **work: Any
) -> DataFrame:
    return ingest.run(context_of(spark, config, known, *files, **work))[0]


def refused(spark: SparkSession, config: dict[str, Any], known: Mapping[str, Any] | None = None) -> str:
    """What a task is told, be it before the rows are read or while they are."""
    context = context_of(spark, config, known)
    with pytest.raises(SPARK_RAISES) as caught:
        ingest.run(context)[0].collect()
    better = next((found for each in context.diagnoses if (found := each(caught.value))), caught.value)
    assert isinstance(better, BadData), better
    return str(better)


def test_declared_columns_are_read_as_declared(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "monday.csv").write_text("id,day\n1,2024-01-01\n2,\n")
    path = f"file:{tmp_path}/{{partition_key}}.csv"
    made = run_operator(
        "ingest", {}, config={**CSV, "path": path, "columns": COLUMNS}, spark=spark, partition_key="monday"
    )
    wanted = spark.sql("SELECT 1L AS id, DATE'2024-01-01' AS day UNION ALL SELECT 2L, NULL")
    assertDataFrameEqual(made, wanted)


def test_every_format_is_read(spark: SparkSession, tmp_path: Path) -> None:
    wanted = spark.sql("SELECT 7L AS id, 'x' AS name")
    (tmp_path / "a.json").write_text('{"id": 7, "name": "x"}\n')
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id;name\n7;x\n"))
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    wanted.write.parquet(f"file:{tmp_path}/a.parquet")
    columns = [{"name": "id", "type": "bigint"}, {"name": "name", "type": "string"}]
    csv = {"format": "csv", "options": {"header": True, "sep": ";"}}
    for config in ({"format": "json"}, csv, {"format": "parquet"}):
        suffix = "csv.gz" if config is csv else config["format"]
        made = ingested(spark, {**config, "path": f"file:{tmp_path}/a.{suffix}", "columns": columns})
        assertDataFrameEqual(made, wanted)
    lines = ingested(spark, {"format": "text", "path": f"file:{tmp_path}/a.txt"})
    assert [row.value for row in lines.collect()] == ["one", "two"]


def test_the_name_of_a_file_that_landed_is_no_pattern(spark: SparkSession, tmp_path: Path) -> None:
    """Only ``path`` is one."""
    for name, number in {"sales[1].csv": 1, "sales1.csv": 2, "sales*.csv": 3, "sa{les,fe}.csv": 4}.items():
        (tmp_path / name).write_text(f"id,day\n{number},\n")
        made = ingested(spark, {**CSV, "columns": COLUMNS}, None, f"file:{tmp_path}/{name}")
        assert [row.id for row in made.collect()] == [number]
    all_ = ingested(spark, {**CSV, "path": f"file:{tmp_path}/sales*.csv", "columns": COLUMNS})
    assert sorted(row.id for row in all_.collect()) == [1, 2, 3]
    lines = ingested(spark, {"format": "text"}, None, f"file:{tmp_path}/sales[1].csv")
    assert [row.value for row in lines.collect()] == ["id,day", "1,"]


def test_columns_are_learnt_once_and_then_enforced(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "first.csv").write_text("id,price\n1,2.5\n")
    (tmp_path / "second.csv").write_text("id,price\n2,3\n")
    first = ingested(spark, {**CSV, "path": f"file:{tmp_path}/first.csv"})
    assert dict(first.dtypes) == {"id": "int", "price": "double"}
    known = {"id": "integer", "price": "double"}
    # By itself the second would be learnt otherwise: its prices are whole.
    assert ingested(spark, {**CSV, "path": f"file:{tmp_path}/second.csv"}, known).first() == (2, 3.0)
    (tmp_path / "third.csv").write_text("id,prize\n3,4.0\n")
    said = refused(spark, {**CSV, "path": f"file:{tmp_path}/third.csv"}, known)
    assert "prize" in said
    assert "price" in said
    assert "third.csv" in said
    (tmp_path / "more of it.csv").write_text("id,price,note\n1,1,1\n")
    said = refused(spark, {**CSV, "path": f"file:{tmp_path}/more of it.csv"}, known)
    assert "more of it.csv has new columns 'note': it has id, price, note, and the job id, price; write" in said
    (tmp_path / "fewer.csv").write_text("id\n1\n")
    said = refused(spark, {**CSV, "path": f"file:{tmp_path}/fewer.csv"}, known)
    assert "fewer.csv has no column 'price': it has id, and the job id, price; write 'drift: add'" in said


def test_columns_that_were_not_learnt_are_refused_in_every_format(spark: SparkSession, tmp_path: Path) -> None:
    known = {"id": "long", "of": {"type": "struct", "fields": [field("city")]}, "tags": array(field("tag"))}
    same = '{"id": 1, "of": {"city": "oslo"}, "tags": [{"tag": "a"}]}'
    (tmp_path / "same.json").write_text(f'{same}\n{{"id": 2}}\n')
    (tmp_path / "fewer.json").write_text('{"id": 3}\n')  # In JSON, what is not there is null.
    for name, ids in {"same": [1, 2], "fewer": [3]}.items():
        made = ingested(spark, {"format": "json", "path": f"file:{tmp_path}/{name}.json"}, known)
        assert sorted(row.id for row in made.collect()) == ids
    (tmp_path / "case.json").write_text('{"ID": 3}\n')  # Spark would not find it.
    assert "new columns 'ID'" in refused(spark, {"format": "json", "path": f"file:{tmp_path}/case.json"}, known)
    more = '{"id": 4, "note": 1, "of": {"city": "rome", "zip": 9}, "tags": [{"tag": "a", "by": "me"}]}'
    (tmp_path / "more.json").write_text(f"{same}\n{more}\n")
    spark.read.json(f"file:{tmp_path}/more.json").write.parquet(f"file:{tmp_path}/more.parquet")
    for format_ in ("json", "parquet"):
        said = refused(spark, {"format": format_, "path": f"file:{tmp_path}/more.{format_}"}, known)
        assert f"more.{format_} has new columns 'note', 'of.zip', 'tags.by'" in said
        declared = {"format": format_, "path": f"file:{tmp_path}/more.{format_}", "columns": COLUMNS[:1]}
        assert ingested(spark, declared).columns == ["id"]  # Who declares columns has chosen them.
    (tmp_path / "bad.json").write_text(f"{same}\nnonsense\n")
    for columns in (known, None):
        said = refused(spark, {"format": "json", "path": f"file:{tmp_path}/bad.json"}, columns)
        assert "bad.json: 1 row, such as 'nonsense'" in said


def field(name: str) -> dict[str, Any]:
    return {"name": name, "type": "string", "nullable": True, "metadata": {}}


def array(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "containsNull": True, "elementType": {"type": "struct", "fields": list(fields)}}


def test_new_columns_are_taken_where_the_job_lets_them_in(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "wider.csv").write_text("price,note,id\n3,hello,2\n")
    known = {"id": "integer", "price": "double"}
    made = ingested(spark, {**CSV, "path": f"file:{tmp_path}/wider.csv"}, known, drift="add")
    assert made.collect()[0].asDict() == {"price": 3.0, "note": "hello", "id": 2}


def test_rows_that_do_not_fit_are_counted_and_shown_with_their_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text("id,day\n1,2024-01-01\n")
    (tmp_path / "bad.csv").write_text("id,day\n1,2024-01-01\nsix,2024-01-02\nten,2024-01-03\n")
    said = refused(spark, {**CSV, "path": f"file:{tmp_path}/*.csv", "columns": COLUMNS})
    assert "bad.csv: 2 rows, in column 'id' (bigint), such as 'six,2024-01-02'" in said
    assert "good" not in said
    (tmp_path / "bad.json").write_text('{"id": 1, "day": "2024-01-01"}\n{"id": "six"}\nnonsense\n')
    said = refused(spark, {"format": "json", "path": f"file:{tmp_path}/bad.json", "columns": COLUMNS})
    assert "bad.json: 2 rows" in said


def test_a_parquet_file_without_a_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "cut.parquet").touch()
    said = refused(spark, {"format": "parquet", "path": f"file:{tmp_path}/cut.parquet", "columns": COLUMNS})
    assert "cut.parquet is empty" in said
    spark.sql("SELECT 1L AS id").write.parquet(f"file:{tmp_path}/narrow.parquet")
    said = refused(spark, {"format": "parquet", "path": f"file:{tmp_path}/narrow.parquet", "columns": COLUMNS})
    assert "narrow.parquet has no column 'day': it has id" in said
    spark.sql("SELECT 'x' AS id, current_date AS day").write.parquet(f"file:{tmp_path}/other.parquet")
    config = {"format": "parquet", "path": f"file:{tmp_path}/other.parquet", "columns": COLUMNS}
    with pytest.raises(SPARK_RAISES) as caught:
        ingested(spark, config).collect()
    assert isinstance(explain(caught.value), BadData)
    assert "other.parquet" in str(explain(caught.value))


def test_no_files_are_no_rows_once_the_columns_are_known(spark: SparkSession) -> None:
    assert run_operator("ingest", {"files": []}, config={**CSV, "columns": COLUMNS}, spark=spark).collect() == []
    with pytest.raises(UsageError, match="declare its 'columns'"):
        run_operator("ingest", {"files": []}, config=CSV, spark=spark)


@pytest.mark.parametrize("path", ["file:/x/{day}", "file:/x/{cursor}"])
def test_a_path_is_filled_with_what_the_task_has_only(spark: SparkSession, path: str) -> None:
    with pytest.raises(UsageError, match="path has"):
        ingested(spark, {**CSV, "path": path, "columns": COLUMNS})


@pytest.mark.s3
async def test_objects_of_a_bucket_are_read_without_jars(
    spark: SparkSession, s3_env: dict[str, str], s3_store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in s3_env.items():
        monkeypatch.setenv(key, value)
    long = "x" * 100_000
    body = "".join(["id,day\n", *(f"{number},{long}\n" for number in range(200))]).encode()
    await s3_store.put("in/a[1].csv", body)
    settings, copies = load(environ=s3_env), ExitStack()
    bucket = f"s3://{s3_env['S3_BUCKET']}/in"
    config = {**CSV, "columns": [COLUMNS[0], {"name": "day", "type": "string"}]}
    context = replace(context_of(spark, config, None, f"{bucket}/a[1].csv"), settings=settings, later=copies)

    def made() -> tuple[int, int]:
        """How many rows, and how many bytes this process needed to hold for them at a time."""
        tracemalloc.start()
        try:
            frame = ingest.run(context)[0]
            return frame.count(), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    found, held = await asyncio.to_thread(made)
    assert found == 200
    assert held < len(body) / 2
    copies.close()
    loop = asyncio.get_running_loop()

    class Replacing(CancelToken):
        """Another's hand, while the worker copies: it looks at the token after each part."""

        def check(self) -> None:
            asyncio.run_coroutine_threadsafe(s3_store.put("in/a[1].csv", body[::-1]), loop).result()

    context.run.cancel = Replacing()
    with pytest.raises(Unavailable, match="was replaced while it was read"):
        await asyncio.to_thread(ingest.run, context)
    copies.close()
    lost = replace(context_of(spark, config, None, f"{bucket}/lost.csv"), settings=settings, later=copies)
    with pytest.raises(FileMissing, match=r"in/lost\.csv is gone"):
        await asyncio.to_thread(ingest.run, lost)
    copies.close()
    pattern = replace(context_of(spark, {**config, "path": f"{bucket}/*.csv"}), settings=settings)
    with pytest.raises(UsageError, match="is a pattern, which needs hadoop-aws"):
        ingest.run(pattern)
    far = replace(context, settings=replace(settings, spark=SparkSettings(master="spark://127.0.0.1:7077")))
    with pytest.raises(UsageError, match="hadoop-aws"):
        ingest.run(far)


def test_files_behind_urls_are_fetched_and_read(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,day\n7,2026-01-01\n")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        settings = Settings(fetch=FetchSettings(networks=("127.0.0.0/8",)))
        config = {**CSV, "columns": COLUMNS}
        context = replace(context_of(spark, config, None, f"{url}/a.csv"), settings=settings)
        with context.later:
            assert [row.id for row in ingest.run(context)[0].collect()] == [7]
        gone = replace(context_of(spark, config, None, f"{url}/b.csv"), settings=settings)
        with gone.later, pytest.raises(FileMissing):
            ingest.run(gone)
        server.shutdown()
