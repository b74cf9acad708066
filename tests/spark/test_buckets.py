"""Data in a bucket: through Python workers and pyarrow, and through s3a with its jars. A real S3 server answers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from qo.config.settings import S3Settings, Settings
from qo.config.spark import BucketAccess, SparkSettings
from qo.errors import UsageError
from qo.spark.io import input_frames
from qo.spark.io.bucket import bucket_access, bucket_conf, spark_settings
from qo.spark.io.files import File, files_for
from qo.spark.io.input_frames import FileMissing
from qo.spark.io.native import HadoopFiles
from qo.spark.io.objects import BucketFiles
from support.servers.s3 import S3Server
from support.spark.s3a_jars import IVY, JARS, were_not_fetched

pytestmark = [pytest.mark.spark, pytest.mark.s3]


@pytest.fixture
def settings(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    return Settings(s3=S3Settings(endpoint=s3_server.endpoint, region=s3_server.region))


def uris(root: str, found: list[File]) -> list[str]:
    return [f"{root}/{each.name}" for each in found]


def test_a_frame_of_every_type_comes_back_from_a_bucket_without_jars(
    spark: SparkSession, settings: Settings, s3_bucket: str
) -> None:
    files, root = files_for(settings, f"s3://{s3_bucket}"), f"s3://{s3_bucket}/data/orders-id/t/1"
    assert isinstance(files, BucketFiles)
    at = datetime(2024, 1, 1, 12, tzinfo=UTC)
    row = (1, "ä", 1.5, True, Decimal("1.25"), date(2024, 1, 1), at, b"x", [1, None], {"a": 1}, (7,))
    types = (
        "id long, s string, f double, b boolean, d decimal(10,2), day date, at timestamp, raw binary, "
        "list array<int>, map map<string,int>, part struct<x:int>"
    )
    frame = spark.createDataFrame([row, (None,) * 11], types)
    files.write(frame, root)
    listed = files.list_files(root)
    assert sum(each.size for each in listed) > 0
    read = files.read(spark, uris(root, listed), frame.schema)
    assert sorted(read.collect(), key=str) == sorted(frame.collect(), key=str)
    assert files.read(spark, uris(root, listed), None).schema == frame.schema
    with pytest.raises(UsageError, match="is there already"):
        files.write(frame, root)
    files.delete(root)
    assert not files.exists(root)


def test_rows_are_counted_on_the_way_to_a_bucket_and_none_are_no_files(
    spark: SparkSession, settings: Settings, s3_bucket: str
) -> None:
    from qo.agent.operator_run import RunOutput
    from qo.api.contract.task import StandingAnswer, Work, WorkOutput
    from qo.spark.io.writing import write
    from qo.store.blocking_files import BlockingFiles

    files = files_for(settings, f"s3://{s3_bucket}")

    def written(attempt: int, rows: int) -> tuple[int, int, dict[str, object]]:
        given = WorkOutput(index=0, dataset_id="d", generation_id="g", prefix=f"s3://{s3_bucket}/d/g/t/{attempt}/")
        work = Work(
            task_id="t",
            attempt=attempt,
            dag="shop",
            job="clean",
            version=1,
            runtime="spark",
            operator="sql",
            update_strategy="replace",
            cursor_column="id",
            outputs=[given],
        )
        output = RunOutput(given, BlockingFiles(), lambda *_: StandingAnswer(pieces=[]))
        found = write(spark, spark.range(rows), output, files, [], work)
        return found.rows, len(found.files), output.stats

    assert written(1, 5) == (5, 2, {"cursor_min": 0, "cursor_max": 4})
    assert written(2, 0) == (0, 0, {"cursor_min": None, "cursor_max": None})


def test_buckets_of_keys_are_written_at_once_to_a_bucket_without_jars(
    spark: SparkSession, settings: Settings, s3_bucket: str
) -> None:
    files, root = files_for(settings, f"s3://{s3_bucket}"), f"s3://{s3_bucket}/d"
    frame = spark.sql("SELECT id, cast(id % 2 AS int) AS qo_bucket FROM range(5)")
    files.write(frame, root, {"id": 7}, "qo_bucket")
    listed = files.list_files(root)
    measured = files.measure(root, listed, {"id": "long"})
    rows = {name.name.partition("/")[0]: 0 for name in listed}
    for each, its in zip(listed, measured, strict=True):
        assert its is not None
        rows[each.name.partition("/")[0]] += its.rows
    assert rows == {"qo_bucket=0": 3, "qo_bucket=1": 2}
    of_one = [each for each in listed if each.name.startswith("qo_bucket=1/")]
    read = files.read(spark, uris(root, of_one), None)
    assert (read.columns, sorted(row.id for row in read.collect())) == (["id"], [1, 3])


def test_older_files_lack_columns_and_other_formats_are_read_from_a_bucket(
    spark: SparkSession, settings: Settings, s3_bucket: str, s3_server: S3Server
) -> None:
    files, root = files_for(settings, f"s3://{s3_bucket}"), f"s3://{s3_bucket}/d"
    files.write(spark.range(2).withColumnRenamed("id", "ID"), f"{root}/1")
    files.write(spark.sql("SELECT 2L AS id, 'x' AS shop"), f"{root}/2")
    both = [each for name in ("1", "2") for each in uris(f"{root}/{name}", files.list_files(f"{root}/{name}"))]
    read = files.read(spark, both, spark.sql("SELECT 1L AS id, '' AS shop").schema)
    assert {tuple(row) for row in read.collect()} == {(0, None), (1, None), (2, "x")}
    s3_server.admin.put_object(Bucket=s3_bucket, Key="d/a.jsonl", Body=b'{"id": 1, "shop": "a"}\n{"id": 2}\n')
    s3_server.admin.put_object(Bucket=s3_bucket, Key="d/a.csv", Body=b"shop,id\na,3\n")
    for name, found in (("a.jsonl", {(1, "a"), (2, None)}), ("a.csv", {(3, "a")})):
        for schema in (read.schema, None):
            rows = files.read(spark, [f"{root}/{name}"], schema).select("id", "shop").collect()
            assert {tuple(row) for row in rows} == found


def test_an_object_that_is_gone_or_corrupt_is_named(
    spark: SparkSession, settings: Settings, s3_bucket: str, s3_server: S3Server
) -> None:
    files = files_for(settings, f"s3://{s3_bucket}")
    s3_server.admin.put_object(Bucket=s3_bucket, Key="orders-id/bad.parquet", Body=b"not a table" * 10)
    schema = spark.range(1).schema
    for name, kind in (("bad", UsageError), ("gone", FileMissing)):
        uri = f"s3://{s3_bucket}/orders-id/{name}.parquet"
        with pytest.raises(Exception, match="qo: the file") as raised:
            files.read(spark, [uri], schema).collect()
        found = input_frames.input_error(raised.value, {"orders-id": "orders"})
        assert isinstance(found, kind)
        assert f"the file {uri} of 'orders'" in str(found)


def test_the_secret_key_is_in_no_plan(
    spark: SparkSession, settings: Settings, s3_bucket: str, s3_server: S3Server
) -> None:
    files = files_for(settings, f"s3://{s3_bucket}")
    frame = files.read(spark, [f"s3://{s3_bucket}/d/a.parquet"], spark.range(1).schema)
    shown = frame._jdf.queryExecution().toString()  # What a log or the interface would show.
    assert "qo_parquet" in shown
    assert s3_server.secret_key not in shown


def test_s3a_is_chosen_where_its_jars_are_and_gets_no_secrets_by_configuration() -> None:
    plain = Settings(s3=S3Settings(endpoint="http://127.0.0.1:1", region="eu-west-1"))
    jars = Settings(s3=plain.s3, spark=SparkSettings(packages=(JARS,)))
    assert (bucket_access(plain), bucket_access(jars)) == (BucketAccess.PYTHON, BucketAccess.S3A)
    assert isinstance(files_for(jars, "s3://bucket/data"), HadoopFiles)
    forced = Settings(spark=SparkSettings(packages=(JARS,), bucket_access=BucketAccess.PYTHON))
    assert bucket_access(forced) is BucketAccess.PYTHON
    conf = bucket_conf(jars)
    assert conf["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:1"
    assert not any("secret" in key for key in conf)
    assert not any("s3a" in key for key in bucket_conf(plain))
    own = Settings(
        s3=plain.s3, spark=SparkSettings(packages=(JARS,), conf=(("spark.hadoop.fs.s3a.endpoint", "x"),))
    )
    assert dict(spark_settings(own).conf)["spark.hadoop.fs.s3a.endpoint"] == "x"


S3A = """
    import sys
    from pyspark.sql import SparkSession
    from qo.config.settings import S3Settings, Settings
    from qo.config.spark import SparkSettings
    from qo.spark.io import input_frames as reading
    from qo.spark.io.bucket import bucket_conf
    from qo.spark.io.files import files_for

    bucket, endpoint, region, jars, ivy = sys.argv[1:]
    settings = Settings(s3=S3Settings(endpoint=endpoint, region=region), spark=SparkSettings(packages=(jars,)))
    conf = {
        "spark.jars.packages": jars,
        "spark.jars.ivy": ivy,
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        **bucket_conf(settings),
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    files, root = files_for(settings, f"s3://{bucket}"), f"s3://{bucket}/data/orders-id/t/1"
    files.write(spark.range(10), root)
    named = [f"{root}/{each.name}" for each in files.list_files(root)]
    print("READ", files.read(spark, named, spark.range(1).schema).count(), all(n.endswith(".parquet") for n in named))
    gone = f"s3://{bucket}/data/orders-id/gone.parquet"
    try:
        files.read(spark, [*named, gone], spark.range(1).schema).count()
    except Exception as error:
        print("GONE", type(reading.input_error(error, {"orders-id": "orders"})).__name__)
    files.delete(root)
    print("LEFT", files.exists(root))
    spark.stop()
"""


CONNECT = """
    import sys
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F
    from qo.config.settings import S3Settings, Settings
    from qo.api.contract.task import StandingAnswer, Work, WorkOutput
    from qo.agent.operator_run import RunOutput
    from qo.store.blocking_files import BlockingFiles
    from qo.spark.io import input_frames as reading
    from qo.spark.io.files import files_for
    from qo.spark.io.writing import Measure, write

    directory, bucket, endpoint, region = sys.argv[1:]
    settings = Settings(s3=S3Settings(endpoint=endpoint, region=region))
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    for root in (f"file:{directory}", f"s3://{bucket}"):
        files = files_for(settings, root)
        given = WorkOutput(index=0, dataset_id="d", generation_id="g", prefix=f"{root}/d/g/t/1/")
        about = dict(task_id="t", attempt=1, dag="shop", job="clean", version=1, runtime="spark", operator="sql")
        work = Work(**about, update_strategy="replace", cursor_column="id", outputs=[given])
        output = RunOutput(given, BlockingFiles(), lambda *_: StandingAnswer(pieces=[]))
        odd = Measure("odd", F.count_if(F.col("id") % 2 == 1))
        made = write(spark, spark.range(5), output, files, [odd], work)
        named = [f"{output.prefix}/{each.name}" for each in made.files]
        read = files.read(spark, named, spark.range(1).schema).count()
        print("WROTE", made.rows, made.observed, output.stats, "READ", read)
        try:
            files.read(spark, [f"{root}/orders-id/gone.parquet"], spark.range(1).schema).count()
        except Exception as error:
            print("GONE", type(reading.input_error(error, {"orders-id": "orders"})).__name__)
    spark.stop()
"""


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_client_of_spark_connect_reads_and_writes_as_a_session_does(
    settings: Settings, s3_bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    said = said_by(CONNECT, str(tmp_path), s3_bucket, s3_server.endpoint, s3_server.region)
    wrote = "WROTE 5 {'odd': 2} {'cursor_min': 0, 'cursor_max': 4} READ 5"
    assert said == [wrote, "GONE FileMissing", wrote, "GONE FileMissing"]


@pytest.mark.timeout(400)
@pytest.mark.long
def test_s3a_reads_and_writes_the_same_places(settings: Settings, s3_bucket: str, s3_server: S3Server) -> None:
    """The first run fetches the jars, which takes a while; later ones take them from the cache."""
    done = ran(S3A, s3_bucket, s3_server.endpoint, s3_server.region, JARS, str(IVY))
    if were_not_fetched(done.stderr):
        pytest.skip(f"the jars of s3a are not in {IVY}, and Maven Central cannot be reached to fetch them")
    assert said_of(done) == ["READ 10 True", "GONE FileMissing", "LEFT False"]


def said_by(code: str, *args: str) -> list[str]:
    return said_of(ran(code, *args))


def ran(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: there, Spark is set up in another way."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=360,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )


def said_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if line.split(" ")[0] in ("READ", "GONE", "LEFT", "WROTE")]
