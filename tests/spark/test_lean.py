"""A session without what it does not need of Hadoop does the same as one with all of it."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from qo.spark.patches.lean import JAR
from qo.spark.patches.lean.build_jar import contents, write

pytestmark = pytest.mark.spark

ROWS = 20


@pytest.fixture
def jvm(spark: SparkSession) -> Any:
    return SparkContext._jvm


@pytest.fixture
def files(spark: SparkSession, jvm: Any) -> Any:
    """The file system that Spark has for paths of this machine."""
    root = jvm.java.net.URI("file:///")
    return jvm.org.apache.hadoop.fs.FileSystem.get(root, spark._jsc.hadoopConfiguration())  # type: ignore[attr-defined]


@pytest.fixture
def hadoops_own(spark: SparkSession, jvm: Any) -> Any:
    made = jvm.org.apache.hadoop.fs.LocalFileSystem()
    made.initialize(jvm.java.net.URI("file:///"), spark._jsc.hadoopConfiguration())  # type: ignore[attr-defined]
    return made


def test_the_jar_is_what_its_sources_make(jvm: Any, tmp_path: Path) -> None:
    """If not: python -m qo.spark.patches.lean.build_jar."""
    write(contents(jvm), tmp_path / "made.jar")
    assert {each: zipfile.ZipFile(JAR).read(each) for each in zipfile.ZipFile(JAR).namelist()} == contents(jvm)
    assert (tmp_path / "made.jar").read_bytes() == JAR.read_bytes()


def test_few_settings_travel_with_a_task(spark: SparkSession, jvm: Any) -> None:
    told = spark._jsparkSession.sessionState().newHadoopConf()  # type: ignore[attr-defined]
    whole = jvm.org.apache.hadoop.conf.Configuration()
    whole.addResource(_original("core-default.xml"))
    assert told.size() < 100 < whole.size()


def _original(name: str) -> Any:
    """Hadoop's own file of this name, which stands behind ours."""
    found = SparkContext._jvm.java.lang.ClassLoader.getSystemClassLoader().getResources(name)  # type: ignore[union-attr]
    found.nextElement()
    return found.nextElement()


def test_no_process_is_started_for_a_file(spark: SparkSession, jvm: Any, hadoops_own: Any, tmp_path: Path) -> None:
    # Spark starts a process once, to learn the size of a page. Python processes of earlier tests may end meanwhile, but
    # not during each of the writes.
    counts = [_faults_of_children()]
    for number in range(5):
        spark.range(ROWS).write.parquet(f"{tmp_path}/rows{number}")
        counts.append(_faults_of_children())
    assert len(set(counts)) < len(counts)
    before = counts[-1]
    hadoops_own.mkdirs(jvm.org.apache.hadoop.fs.Path(f"{tmp_path}/made"))
    assert _faults_of_children() > before  # Hadoop's own class starts one.


def _faults_of_children() -> int:
    """Pages that ended children of Spark's JVM have needed: it grows with each of them."""
    process: Any = SparkContext._gateway.proc  # type: ignore[union-attr]
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[8])


def test_permissions_are_those_that_hadoop_gives(jvm: Any, files: Any, hadoops_own: Any, tmp_path: Path) -> None:
    for name, each in {"ours": files, "hadoops": hadoops_own}.items():
        each.create(jvm.org.apache.hadoop.fs.Path(f"{tmp_path}/{name}/deep/file")).close()
    ours, theirs = (
        {path.relative_to(tmp_path / name): _mode(path) for path in (tmp_path / name).rglob("*")}
        for name in ("ours", "hadoops")
    )
    assert ours == theirs
    assert Path("deep/file") in ours


def test_every_permission_can_be_set(jvm: Any, files: Any, tmp_path: Path) -> None:
    there = tmp_path / "a file"
    there.touch()
    path = jvm.org.apache.hadoop.fs.Path(str(there))
    permission = jvm.org.apache.hadoop.fs.permission.FsPermission
    wanted = [*range(0o1000), 0o1755]
    set_ = []
    for mode in wanted:
        files.setPermission(path, permission(f"{mode:04o}"))
        set_.append(_mode(there))
    assert set_ == wanted


def _mode(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def _as(format: str, **options: str) -> Callable[[DataFrame, str], DataFrame]:
    def there_and_back(rows: DataFrame, path: str) -> DataFrame:
        rows.write.format(format).options(**options).save(path)
        return rows.sparkSession.read.format(format).schema(rows.schema).load(path)

    return there_and_back


def _checkpointed(rows: DataFrame, path: str) -> DataFrame:
    rows.sparkSession.sparkContext.setCheckpointDir(path)
    return rows.checkpoint()


def _streamed(rows: DataFrame, path: str) -> DataFrame:
    spark = rows.sparkSession
    rows.write.parquet(f"{path}/in")
    stream = spark.readStream.schema(rows.schema).parquet(f"{path}/in").writeStream.format("parquet")
    stream.option("checkpointLocation", f"{path}/at").trigger(availableNow=True).start(
        f"{path}/out"
    ).awaitTermination()
    return spark.read.schema(rows.schema).parquet(f"{path}/out")


def _sequence(rows: DataFrame, path: str) -> DataFrame:
    context = rows.sparkSession.sparkContext
    rows.rdd.map(tuple).saveAsSequenceFile(path)
    return rows.sparkSession.createDataFrame(context.sequenceFile(path), rows.schema)


@pytest.mark.parametrize(
    "there_and_back",
    [
        _as("csv", compression="gzip"),
        _as("json", compression="bzip2"),
        _as("orc"),
        _as("parquet", compression="zstd"),
        _checkpointed,
        _streamed,
        _sequence,
    ],
    ids=["csv", "json", "orc", "parquet", "checkpoint", "stream", "sequence file"],
)
def test_what_operators_may_do_with_files_still_works(
    spark: SparkSession, tmp_path: Path, there_and_back: Callable[[DataFrame, str], DataFrame]
) -> None:
    rows = spark.range(ROWS).select("id", F.concat(F.lit("n"), F.col("id").cast("string")).alias("name"))
    found = there_and_back(rows, f"{tmp_path}/rows").collect()
    assert sorted(map(tuple, found)) == [(number, f"n{number}") for number in range(ROWS)]
